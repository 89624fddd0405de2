"""Finds the layer where a refused artifact departs from the checkpoint.

In: a refused artifact, its recipe and weights, and the rows on which it was refused. Out: a message
with the layer, or nothing if it cannot be determined.

Forward hooks record the checkpoint's modules; the artifact's values between its operators are read
from ONNX graphs (exported once more with module names, which a published graph does not keep) and
exported programs (whose nodes carry their module). Other kinds cannot be inspected.

Rules: it runs for refused artifacts only, in a separate process with limits; if it fails, the
refusal stays as it was.
"""

import ast
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.arrays.padded_rows import shortened
from model_store.artifact_kinds import ArtifactKind
from model_store.tolerance import Tolerance
from training.errors import IsolationError
from training.exporters.export import EXAMPLE_ROWS, Exported
from training.loop.trained_model import trained_model
from training.network.model import for_export, run_model
from training.process.isolated_run import run_limited
from training.process.quiet import quiet
from training.recipe.kinds.export_kinds import Export
from training.recipe.recipe import Recipe
from training.reporting.report import ArtifactReport
from training.verification.verify import Reference

TIME_LIMIT_S = 120.0
"""Limit for explaining a refusal, which should take less time than an export."""
MAX_ROWS = 32
LEAST_SHARE = 1e-4
"""Share of a layer's largest value: a smaller difference is FP32 rounding."""
SCOPES = "pkg.torch.onnx.name_scopes"
"""Key of an exported node's metadata: its modules, outermost first, then its own name."""
DEQUANTIZED = "_DequantizeLinear_Output"
"""Suffix of ONNX Runtime's quantizer for a value that went through 8 bits and back."""

Inputs = Mapping[str, Array]
Values = dict[str, Array]
"""Output of each layer, by the module's path, in execution order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Departed:
    """The input of the process that searches."""

    recipe: Recipe
    """The recipe that builds the model."""
    weights: Path
    """Its weights, as safetensors."""
    entry: Export
    path: Path
    """The artifact's file."""
    signature: Signature
    tolerance: Tolerance
    rows: Sequence[Inputs]
    """Batches on which it may have been refused; the one with the largest difference counts."""


def was_refused(report: ArtifactReport) -> bool:
    """Returns True if an artifact ran and was refused, so that it departs somewhere."""
    return report.refusal is not None and report.size_bytes is not None


def with_departure(
    report: ArtifactReport,
    exported: Exported,
    expected: Reference,
    recipe: Recipe,
    weights: Path,
) -> ArtifactReport:
    """Adds the point of departure to the report of an artifact that ran and was refused.

    Args:
        report: the result of verification.
        exported: the artifact.
        expected: the rows it was compared on.
        recipe: the recipe that builds the model.
        weights: its weights, as safetensors.
    """
    if not was_refused(report):
        return report
    padded = expected.padded
    found = departs_at(
        Departed(
            recipe=recipe,
            weights=weights,
            entry=exported.entry,
            path=exported.path,
            signature=expected.signature,
            tolerance=report.tolerance,
            rows=[
                expected.golden_inputs,
                *(inputs for inputs, _ in expected.sized),
                *((padded.alone[0], *(b for _, b in padded.batches)) if padded else ()),
                expected.test.inputs,
            ],
        ),
    )
    if found is None:
        return report
    refusal = f"{report.refusal}; it departs at {found}"
    return report.model_copy(update={"departs_at": found, "refusal": refusal})


def departs_at(case: Departed) -> str | None:
    """Returns the point of departure, such as `layer 'blocks.2.conv' (largest difference ...)`.

    Args:
        case: the refused artifact; its process may take `TIME_LIMIT_S` at most.

    Returns:
        None for kinds that cannot be inspected, and whenever it cannot be determined.
    """
    if case.entry.kind not in READERS:
        return None
    limits = case.recipe.export_limits
    try:
        return run_limited(
            find_departure,
            case,
            limits=limits,
            time_limit_s=min(limits.time_s, TIME_LIMIT_S),
        )
    except IsolationError:
        return None


def find_departure(case: Departed) -> str | None:
    """Finds the departure in the calling process; raises any error of the runtimes."""
    torch.set_num_threads(1)
    module = trained_model(case.recipe, case.weights, [spec.name for spec in case.signature.inputs])
    twin = for_export(module)
    inside = READERS[case.entry.kind](twin, case)
    worst: tuple[float, Values, Values] | None = None
    for batch in case.rows:
        rows = {name: array[:MAX_ROWS] for name, array in batch.items()}
        arguments = [rows[spec.name] for spec in case.signature.inputs]
        right = [*run_model(module, arguments).values()]
        inner = watched(twin, arguments)
        outputs, found = inside(rows)
        gap = max(_gap(a, b)[0] for a, b in zip(right, outputs, strict=True))
        if worst is None or gap > worst[0]:
            scale = max(float(np.abs(array).max()) for array in right)
            worst, output_scale = (gap, inner, found), scale
    if worst is None or worst[0] <= case.tolerance.max_abs_difference:
        return None
    gap, inner, found = worst
    output_scale = max(output_scale, 1e-12)
    share = max(case.tolerance.max_abs_difference / output_scale, LEAST_SHARE)
    if gap / output_scale <= share:  # only rounding differs, from the first layer on
        return None
    return first_departure(inner, found, share)


