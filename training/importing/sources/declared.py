"""Facts about a model that a configuration beside its file states, as Triton's does."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from flambeau.protocol.strict import nearest_name
from training.errors import SourceError
from training.importing.sources.read_tensor import ReadTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """Names, shapes and labels; empty where nothing is stated."""

    inputs: tuple[ReadTensor, ...] = ()
    """In the configuration's order."""
    outputs: tuple[str, ...] = ()
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Names of the classes by output."""


def checked_names(
    where: str, declared: Declared, inputs: Sequence[str], outputs: Sequence[str]
) -> None:
    """Compares the stated names with those of the file.

    Raises:
        SourceError: the file has no tensor of a stated name.
    """
    for what, stated, known in (
        ("input", [tensor.name for tensor in declared.inputs], inputs),
        ("output", list(declared.outputs), outputs),
    ):
        for name in stated:
            if name not in known:
                raise SourceError(
                    f"the configuration names {what} '{name}', which {where} does not have"
                    f"{nearest_name(name, known)}"
                )
