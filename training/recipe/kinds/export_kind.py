"""The record of a kind of artifact in training: all that differs between kinds. Pure values.

To add a kind: a file here with the entries of a recipe and the record, its line in
`export_kinds.py`, its exporter in `training/exporters/`, and its records in
`model_store/artifact_kinds.py` and `services/inference/backends/served_kinds.py`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from model_store.manifest import Precision
from training.recipe.parts.export_entries import ExportEntry

Speedups = Mapping[str, tuple[float, float, float, float]]
"""Speedup over torch's eager FP32 at 32 rows, one thread, for MLP, CNN, Transformer, LSTM; by the
artifact's name, followed by the method if there are several."""


class Package(NamedTuple):
    """A package that not every installation has."""

    module: str
    extra: str
    """Extra that installs it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportKind:
    """Entries, exporter and prospects of one kind."""

    entries: tuple[type[ExportEntry], ...]
    """Classes of its entries in a recipe: one for each artifact that a version may have."""
    exporter: str
    """Module that writes and runs its files, imported when first needed; see
    `training/exporters/exporter.py`."""
    package: Package | None = None
    """Package that writes and runs it, if not part of every training."""
    quantizer: Package | None = None
    """Package that makes its 8-bit artifacts, if any."""
    needs_compiler: bool = False
    """True if a C++ compiler makes it."""
    runtime: str | None = None
    """Module that runs its files, beside torch: loaded before memory is measured."""
    runtime_of_int8: str | None = None
    """The same for 8-bit files."""
    recorded: tuple[str, ...]
    """Libraries whose versions are recorded for an artifact, by their names on PyPI."""
    speedups: Speedups
    """On Zen 4, with VNNI and BF16; FP16 is estimated. Random weights: only the order is reliable.
    `export: auto` tries the fastest first; 1 if unknown."""
    speedups_without_int8: Speedups = field(default_factory=dict)
    """Those that differ on a CPU with AVX2 only: `docs/reference/artifacts.md`."""
    is_baseline: bool = False
    """True if `export: auto` always tries it in FP32, and it is preferred where only one artifact
    can be used: every host runs it."""
    tried_by_default: bool = True
    """True if `export: auto` tries it unless a recipe lists its kinds: each run of `auto` then
    exports it, measures it, and publishes it if it is among the best. Set it False for a new kind
    until it has been measured (`speedups`), or if it only serves hosts that accept no other."""
    quantizes_only_linear_weights: bool = False
    """True if `method: weights` applies to linear layers alone."""
    one_list_of_names: bool = False
    """True if its graph has one list of names for inputs and outputs."""
    note: str = ""
    """Line that is printed once before artifacts of the kind are made."""
    triton_runtime: str = ""
    """Lines of Triton's `config.pbtxt` that name the runtime; empty if Triton cannot run it."""
    triton_by_position: bool = False
    """True if Triton identifies its tensors by position, as `NAME__0`."""

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions that it supports."""
        return tuple(dict.fromkeys(entry.its_precision() for entry in self.entries))

    def packages(self, precision: Precision) -> list[Package]:
        """Returns the packages that make and run its artifacts of a precision."""
        needed = (self.package, self.quantizer if precision == "int8" else None)
        return [package for package in needed if package is not None]
