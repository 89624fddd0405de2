"""Selects the artifacts that are made from an original, automatically or by their names. Pure.

In: the kind of the original and the caller's wish. Out: entries, as in the list `export` of a
recipe, in the order in which they are made.

Rules: `auto` makes the baseline, ONNX in FP32, where the original can be converted, and the 8-bit
ONNX artifact if there are enough real rows to calibrate and judge it; an original that cannot be
converted is published as it is. Other artifacts are made only if they are named.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from flambeau.protocol.names import artifact_problem
from model_store.artifact_kinds import ArtifactKind
from training.errors import RecipeError
from training.recipe.kinds.export_kinds import EXPORT_KINDS, Export
from training.recipe.kinds.onnx_kind import OnnxExport, OnnxInt8Export
from training.recipe.parts.export_entries import QatEntry

Wish = Literal["auto"] | Sequence[str]

DERIVED: dict[str, tuple[ArtifactKind, ...]] = {
    "pt2": ("onnx", "openvino", "pt2", "aoti"),
    "onnx": ("onnx", "openvino"),
}
"""Kinds that can be made from an original of each kind; every kind can be published as it is."""
MIN_INT8_ROWS = 32
"""Real example rows from which `auto` makes 8-bit artifacts: they calibrate and judge it."""


def known_entries() -> dict[str, Export]:
    """Returns an entry with default settings for each artifact that can be made, by name."""
    found: dict[str, Export] = {}
    for name, kind in EXPORT_KINDS.items():
        for entry in kind.entries:
            if not issubclass(entry, QatEntry):
                one = entry.model_validate({"kind": name, "precision": entry.its_precision()})
                found[one.name] = one
    return found


def derived_entries(
    originals: Iterable[ArtifactKind], wish: Wish, rows: int, made_up: bool
) -> list[Export]:
    """Returns the entries to make, in order.

    Args:
        originals: kinds in which the model was brought, the best source first.
        wish: `auto`, or names of artifacts.
        rows: number of example rows.
        made_up: True if the rows were generated.

    Raises:
        RecipeError: a name is unknown, or cannot be made from these originals.
    """
    kinds = list(originals)
    if wish == "auto":
        return _automatic(kinds, rows, made_up)
    known = known_entries()
    entries = []
    for name in dict.fromkeys(wish):
        if (problem := artifact_problem([name])) is not None:
            raise RecipeError(problem)
        entry = known[name]
        if source_of(entry, kinds) is None:
            can = [n for n, one in known.items() if source_of(one, kinds) is not None]
            raise RecipeError(
                f"artifact '{name}' cannot be made from {' or '.join(kinds)}; it can be "
                f"{', '.join(can)}"
            )
        entries.append(entry)
    return entries


def source_of(entry: Export, originals: Sequence[ArtifactKind]) -> ArtifactKind | None:
    """Returns the kind of original that an artifact is made from; None if there is none."""
    if entry.precision == "fp32" and entry.kind in originals:
        return entry.kind
    return next((kind for kind in originals if entry.kind in DERIVED.get(kind, ())), None)


def _automatic(kinds: list[ArtifactKind], rows: int, made_up: bool) -> list[Export]:
    known = known_entries()
    if not any("onnx" in DERIVED.get(kind, ()) for kind in kinds):
        return [known[kind] for kind in kinds if kind in known][:1]
    if made_up or rows < MIN_INT8_ROWS:
        return [OnnxExport()]
    return [OnnxExport(), OnnxInt8Export()]
