"""Selects and orders the candidates of `export: auto`, with reasons for omissions. Pure rules.

In: the contents of a model and the features of this machine. Out: candidates, the most promising
first, each with the reason if it is not to be tried.

Rules: ONNX in FP32 comes first, because it is the baseline and every host runs it; then the formats
that were fastest for such a model on such a CPU, so that a small budget is well spent; of equals
the simpler one first. Candidates known to fail or to be very slow are left out with a reason.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from model_store.host.cpu_features import BF16_FEATURES, INT8_FEATURES
from model_store.host.install_advice import install_command
from model_store.manifest import ArtifactKind, Precision
from training.recipe.parts.auto_export import AutoExport
from training.recipe.parts.export_entries import (
    AotiBf16Export,
    AotiExport,
    AotiInt8Export,
    AotiQatExport,
    Export,
    OnnxExport,
    OnnxFp16Export,
    OnnxInt8Export,
    OpenVinoBf16Export,
    OpenVinoExport,
    OpenVinoInt8Export,
    Pt2Bf16Export,
    Pt2Export,
    Pt2Int8Export,
    Pt2QatExport,
    TorchScriptExport,
)

PACKAGES: dict[ArtifactKind, str] = {"openvino": "openvino"}
"""Package required to make and verify a kind."""
OF_8_BITS: dict[ArtifactKind, str] = {"openvino": "nncf", "pt2": "torchao", "aoti": "torchao"}
"""Package that quantizes for a kind."""


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

# Speedup over torch's eager FP32 at 32 rows, one thread: MLP, CNN, Transformer, LSTM.
WITH_8_BIT_STEPS: dict[str, tuple[float, float, float, float]] = {
    "onnx-int8 static": (5.8, 5.7, 2.3, 1.0),
    "onnx-int8 dynamic": (5.9, 0.4, 2.7, 3.2),
    "onnx-fp16": (3.0, 3.0, 3.0, 3.0),
    "openvino": (1.3, 1.9, 1.1, 1.4),
    "openvino-bf16": (2.8, 3.9, 2.2, 1.4),
    "openvino-int8 static": (5.6, 7.3, 3.4, 1.0),
    "openvino-int8 weights": (1.3, 1.9, 2.0, 1.4),
    "pt2": (0.8, 1.1, 0.9, 0.7),
    "pt2-bf16": (2.1, 2.2, 1.9, 0.9),
    "pt2-int8 static": (0.7, 0.8, 0.4, 0.4),
    "pt2-int8 weights": (0.7, 0.7, 0.7, 0.7),
    "pt2-int8-qat qat": (0.7, 0.8, 0.4, 0.4),
    "aoti": (1.2, 1.6, 1.0, 1.6),
    "aoti-bf16": (2.7, 3.7, 2.0, 1.0),
    "aoti-int8 static": (3.6, 7.2, 3.2, 1.0),
    "aoti-int8 weights": (0.6, 0.6, 0.6, 0.6),
    "aoti-int8-qat qat": (3.6, 7.2, 3.2, 1.0),
}
"""Zen 4, with VNNI and BF16; FP16 is estimated. Random weights: only the order is reliable."""
WITHOUT = WITH_8_BIT_STEPS | {
    "onnx-int8 static": (9.2, 2.3, 0.9, 1.0),
    "onnx-int8 dynamic": (9.0, 0.4, 1.0, 4.8),
    "openvino": (1.0, 1.7, 1.2, 1.0),
    "openvino-int8 static": (1.0, 2.7, 0.8, 1.0),
    "openvino-int8 weights": (1.0, 1.7, 1.1, 1.0),
    "pt2-int8 static": (0.2, 0.8, 0.4, 0.2),
    "pt2-int8-qat qat": (0.2, 0.8, 0.4, 0.2),
    "aoti": (2.1, 1.5, 1.4, 1.6),
    "aoti-int8 static": (1.3, 1.1, 1.2, 1.0),
    "aoti-int8-qat qat": (1.3, 1.1, 1.2, 1.0),
}
"""CPU with AVX2 only: `docs/reference/artifacts.md`."""


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
        if entry.kind in auto.kinds
        and (entry.precision in auto.precisions or isinstance(entry, OnnxExport))
    ]
    found = [Candidate(entry, _reason(entry, model, machine)) for entry in wanted]
    # The sort is stable: equals stay in order from simple to complex.
    return sorted(
        found, key=lambda one: (one.left_out is not None, -_prospect(one, model, machine))
    )


def possible_entries(auto: AutoExport, model: ModelContents) -> Iterator[Export]:
    """Yields all entries that may suit the model, from simple to complex."""
    fp32, bf16, int8 = auto.tolerance.fp32, auto.tolerance.bf16, auto.tolerance.int8
    rows = auto.calibration_rows
    yield OnnxExport(tolerance=fp32)
    yield OpenVinoExport(tolerance=fp32)
    yield OnnxInt8Export(tolerance=int8, calibration_rows=rows)
    yield OnnxInt8Export(
        method="dynamic",
        op_types=("Gemm", "LSTM", "MatMul") if model.lstm else ("Gemm", "MatMul"),
        tolerance=int8,
        calibration_rows=rows,
    )
    yield OnnxFp16Export(tolerance=auto.tolerance.fp16)
    yield OpenVinoBf16Export(tolerance=bf16)
    yield OpenVinoInt8Export(tolerance=int8, calibration_rows=rows)
    yield OpenVinoInt8Export(method="weights", tolerance=int8, calibration_rows=rows)
    yield AotiExport(tolerance=fp32)
    yield AotiBf16Export(tolerance=bf16)
    yield AotiInt8Export(tolerance=int8, calibration_rows=rows)
    yield AotiInt8Export(method="weights", tolerance=int8)
    yield Pt2Export(tolerance=fp32)
    yield Pt2Bf16Export(tolerance=bf16)
    yield Pt2Int8Export(tolerance=int8, calibration_rows=rows)
    yield Pt2Int8Export(method="weights", tolerance=int8)
    if model.qat:
        yield AotiQatExport()
        yield Pt2QatExport()
    yield TorchScriptExport(tolerance=fp32)
    yield TorchScriptExport(method="script", tolerance=fp32)


def simplicity(kind: ArtifactKind, precision: Precision) -> tuple[int, int]:
    """Returns a sort key for simple artifacts first: data before code, FP32 before others."""
    kinds: tuple[ArtifactKind, ...] = ("onnx", "openvino", "pt2", "aoti", "torchscript")
    precisions: tuple[Precision, ...] = ("fp32", "bf16", "fp16", "int8")
    return kinds.index(kind), precisions.index(precision)


def _family(model: ModelContents) -> Family:
    """Returns the measured network family that the model resembles most."""
    if model.recurrent:
        return RECURRENT
    if model.attention:
        return ATTENTION
    return CONVOLUTIONS if model.convolutions else LINEAR


def _prospect(candidate: Candidate, model: ModelContents, machine: Machine) -> float:
    """Returns the expected speedup over eager FP32."""
    if isinstance(candidate.entry, OnnxExport):
        return float("inf")
    table = WITH_8_BIT_STEPS if INT8_FEATURES & machine.cpu_features else WITHOUT
    return table.get(candidate.label, (1.0,) * 4)[_family(model)]


def _reason(entry: Export, model: ModelContents, machine: Machine) -> str | None:
    """Returns the first reason against an entry, or None."""
    return next(filter(None, (rule(entry, model, machine) for rule in RULES)), None)


def _not_installed(entry: Export, _: ModelContents, machine: Machine) -> str | None:
    needed = [PACKAGES.get(entry.kind), OF_8_BITS.get(entry.kind)]
    for package in needed if entry.precision == "int8" else needed[:1]:
        if package is not None and package not in machine.packages:
            extra = "train" if package == "torchao" else "openvino-train"
            return f"{package} is not installed; {install_command(extra)}"
    if entry.kind == "aoti" and not machine.compiler:
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
    if method == "weights" and entry.kind != "openvino" and not model.linear:
        return "weights alone become 8 bits wide in linear layers, and there are none"
    return None


RULES: tuple[Callable[[Export, ModelContents, Machine], str | None], ...] = (
    _not_installed,
    _no_bf16,
    _no_fp16,
    _nothing_to_quantize,
)
"""Rules that return a reason against an entry, or None."""
