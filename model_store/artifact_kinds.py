"""Kinds of artifact: the facts that the store, training and serving share. Pure rules.

A kind has one record here, one in `services/inference/backends/served_kinds.py` and, if training
makes it, one in `training/recipe/kinds/`. Nothing else switches on the name of a kind.

Rule: the order is from simple to complex, data before code; of equal artifacts the first is kept.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, WithJsonSchema
from pydantic_core import PydanticKnownError

from model_store.safety.archive_sizes import check_archive
from model_store.safety.onnx_safety import check_onnx


def _is_plain(data: bytes, where: str) -> None:
    """Accepts any file: its runtime reads it as data."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredKind:
    """Files of one kind of artifact."""

    suffix: str
    """Suffix of its file."""
    weights_suffix: str | None = None
    """Suffix of the second file, if the kind has two: in place of `suffix`."""
    is_code: bool = False
    """True if it can run code at load; such a kind loads only from a local store or with a trusted
    signature."""
    is_exported: bool = True
    """True if training makes it of a network; False if users bring it as it is."""
    has_class: bool = False
    """True if its file is the source of a class, which `Artifact.python` describes."""
    check: Callable[[bytes, str], None] = _is_plain
    """Checks the bytes of a file, given its name for messages, before a runtime reads them; raises
    `StoreError`."""


STORED_KINDS: dict[str, StoredKind] = {
    "onnx": StoredKind(suffix="onnx", check=check_onnx),
    "openvino": StoredKind(suffix="xml", weights_suffix="bin"),
    "pt2": StoredKind(suffix="pt2", is_code=True, check=check_archive),
    "aoti": StoredKind(suffix="aoti.pt2", is_code=True, check=check_archive),
    "torchscript": StoredKind(suffix="pt", is_code=True, check=check_archive),
    "python": StoredKind(suffix="py", is_code=True, is_exported=False, has_class=True),
}


def exported_kinds() -> list[str]:
    """Returns the names of the kinds that training makes, in order."""
    return [name for name, kind in STORED_KINDS.items() if kind.is_exported]


def _known(name: str) -> str:
    return _one_of(name, list(STORED_KINDS))


def _exported(name: str) -> str:
    return _one_of(name, exported_kinds())


def _one_of(name: str, known: list[str]) -> str:
    if name not in known:
        *names, last = (f"'{one}'" for one in known)
        raise PydanticKnownError("literal_error", {"expected": f"{', '.join(names)} or {last}"})
    return name


ArtifactKind = Annotated[
    str, AfterValidator(_known), WithJsonSchema({"enum": [*STORED_KINDS], "type": "string"})
]
"""Name of a kind in `STORED_KINDS`."""

ExportedArtifactKind = Annotated[
    str, AfterValidator(_exported), WithJsonSchema({"enum": exported_kinds(), "type": "string"})
]
"""Name of a kind that training makes."""
