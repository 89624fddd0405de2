"""Verifies artifacts: replays them against the checkpoint and measures them.

In: the trained model, the exported files and the test split. Out: a report, with a refusal and its
reason for every artifact that exceeds its tolerance.

Rules: the exact file that is published is run; the golden rows are replayed at several batch
sizes and the whole test split once more, and the worst result counts; a model whose rows are padded
gives each golden row its output without padding; one with dynamic axes is run at its smallest, its
largest and sizes between; outputs have the sizes that the signature says; the same rows give the
same bits twice; the task metric does not fall; figures are single-threaded; memory is the peak of
opening the file and running one large batch.
"""

import contextlib
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import nn

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.arrays.golden_replay import (
    gives_the_same_twice,
    replay_everything,
    replay_in_batches,
    replay_padded,
    replay_sized,
    run_in_batches,
    sized_inputs,
)
from model_store.arrays.padded_rows import PaddedRows, padded_rows
from model_store.arrays.parity import Comparison, Parity, compare_rows, first_failure, worst
from model_store.gate_figures import GateFigure, gate_values
from model_store.gates import Gate, OwnGate
from model_store.golden import GoldenRows
from model_store.host.peak_memory import PeakMemory
from model_store.metric import MeasuredMetric
from model_store.tolerance import NO_GATES, Tolerance
from training.errors import IsolationError, TargetError
from training.exporters.export import Exported
from training.loading.splits import Split
from training.loop.loop import Trained
from training.loop.trained_model import trained_model
from training.metrics.task_metric import TaskMetric
from training.network.network_trial import row_fault
from training.network.row_dependence import ADVICE, depends_on_others, rows_alone
from training.network.runner import Runner, module_runner
from training.process.isolated_run import run_limited
from training.process.root_cause import root_cause
from training.recipe.kinds.export_kinds import Export
from training.recipe.parts.task import OUTPUTS
from training.recipe.recipe import ExportLimits, Recipe
from training.reporting.report import ArtifactReport, CheckpointReport
from training.verification.gate import tolerance_of, too_far_off, too_much_worse
from training.verification.output_gates import (
    default_gates,
    gated_tolerance,
    judged_by_function,
)
from training.verification.runners import file_runner, load_libraries, of_stated_sizes

LATENCY_BATCH_SIZES = (1, 8, 32)
MIN_WARM_UP_RUNS, MAX_WARM_UP_RUNS = 2, 10
"""TorchScript optimises during its first runs."""
MIN_TIMED_RUNS, MAX_TIMED_RUNS = 3, 300
MAX_SECONDS = 0.2
"""For warm-up, and again for timing; a slower model runs the minimum number of times."""

Clock = Callable[[], float]
"""Seconds, from an arbitrary start."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """The checkpoint's own outputs, with which every artifact is compared."""

    signature: Signature
    golden_inputs: dict[str, Array]
    golden_outputs: dict[str, Array]
    test: Split
    test_outputs: dict[str, Array]
    metric: TaskMetric = field(default_factory=TaskMetric)
    """Evaluates the outputs."""
    padded: PaddedRows | None = None
    """The golden rows alone and padded, for a model with `padding`."""
    single_outputs: dict[str, Array] = field(default_factory=dict)
    """The outputs of the first golden rows, each in a batch of its own."""
    alone_outputs: list[dict[str, Array]] = field(default_factory=list)
    """The outputs of each row alone, [1, ...]."""
    embeddings: tuple[str, ...] = ()
    """Outputs that are compared by their cosine."""
    sized: list[tuple[dict[str, Array], dict[str, Array]]] = field(default_factory=list)
    """Some rows at other sizes and their outputs, for a model whose axes vary."""
    gates: Mapping[str, Gate | OwnGate] | None = None
    """Gates that the user gave, for a model that was brought: each of its outputs gets one. None
    for a model that was trained, which its recipe's limits judge."""

    @property
    def golden(self) -> GoldenRows:
        """The golden rows."""
        return GoldenRows(self.golden_inputs, self.golden_outputs)


