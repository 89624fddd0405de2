"""Stands in for `triton_python_backend_utils`, which only Triton's own processes have.

A request is a mapping of arrays by name.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from flambeau.protocol.tensors import Array


class TritonError(Exception):
    """A refusal of one request."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor by name."""

    name: str
    array: Array

    def as_numpy(self) -> Array:
        """Returns the array."""
        return self.array


@dataclass(frozen=True, slots=True)
class InferenceResponse:
    """Outputs, or an error."""

    tensors: Sequence[Tensor] = ()
    error: TritonError | None = None


def get_input_tensor_by_name(request: Mapping[str, Array], name: str) -> Tensor | None:
    """Returns an input; None if the request has not got it."""
    return Tensor(name, request[name]) if name in request else None
