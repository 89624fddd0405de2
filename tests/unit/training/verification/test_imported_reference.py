"""Models that were brought: their artifacts are compared by gates, with labels or without."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.gates import Gate, GateError
from tests.unit.training.verification.test_verify import CLASSES, exported
from training.errors import DataError
from training.publish import artifact_of
from training.recipe.parts.export_entries import Fp32Tolerance, Int8Tolerance
from training.verification import verify as verify_module
from training.verification.imported_reference import imported_reference
from training.verification.output_gates import default_gates, spread_of
from training.verification.verify import Reference, verify

ROWS = 80
RANDOM = np.random.default_rng(0)
INPUTS: dict[str, Array] = {"x": RANDOM.normal(size=(ROWS, CLASSES)).astype(np.float32)}
LABELS = INPUTS["x"].argmax(axis=1)


def net(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"logits": np.multiply(inputs["x"], 2, dtype=np.float32)}


def off(by: float) -> Any:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"logits": np.add(net(inputs)["logits"], by, dtype=np.float32)}

    return run


def signature(**changes: Any) -> Signature:
    spec = TensorSpec(name="x", datatype="FP32", shape=(-1, CLASSES))
    logits = spec.model_copy(update={"name": "logits"})
    return Signature(inputs=(spec,), outputs=(logits,), max_batch_size=16, **changes)


def brought(**changes: Any) -> Reference:
    return imported_reference(signature(), INPUTS, net(INPUTS), **changes)


@pytest.fixture
def run_as(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    def verified(run: Any, expected: Reference) -> Any:
        monkeypatch.setattr(verify_module, "file_runner", lambda *_: run)
        return verify(exported(tmp_path), expected)

    return verified


def test_without_labels_there_is_no_metric_and_every_output_has_a_gate(run_as: Any) -> None:
    report = run_as(net, brought())
    assert report.refusal is None
    assert (report.metric, report.max_abs_difference) == (None, 0.0)
    assert set(report.tolerance.gates) == {"logits"}
    assert report.gates == {"logits": {"relative": 0.0, "absolute": 0.0}}


def test_an_artifact_beyond_its_gate_is_refused_with_the_output_and_the_limit(run_as: Any) -> None:
    report = run_as(off(0.5), brought(gates={"logits": {"absolute": 0.25}}))
    assert report.refusal.startswith(
        "golden rows in batches of 1: absolute of 'logits' 0.5 is above 0.25, most in row "
    )
    assert run_as(off(0.5), brought(gates={"absolute": 0.51})).refusal is None
    assert run_as(off(0.5), brought(gates={"top1": 1.0})).refusal is None
    assert run_as(off(0.5), brought()).refusal is not None


def test_a_value_that_is_no_number_passes_no_gate(run_as: Any) -> None:
    for bad in (np.nan, np.inf):
        for gate in ({"top1": 0.0}, {"cosine": 0.0}, {"exact": 0.0}, {"absolute": 1e300}):
            report = run_as(off(bad), brought(gates=gate))
            kept = all(limit == 0 for limit in gate.values())
            assert (report.refusal is None) is kept, (bad, gate)
            assert report.max_abs_difference is None


def test_with_labels_the_metric_is_judged_too(run_as: Any) -> None:
    report = run_as(net, brought(labels=LABELS))
    assert report.metric.name == "accuracy"
    assert report.metric.value == 1
    assert report.tolerance.gates["logits"].top1 == 0.9

    def other_class(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"logits": np.roll(net(inputs)["logits"], 1, axis=1)}

    loose = brought(labels=LABELS, task="accuracy", gates={"absolute": 1e6})
    assert "accuracy fell from 1.0000" in run_as(other_class, loose).refusal
    numbers = brought(labels=net(INPUTS)["logits"])
    assert numbers.metric.name == "rmse"
    assert run_as(net, numbers).metric.value == 0


def test_an_artifact_without_a_metric_has_an_entry_in_the_manifest(
    run_as: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    report = run_as(net, brought(gates={"logits": {"top1": 0.5}}))
    monkeypatch.setattr("model_store.manifest.Artifact.check_file", lambda *_: None)
    verification = artifact_of(report, tmp_path).verification
    assert (verification.metrics, verification.judged_by) == ({}, None)
    assert verification.gates == {"logits": {"top1": 1.0, "absolute": 0.0}}
    assert verification.tolerance.gates == {"logits": Gate(top1=0.5)}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gates": {"logitz": {"top1": 1}}}, "'logitz', which is no output.*did you mean 'logits'"),
        ({"gates": {"logits": {"top": 1}}}, "unknown key 'top'.*did you mean 'top1'"),
        ({"gates": {"logits": {"top1": 2}}}, "'top1' is 2: write 1 or less"),
        ({"gates": {"logits": {"absolute": float("nan")}}}, "'absolute' is nan: write a finite"),
        ({"gates": {"logits": {}}}, "a gate without a limit judges nothing"),
        ({"gates": {"logits": {"edit_distance": 0.1}}}, "is for text, and output 'logits' is FP32"),
        ({"gates": {"logits": {"top1": 1, "axis": 2}}}, "axis 2 is none of the classes"),
        ({"gates": 3}, "gates is a int"),
        ({"gates": {"logits": 3}}, "gates of 'logits' is 3"),
        ({"labels": LABELS[1:]}, r"labels are int64 \[79\], and the first output is float32"),
        ({"labels": LABELS, "task": "rmse"}, "one for each number"),
        ({"labels": LABELS, "task": "acuracy"}, "did you mean 'accuracy'"),
        ({"task": "accuracy"}, "give the examples' labels"),
    ],
)
def test_gates_and_labels_that_do_not_fit_are_told(changes: dict[str, Any], words: str) -> None:
    with pytest.raises((GateError, DataError), match=words):
        brought(**changes)


def test_no_rows_prove_nothing() -> None:
    empty = {"x": INPUTS["x"][:0]}
    with pytest.raises(DataError, match="0 rows"):
        imported_reference(signature(), empty, net(empty))


VECTORS = INPUTS["x"] / np.linalg.norm(INPUTS["x"], axis=1, keepdims=True)
POWERS = np.exp(INPUTS["x"])


@pytest.mark.parametrize(
    ("array", "measures"),
    [
        (np.arange(4), {"exact"}),
        (np.array([b"a", b"b"], object), {"exact"}),
        (np.zeros((0, 3), np.float32), {"exact"}),
        (VECTORS, {"cosine"}),
        (POWERS / POWERS.sum(axis=1, keepdims=True), {"top1", "absolute"}),
        (INPUTS["x"], {"relative"}),
        (INPUTS["x"][:, 0], {"relative"}),
    ],
)
def test_a_gate_is_chosen_by_what_an_output_looks_like(array: Array, measures: set[str]) -> None:
    (gate,) = default_gates({"y": array}, Fp32Tolerance()).values()
    assert set(gate.limits()) == measures
    (quantised,) = default_gates({"y": array}, Int8Tolerance()).values()
    assert set(quantised.limits()) == measures


def test_named_classes_are_held_to_their_top_class() -> None:
    named = imported_reference(signature(labels={"logits": tuple("abc")[:CLASSES]
                               if CLASSES == 3 else tuple(map(str, range(CLASSES)))}),
                               INPUTS, net(INPUTS))  # fmt: skip
    assert named.signature.labels
    (gate,) = default_gates({"y": INPUTS["x"]}, Int8Tolerance(), ["y"]).values()
    assert (gate.top1, gate.relative) == (0.98, 0.025)


@pytest.mark.parametrize(
    ("numbers", "spread"),
    [
        (np.array([1.0, 3.0]), 1.0),
        (np.array([300.0, 300.0]), 3.0),
        (np.array([300.0, 300.0 + 1e-9]), 3.0),
        (np.zeros(3), 1.0),
        (np.array([np.nan, 1.0, 3.0]), 1.0),
        (np.array([-1e200, 1e200]), 1e200),
    ],
)
def test_an_output_that_hardly_varies_is_measured_by_its_size(
    numbers: Array, spread: float
) -> None:
    assert spread_of(numbers) == pytest.approx(spread)


def agree(expected: Array, found: Array) -> float:
    """Compares signs."""
    return float((np.greater(expected, 0) == np.greater(found, 0)).mean())


def never(expected: Array, found: Array) -> bool:
    """Refuses everything."""
    return False


def nonsense(expected: Array, found: Array) -> str:
    """Returns text."""
    return "fine"


@pytest.mark.parametrize("target", [f"{__name__}:agree", f"{__file__}:agree"])
def test_an_own_function_is_asked_and_a_server_gets_the_measured_difference(
    run_as: Any, target: str
) -> None:
    report = run_as(off(1e-3), brought(gates={"logits": {"function": target, "min": 0.9}}))
    assert report.refusal is None
    gate = report.tolerance.gates["logits"]
    assert gate.limits().keys() == {"absolute"}
    assert 2e-3 < gate.absolute < 7e-3
    assert report.gates["logits"]["function"] > 0.9


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("never", r"function of 'logits' 0 is below 1"),
        ("nonsense", "returned 'fine'; return True, False, or the agreement from 0 to 1"),
        ("agre", "has no 'agre' .did you mean 'agree'"),
    ],
)
def test_a_function_that_refuses_or_is_wrong_refuses_the_artifact(
    run_as: Any, name: str, words: str
) -> None:
    report = run_as(off(0.0), brought(gates=f"{__name__}:{name}"))
    assert report.refusal is not None
    with pytest.raises(AssertionError, match=words):
        raise AssertionError(report.refusal)


def test_recorded_rows_are_replayed_as_on_a_server(run_as: Any) -> None:
    seen: list[int] = []

    def counting(inputs: Mapping[str, Array]) -> dict[str, Array]:
        seen.append(len(inputs["x"]))
        return net(inputs)

    assert run_as(counting, replace(brought(), gates={})).refusal is None
    assert {1, 2, 7, 16} <= set(seen)
    assert max(seen) == 16