def reference(
    trained: Trained,
    test: Split,
    metric: TaskMetric | None = None,
    embeddings: tuple[str, ...] = (),
) -> tuple[Reference, MeasuredMetric]:
    """Runs the checkpoint on held-out rows, and evaluates its outputs.

    Args:
        trained: the model.
        test: rows used neither in training nor for choosing the epoch; the first become golden.
        metric: evaluates the outputs; None for that of classes.
        embeddings: outputs that are compared by their cosine.

    Raises:
        SignatureError: padding has no effect on the golden rows.
        TargetError: the model's outputs are not finite, or not one for each row.
    """
    run = module_runner(trained.model, trained.signature)
    golden = test.golden_inputs()
    padded = None if trained.signature.padding is None else padded_rows(golden, trained.signature)
    with _one_thread():
        outputs = run_in_batches(run, test.inputs, trained.signature.max_batch_size)
        found = Reference(
            signature=trained.signature,
            golden_inputs=golden,
            golden_outputs=run(golden),
            test=test,
            test_outputs=outputs,
            metric=metric or TaskMetric(),
            embeddings=embeddings,
            padded=padded,
            single_outputs=rows_alone(run, golden),
            alone_outputs=[] if padded is None else [run(inputs) for inputs in padded.alone],
            sized=[(inputs, run(inputs)) for inputs in sized_inputs(golden, trained.signature)],
        )
        _check_rows(found)
        measured = _measured(found, outputs)
        if measured is None:
            raise TargetError(
                "the trained model's outputs for the test split are not numbers, so no artifact "
                "can be verified against them; train it with a lower learning rate, or for fewer "
                "epochs"
            )
    return found, measured


def _check_rows(found: Reference) -> None:
    """Checks that the trained network gives an output for each row, on more rows than before."""
    rows = len(next(iter(found.golden_inputs.values())))
    for name, array in found.golden_outputs.items():
        if fault := row_fault({rows: array.shape}):
            raise TargetError(f"the trained network gives output '{name}' {fault}")


def checkpoint_report(
    recipe: Recipe, trained: Trained, expected: Reference, metric: MeasuredMetric
) -> CheckpointReport:
    """Reports on the checkpoint, for comparison with the artifacts.

    The checkpoint is timed in a separate process, as they are: earlier work of a process decides
    the layout of its memory, and with it a large batch takes from one to two times as long.

    Args:
        recipe: the recipe that builds the model, with the limits.
        trained: its weights.
        expected: the rows.
        metric: the metric on the test split.
    """
    limits = recipe.export_limits
    try:
        latency_ms = run_limited(
            _build_and_time,
            recipe,
            trained.weights,
            expected,
            limits=limits,
        )
    except IsolationError:  # limits of exports must not end a training
        latency_ms = _time(trained.model, expected)
    size_bytes = trained.weights.stat().st_size
    return CheckpointReport(size_bytes=size_bytes, metric=metric, latency_ms=latency_ms)


def _build_and_time(recipe: Recipe, weights: Path, expected: Reference) -> dict[int, float]:
    names = [spec.name for spec in expected.signature.inputs]
    return _time(trained_model(recipe, weights, names), expected)


def _time(model: nn.Module, expected: Reference) -> dict[int, float]:
    with _one_thread():
        return _latency_ms(module_runner(model, expected.signature), expected)


def verify_apart(
    exported: Exported,
    expected: Reference,
    limits: ExportLimits,
    time_limit_s: float | None = None,
) -> ArtifactReport:
    """Runs `verify` in a separate process: a runtime may crash on its input.

    Args:
        exported: the file, or the reason for its absence.
        expected: the checkpoint's outputs.
        limits: limits of the process.
        time_limit_s: seconds that it may take, in place of the limits' own.
    """
    if exported.failure is not None:
        return _unmeasured(exported, expected, exported.failure)
    try:
        return run_limited(
            verify,
            exported,
            expected,
            limits=limits,
            time_limit_s=time_limit_s,
        )
    except IsolationError as error:
        return _unmeasured(exported, expected, f"does not run: {error}")


