"""A served model with a known signature, so that invalid inputs fail locally with a clear error.

The signature is that of the time of the lookup. When a pointer moves to a version with another
signature, the server rejects inputs that no longer fit: look the model up again.
"""

from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Protocol

from flambeau.errors import InvalidRequestError
from flambeau.protocol.signature import Signature, SignatureError
from flambeau.wire import Array, tensor_datatype


class _Client(Protocol):
    """Runs inferences, as `Client` does."""

    @property
    def infer(self) -> Callable[..., dict[str, Array]]:
        """Runs a model on a batch."""


class _AsyncClient(Protocol):
    """Runs inferences, as `AsyncClient` does."""

    @property
    def infer(self) -> Callable[..., Coroutine[Any, Any, dict[str, Array]]]:
        """Runs a model on a batch."""


class CheckedModel:
    """Checks requests to one model; base of both kinds of model.

    Attributes:
        name: name of the model.
        version: version number; empty for the one the server's pointer names.
        signature: names, datatypes and shapes of inputs and outputs.
    """

    def __init__(self, name: str, version: str, signature: Signature) -> None:
        self.name = name
        self.version = version
        self.signature = signature
        self._bf16 = frozenset(spec.name for spec in signature.inputs if spec.datatype == "BF16")

    def check(self, inputs: Mapping[str, Array], outputs: Sequence[str] = ()) -> None:
        """Checks a request against the signature, without the server.

        Raises:
            InvalidRequestError: a name, datatype, shape or batch size does not fit.
        """
        given = {
            name: (tensor_datatype(name, array, self._bf16), array.shape)
            for name, array in inputs.items()
        }
        try:
            self.signature.check_inputs(given)
            self.signature.check_outputs(outputs)
        except SignatureError as error:
            version = f" version {self.version}" if self.version else ""
            raise InvalidRequestError(f"model '{self.name}'{version}: {error}") from error


class Model(CheckedModel):
    """A model that is called like a function; created by `Client.model`."""

    def __init__(self, client: "_Client", name: str, version: str, signature: Signature) -> None:
        super().__init__(name, version, signature)
        self._client = client

    def __call__(self, /, **inputs: Array) -> Any:
        """Returns the model's only output as an array, or a dict of arrays by name.

        Raises:
            InvalidRequestError: the inputs do not fit the signature; nothing was sent.
            ClientError: as from `Client.infer`.
        """
        return _single_or_all(self.infer(inputs))

    def infer(
        self,
        inputs: Mapping[str, Array],
        *,
        outputs: Sequence[str] = (),
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> dict[str, Array]:
        """Checks the request against the signature, and calls `Client.infer`."""
        self.check(inputs, outputs)
        return self._client.infer(
            self.name,
            inputs,
            version=self.version,
            outputs=outputs,
            timeout_s=timeout_s,
            request_id=request_id,
            bf16=self._bf16,
        )


class AsyncModel(CheckedModel):
    """Asyncio version of `Model`; created by `AsyncClient.model`."""

    def __init__(
        self, client: "_AsyncClient", name: str, version: str, signature: Signature
    ) -> None:
        super().__init__(name, version, signature)
        self._client = client

    async def __call__(self, /, **inputs: Array) -> Any:
        """Same as `Model.__call__`."""
        return _single_or_all(await self.infer(inputs))

    async def infer(
        self,
        inputs: Mapping[str, Array],
        *,
        outputs: Sequence[str] = (),
        timeout_s: float | None = None,
        request_id: str = "",
    ) -> dict[str, Array]:
        """Same as `Model.infer`."""
        self.check(inputs, outputs)
        return await self._client.infer(
            self.name,
            inputs,
            version=self.version,
            outputs=outputs,
            timeout_s=timeout_s,
            request_id=request_id,
            bf16=self._bf16,
        )


def _single_or_all(outputs: dict[str, Array]) -> Any:
    return next(iter(outputs.values())) if len(outputs) == 1 else outputs
