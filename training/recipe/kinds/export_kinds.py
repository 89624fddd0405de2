"""The table of the kinds that training makes, and `Export`: an entry of a recipe of any kind.

Rule: the order is that of `STORED_KINDS`, from simple to complex.
"""

import functools
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import ValidatorFunctionWrapHandler, WrapValidator

from flambeau.protocol.strict import nearest_name
from model_store.artifact_kinds import STORED_KINDS, exported_kinds
from training.recipe.kinds.aoti_kind import AOTI
from training.recipe.kinds.export_kind import ExportKind
from training.recipe.kinds.onnx_kind import ONNX
from training.recipe.kinds.openvino_kind import OPENVINO
from training.recipe.kinds.pt2_kind import PT2
from training.recipe.kinds.python_kind import PYTHON
from training.recipe.kinds.torchscript_kind import TORCHSCRIPT
from training.recipe.parts.export_entries import ExportEntry, QatEntry

EXPORT_KINDS: dict[str, ExportKind] = {
    "onnx": ONNX,
    "openvino": OPENVINO,
    "pt2": PT2,
    "aoti": AOTI,
    "torchscript": TORCHSCRIPT,
    "python": PYTHON,
}


def notes(entries: Sequence[ExportEntry]) -> list[str]:
    """Returns the notes of the entries' kinds, once each."""
    found = (EXPORT_KINDS[entry.kind].note for entry in entries)
    return [note for note in dict.fromkeys(found) if note]


def _read_entry(value: object, _: ValidatorFunctionWrapHandler) -> ExportEntry:
    """Validates an entry as the class of its kind, precision and method.

    The entry itself decides, so that an error never mentions the other classes.
    """
    if isinstance(value, ExportEntry):
        return value
    if not isinstance(value, dict):
        raise ValueError("write a mapping, as in {kind: onnx}")
    if "kind" not in value:
        raise ValueError(f"it has no kind; give one of {', '.join(exported_kinds())}")
    name, precision = str(value["kind"]), str(value.get("precision", "fp32"))
    kind = EXPORT_KINDS.get(name)
    if kind is None or not STORED_KINDS[name].is_exported:
        raise ValueError(f"no kind '{name}'{nearest_name(name, exported_kinds())}")
    if precision not in kind.precisions:
        raise ValueError(
            f"kind {name} has no precision '{precision}'; it has {', '.join(kind.precisions)}"
        )
    is_qat = value.get("method") == "qat"
    for entry in kind.entries:
        if entry.its_precision() == precision and issubclass(entry, QatEntry) == is_qat:
            return entry.model_validate(value)
    raise ValueError("method: qat is for kind pt2 or aoti with precision int8")


if TYPE_CHECKING:
    Export = ExportEntry
else:
    _ENTRIES = [entry for name in exported_kinds() for entry in EXPORT_KINDS[name].entries]
    Export = Annotated[functools.reduce(operator.or_, _ENTRIES), WrapValidator(_read_entry)]
    """An entry of the list `export`."""