def verify(exported: Exported, expected: Reference) -> ArtifactReport:
    """Verifies one artifact, or reports why it is refused.

    Args:
        exported: the file, or the reason for its absence.
        expected: the checkpoint's outputs.
    """
    unmeasured, entry = _unmeasured(exported, expected, exported.failure), exported.entry
    if exported.failure is not None:
        return unmeasured
    asked: list[GateFigure] = []
    unlike: list[str] = []  # sizes that the signature does not say
    with _one_thread():
        try:
            opened, peak_memory_bytes = _open(exported, expected)
            run = of_stated_sizes(opened, expected.signature, unlike.append)
            if own_gates(expected):
                unmeasured, asked = _by_functions(run, unmeasured, expected)
            tolerance = unmeasured.tolerance
            compared, outputs = replay(run, expected, tolerance.single_gates)
            largest = expected.signature.max_batch_size
            repeats = gives_the_same_twice(run, expected.golden, largest)
            latency_ms = _latency_ms(opened, expected, _clock_of(exported))
        except Exception as error:  # a runtime may raise anything on a file it cannot run
            return unmeasured.model_copy(update={"refusal": f"does not run: {root_cause(error)}"})
    parity = worst([comparison.parity for comparison in compared])
    figures = (*parity.figures, *asked)
    metric, labels = expected.metric, expected.test.labels
    judged = expected.signature.outputs[0].name
    before, after = _measured(expected, expected.test_outputs), _measured(expected, outputs)
    failure, mixes = first_failure(compared, tolerance), None
    if failure is not None:
        outputs_together, outputs_alone = expected.golden_outputs, expected.single_outputs
        mixes = depends_on_others(outputs_together, outputs_alone, tolerance)
    return unmeasured.model_copy(
        update={
            "size_bytes": sum(path.stat().st_size for path in exported.paths()),
            # JSON has no infinity.
            "max_abs_difference": _finite_or_none(_largest_difference(parity, tolerance)),
            **_of_classes(parity, metric, tolerance),
            "cosine": parity.cosine(expected.embeddings),
            "gates": gate_values(figures, tolerance.gates),
            "metric": after,
            "latency_ms": latency_ms,
            "peak_memory_bytes": peak_memory_bytes,
            "mixes_rows": mixes is not None,
            "refusal": (f"{failure}; {mixes}; {ADVICE}" if mixes else failure)
            or next(iter(unlike), None)
            or (None if repeats else "two runs of the same rows gave different numbers")
            or next((figure.text() for figure in asked if not figure.holds), None)
            or (
                None
                if judged in tolerance.single_gates
                else too_far_off(
                    entry, metric, labels, expected.test_outputs[judged], outputs[judged]
                )
            )
            or (None if metric.task == OUTPUTS else too_much_worse(before, after, entry, labels)),
        }
    )


def _clock_of(exported: Exported) -> Clock:
    on_gpu = exported.made_with.device == "cuda"  # thread time does not include a GPU's work
    return time.perf_counter if on_gpu else time.thread_time


def latency_apart(
    exported: Exported, expected: Reference, limits: ExportLimits
) -> dict[int, float]:
    """Measures median milliseconds of one run again, by batch size, in a separate process.

    Raises:
        IsolationError: it no longer runs.
    """
    return run_limited(
        _open_and_time,
        exported,
        expected,
        limits=limits,
    )


def _open_and_time(exported: Exported, expected: Reference) -> dict[int, float]:
    with _one_thread():
        run, _ = _open(exported, expected)
        return _latency_ms(run, expected)


def _open(exported: Exported, expected: Reference) -> tuple[Runner, int | None]:
    """Opens the artifact; returns it with the peak growth of opening and one large batch.

    The batch has all golden rows, or as many as the model allows. The libraries are loaded before:
    a server loads them once for all its models.
    """
    entry = exported.entry
    load_libraries(entry.kind, entry.precision)
    memory = PeakMemory()
    run = file_runner(entry.kind, entry.precision, exported.path, expected.signature)
    rows = expected.signature.max_batch_size
    run({name: array[:rows] for name, array in expected.golden_inputs.items()})
    return run, memory.grown_bytes()


def _by_functions(
    run: Runner, report: ArtifactReport, expected: Reference
) -> tuple[ArtifactReport, list[GateFigure]]:
    """Asks the user's functions about an artifact's outputs for all examples.

    Returns:
        The report with the numeric gates that were measured, and the functions' figures.
    """
    outputs = run_in_batches(run, expected.test.inputs, expected.signature.max_batch_size)
    gates, figures = dict(report.tolerance.gates), []
    for name, gate in own_gates(expected).items():
        right, found = expected.test_outputs[name], outputs[name]
        gates[name], figure = judged_by_function(name, gate, right, found)
        figures.append(figure)
    tolerance = report.tolerance.model_copy(update={"gates": gates})
    return report.model_copy(update={"tolerance": tolerance}), figures


def own_gates(expected: Reference) -> dict[str, OwnGate]:
    """Returns the gates that are functions of the user's."""
    gates = expected.gates or {}
    return {name: gate for name, gate in gates.items() if isinstance(gate, OwnGate)}


def _largest_difference(parity: Parity, tolerance: Tolerance) -> float:
    gated = [
        figure.value
        for figure in parity.figures
        if figure.measure == "absolute" and figure.output in tolerance.gates
    ]
    return max(parity.max_abs_difference, *gated, 0.0)