def first_departure(right: Values, found: Values, share: float) -> str | None:
    """Returns the layer after the last one that agrees.

    Not the first that differs: a graph may fold one layer into the next, whose value then has the
    first one's name.

    Args:
        right: outputs of the checkpoint's layers, in execution order.
        found: outputs of the artifact's layers; those of another shape are left out.
        share: the accepted difference, as a share of a layer's largest value.
    """
    layers = [
        (name, *_gap(array, found[name]))
        for name, array in right.items()
        if name in found and found[name].shape == array.shape and array.size
    ]
    if not layers:
        return None
    agreeing = [place for place, (_, _, off) in enumerate(layers) if off <= share]
    before = agreeing[-1] if agreeing else -1
    if before + 1 == len(layers):
        return f"what follows the last layer that agrees, '{layers[before][0]}'"
    name, difference, _ = layers[before + 1]
    text = f"layer '{name}' (largest difference {difference:.2g}"
    if before < 0:
        return f"{text}, the first layer that can be compared)"
    return f"{text}, {layers[before][1]:.2g} at '{layers[before][0]}' before it)"


def watched(module: nn.Module, arguments: list[Array]) -> Values:
    """Returns the output of each layer, by its path, in completion order; of the first call."""
    values: Values = {}

    def keep(name: str) -> Any:
        def hook(_: nn.Module, __: object, output: object) -> None:
            tensor = output[0] if isinstance(output, tuple | list) and output else output
            if isinstance(tensor, Tensor) and name not in values:
                values[name] = tensor.detach().float().numpy().copy()

        return hook

    handles = [
        child.register_forward_hook(keep(name)) for name, child in module.named_modules() if name
    ]
    try:
        run_model(module, arguments)
    finally:
        for handle in handles:
            handle.remove()
    return values


def _onnx(twin: nn.Module, case: Departed) -> Any:
    """Returns a function that runs an ONNX artifact with its inner values as outputs too."""
    import onnx
    import onnxruntime

    names = _scoped_values(twin, case)
    document = onnx.load(case.path)
    there = {value for node in document.graph.node for value in node.output}
    outputs = [spec.name for spec in case.signature.outputs]
    # 8-bit values take precedence: their clipping may replace a whole Relu.
    names = {n: value + DEQUANTIZED if value + DEQUANTIZED in there else value
             for n, value in names.items()}  # fmt: skip
    names = {layer: value for layer, value in names.items() if value in there}
    added = [value for value in dict.fromkeys(names.values()) if value not in outputs]
    document.graph.output.extend(onnx.ValueInfoProto(name=value) for value in added)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(
        document.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )

    def run(rows: Inputs) -> tuple[list[Array], Values]:
        values = dict(
            zip([*outputs, *added], session.run([*outputs, *added], dict(rows)), strict=True)
        )
        found = {layer: values[value] for layer, value in names.items()}
        return [values[name] for name in outputs], found

    return run


def _scoped_values(twin: nn.Module, case: Departed) -> dict[str, str]:
    """Returns the value of each module's last node in the graph that artifacts are made of."""
    import onnx

    from training.exporters.onnx_graph import export_onnx

    short = shortened(case.rows[0], case.signature)
    example = tuple(torch.from_numpy(short[s.name][:EXAMPLE_ROWS]) for s in case.signature.inputs)
    with tempfile.TemporaryDirectory(prefix="flambeau-departure-") as folder, quiet():
        path = Path(folder) / "scoped.onnx"
        export_onnx(twin, example, case.signature, path, with_scopes=True)
        document = onnx.load(path)
    found: dict[str, str] = {}
    for node in document.graph.node:
        scopes = next((prop.value for prop in node.metadata_props if prop.key == SCOPES), "[]")
        for scope in ast.literal_eval(scopes)[:-1]:
            if scope and node.output:
                found[scope] = node.output[0]
    return found


def _exported_program(_: nn.Module, case: Departed) -> Any:
    """Returns a function that runs an exported program node by node."""
    if case.entry.precision == "int8":
        import torchao.quantization.pt2e  # noqa: F401 - it registers the operators
    module = torch.export.load(case.path).module()
    assert isinstance(module, torch.fx.GraphModule), "an exported program is a graph"

    def run(rows: Inputs) -> tuple[list[Array], Values]:
        recorder = _Recorder(module)
        arguments = [torch.from_numpy(np.array(rows[s.name])) for s in case.signature.inputs]
        with torch.inference_mode():
            outputs = recorder.run(*arguments)
        listed = [outputs] if isinstance(outputs, Tensor) else list(outputs)
        return [tensor.float().numpy() for tensor in listed], recorder.values

    return run


READERS: dict[ArtifactKind, Callable[[nn.Module, Departed], Any]] = {
    "onnx": _onnx,
    "pt2": _exported_program,
}
"""Kinds whose inner values can be read, and the function that does; others have no departure."""


class _Recorder(torch.fx.Interpreter):
    """Records the output of the last node of each module."""

    def __init__(self, module: torch.fx.GraphModule) -> None:
        super().__init__(module)
        self.values: Values = {}

    def run_node(self, n: torch.fx.Node) -> Any:
        """Runs one node."""
        result = super().run_node(n)
        if n.op.startswith("call") and isinstance(result, Tensor):
            for path, _ in n.meta.get("nn_module_stack", {}).values():
                # A bfloat16 program wraps the model in another that converts.
                if name := path.removeprefix("_model").removeprefix("."):
                    self.values[name] = result.detach().float().numpy().copy()
        return result


def _gap(right: Array, found: Array) -> tuple[float, float]:
    """Returns the largest difference, and its share of the largest value; inf without numbers."""
    if right.shape != found.shape:
        return float("inf"), float("inf")
    a, b = right.astype(np.float64), found.astype(np.float64)
    gap = float(np.abs(a - b).max()) if a.size else 0.0
    if not np.isfinite(gap):
        return float("inf"), float("inf")
    return gap, gap / max(float(np.abs(a).max()), 1e-12)
