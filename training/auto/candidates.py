"""Selects and orders the candidates of `export: auto`, with reasons for omissions. Pure rules.

In: the contents of a model and the features of this machine. Out: candidates, the most promising
first, each with the reason if it is not to be tried.

Rules: ONNX in FP32 comes first, because it is the baseline and every host runs it; then the formats
that were fastest for such a model on such a CPU, so that a small budget is well spent; of equals
the simpler one first. Candidates known to fail or to be very slow are left out with a reason.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from model_store.artifact_kinds import ArtifactKind, exported_kinds
from model_store.host.cpu_features import BF16_FEATURES, INT8_FEATURES
from model_store.host.install_advice import install_command
from model_store.manifest import Precision
from training.recipe.kinds.export_kinds import EXPORT_KINDS, Export
from training.recipe.parts.auto_export import AutoExport
from training.recipe.parts.export_entries import QatEntry


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelContents:
    """Model properties that determine its possible exports and their benefit."""

    convolutions: bool = False
    linear: bool = False
    """True if it has linear layers or matrix products."""
    attention: bool = False
    recurrent: bool = False
    """True if it has LSTM, GRU or plain recurrent layers."""
    lstm: bool = False
    varying_length: bool = False
    """True if rows of different lengths share a batch."""
    qat: bool = False
    """True if it also has quantization-aware weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Capabilities of this machine for making and running artifacts."""

    cpu_features: frozenset[str] = frozenset()
    """CPU features as named in `model_store.host.cpu_features`."""
    packages: frozenset[str] = frozenset()
    """Installed packages, among those that some kinds require."""
    compiler: bool = False
    """True if there is a C++ compiler."""
    without_fp16: str = ""
    """Reason why FP16 cannot be made and verified here; empty if it can."""


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """One way to export the model; compared by identity."""

    entry: Export
    left_out: str | None
    """Reason why it is not to be tried; None if it is."""

    @property
    def label(self) -> str:
        """Name of the artifact, with the method if there are several."""
        method = getattr(self.entry, "method", None)
        return self.entry.name if method is None else f"{self.entry.name} {method}"


Family = int
LINEAR, CONVOLUTIONS, ATTENTION, RECURRENT = range(4)


def candidates(auto: AutoExport, model: ModelContents, machine: Machine) -> list[Candidate]:
    """Returns every export that the recipe allows.

    Args:
        auto: allowed kinds and precisions, and their settings.
        model: contents of the model.
        machine: capabilities of the machine.

    Returns:
        Candidates to try, in order, then those left out.
    """
    wanted = [
        entry
        for entry in possible_entries(auto, model)
        if entry.kind in auto.kinds and (entry.precision in auto.precisions or _is_baseline(entry))
    ]
    found = [Candidate(entry, _reason(entry, model, machine)) for entry in wanted]
    # The sort is stable: equals stay in order from simple to complex.
    return sorted(
        found, key=lambda one: (one.left_out is not None, -_prospect(one, model, machine))
    )


def possible_entries(auto: AutoExport, model: ModelContents) -> Iterator[Export]:
    """Yields all entries that may suit the model, from simple to complex."""
    for name in exported_kinds():
        for entry in EXPORT_KINDS[name].entries:
            trained_for_it = issubclass(entry, QatEntry)
            if trained_for_it and not model.qat:
                continue
            tolerance = getattr(auto.tolerance, entry.its_precision())
            tolerance = None if trained_for_it else tolerance
            yield from entry.tries(tolerance, auto.calibration_rows, model.lstm)


def simplicity(kind: ArtifactKind, precision: Precision) -> tuple[int, int]:
    """Returns a sort key for simple artifacts first: data before code, FP32 before others."""
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "int8")
    return list(EXPORT_KINDS).index(kind), precisions.index(precision)


def _family(model: ModelContents) -> Family:
    """Returns the measured network family that the model resembles most."""
    if model.recurrent:
        return RECURRENT
    if model.attention:
        return ATTENTION
    return CONVOLUTIONS if model.convolutions else LINEAR


def _prospect(candidate: Candidate, model: ModelContents, machine: Machine) -> float:
    """Returns the expected speedup over eager FP32."""
    if _is_baseline(candidate.entry):
        return float("inf")
    kind, label = EXPORT_KINDS[candidate.entry.kind], candidate.label
    found = kind.speedups.get(label, (1.0,) * 4)
    if not INT8_FEATURES & machine.cpu_features:
        found = kind.speedups_without_int8.get(label, found)
    return found[_family(model)]


def _is_baseline(entry: Export) -> bool:
    return EXPORT_KINDS[entry.kind].is_baseline and entry.precision == "fp32"


def _reason(entry: Export, model: ModelContents, machine: Machine) -> str | None:
    """Returns the first reason against an entry, or None."""
    return next(filter(None, (rule(entry, model, machine) for rule in RULES)), None)


def _not_installed(entry: Export, _: ModelContents, machine: Machine) -> str | None:
    kind = EXPORT_KINDS[entry.kind]
    for module, extra in kind.packages(entry.precision):
        if module not in machine.packages:
            return f"{module} is not installed; {install_command(extra)}"
    if kind.needs_compiler and not machine.compiler:
        return "there is no C++ compiler; install g++"
    return None


def _no_bf16(entry: Export, _: ModelContents, machine: Machine) -> str | None:
    if entry.precision == "bf16" and not BF16_FEATURES & machine.cpu_features:
        return (
            "this processor has no instructions for bfloat16 "
            f"({' or '.join(sorted(BF16_FEATURES))}); a CNN was 5 times slower than eager FP32"
        )
    return None


def _no_fp16(entry: Export, _: ModelContents, machine: Machine) -> str | None:
    return machine.without_fp16 or None if entry.precision == "fp16" else None


def _nothing_to_quantize(entry: Export, model: ModelContents, _: Machine) -> str | None:
    if entry.precision != "int8":
        return None
    if not (model.convolutions or model.linear or model.recurrent):
        return "nothing in the model becomes faster in 8 bits"
    method = getattr(entry, "method", None)
    if method == "dynamic" and model.convolutions:
        return "dynamic quantization makes convolutions 4 times slower than FP32"
    if method in ("static", "qat") and model.recurrent:
        return "recurrent layers become 8 bits wide by method: dynamic or weights alone"
    narrow_only = EXPORT_KINDS[entry.kind].quantizes_only_linear_weights
    if method == "weights" and narrow_only and not model.linear:
        return "weights alone become 8 bits wide in linear layers, and there are none"
    return None


RULES: tuple[Callable[[Export, ModelContents, Machine], str | None], ...] = (
    _not_installed,
    _no_bf16,
    _no_fp16,
    _nothing_to_quantize,
)
"""Rules that return a reason against an entry, or None."""