def _of_classes(parity: Parity, metric: TaskMetric, tolerance: Tolerance) -> dict[str, float]:
    """Returns the figures of outputs about classes only."""
    if metric.task != "classes" or tolerance.gates:
        return {}
    return {
        "agreement": parity.agreement,
        "max_probability_shift": parity.max_probability_shift,
    }


def _unmeasured(exported: Exported, expected: Reference, refusal: str | None) -> ArtifactReport:
    entry = exported.entry
    return ArtifactReport(
        name=entry.name,
        kind=entry.kind,
        precision=entry.precision,
        method=getattr(entry, "method", None),
        file=entry.file,
        weights_file=entry.weights_file,
        made_with=exported.made_with,
        tolerance=_tolerance(entry, expected),
        refusal=refusal,
    )


def _tolerance(entry: Export, expected: Reference) -> Tolerance:
    first, metric = expected.signature.outputs[0].name, expected.metric
    if expected.gates is None:
        labels, answers = expected.test.labels, expected.test_outputs[first]
        return tolerance_of(entry, metric, labels, answers, expected.embeddings)
    classes = {*expected.signature.labels, *([first] if metric.task == "classes" else [])}
    gates = default_gates(expected.test_outputs, entry.tolerance, classes)
    told = {name: gate for name, gate in expected.gates.items() if isinstance(gate, Gate)}
    return gated_tolerance(gates | told)


def replay(
    run: Runner, expected: Reference, gates: Mapping[str, Gate] = NO_GATES
) -> tuple[list[Comparison], dict[str, Array]]:
    """Compares a runner with the checkpoint: golden rows in every form, and the test split.

    Of a model that was brought, only the outputs for its examples are known, as on a server.

    Args:
        run: the runner.
        expected: the checkpoint's outputs.
        gates: limits of the outputs that are judged by themselves.

    Returns:
        All comparisons, and the outputs of the whole test split.
    """
    largest = expected.signature.max_batch_size
    outputs = run_in_batches(run, expected.test.inputs, largest)
    where = "the test split" if expected.gates is None else "all examples"
    of_all = compare_rows(where, expected.test_outputs, outputs, gates)
    if expected.gates is not None:
        in_batches = partial(run_in_batches, run, size=largest)
        return [
            *replay_everything(run, expected.golden, expected.signature, gates),
            *replay_sized(in_batches, expected.sized, gates),
            of_all,
        ], outputs
    found = replay_in_batches(run, expected.golden, largest, gates)
    found += [*replay_sized(run, expected.sized, gates), of_all]
    rows, padding = expected.padded, expected.signature.padding
    if rows is not None and padding is not None:
        found += replay_padded(run, rows, padding, expected.alone_outputs, gates)
    return found, outputs


def _measured(expected: Reference, outputs: Mapping[str, Array]) -> MeasuredMetric | None:
    """Returns the metric of the outputs on the test split; None if it is no number."""
    judged = outputs.get(expected.signature.outputs[0].name)
    return None if judged is None else expected.metric.measured(judged, expected.test.labels)


def _latency_ms(
    run: Runner, expected: Reference, clock: Clock = time.thread_time
) -> dict[int, float]:
    """Returns median milliseconds of one run, by batch size."""
    rows = len(next(iter(expected.golden_inputs.values())))
    fitting = [n for n in LATENCY_BATCH_SIZES if n <= min(rows, expected.signature.max_batch_size)]
    return {
        size: _median_ms(run, {n: a[:size] for n, a in expected.golden_inputs.items()}, clock)
        for size in fitting
    }


def _median_ms(run: Runner, inputs: Mapping[str, Array], clock: Clock) -> float:
    _run_times_s(run, inputs, MIN_WARM_UP_RUNS, MAX_WARM_UP_RUNS, clock)
    times_s = _run_times_s(run, inputs, MIN_TIMED_RUNS, MAX_TIMED_RUNS, clock)
    return round(statistics.median(times_s) * 1000, 4)


def _run_times_s(
    run: Runner, inputs: Mapping[str, Array], at_least: int, at_most: int, clock: Clock
) -> list[float]:
    """Returns the seconds of each run: as many as fit into `MAX_SECONDS` within the limits.

    It measures CPU time, which on one thread is the duration on an idle machine: other load of the
    machine must not decide which artifact is the fastest.
    """
    times_s: list[float] = []
    while len(times_s) < at_least or (len(times_s) < at_most and sum(times_s) < MAX_SECONDS):
        started = clock()
        run(inputs)
        times_s.append(clock() - started)
    return times_s


def _finite_or_none(value: float) -> float | None:
    return value if np.isfinite(value) else None


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
