"""Verification: an artifact that differs anywhere, at any batch size, is refused."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.arrays.golden_replay import run_in_batches
from model_store.arrays.parity import Parity, worst
from model_store.tolerance import Tolerance
from training.datasets import Split
from training.exporters.export import Exported
from training.network.row_dependence import depends_on_others, rows_alone
from training.network.runner import Runner
from training.recipe.kinds.onnx_kind import OnnxExport, OnnxInt8Export
from training.verification import verify as verify_module
from training.verification.verify import Reference, replay, verify

ROWS, CLASSES = 100, 4
TIGHT = Tolerance(max_abs_difference=1e-4, min_agreement=1.0)


def right(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"logits": np.multiply(inputs["x"], 2, dtype=np.float32)}


@pytest.fixture
def expected() -> Reference:
    random = np.random.default_rng(0)
    inputs: dict[str, Array] = {"x": random.normal(size=(ROWS, CLASSES)).astype(np.float32)}
    spec = TensorSpec(name="x", datatype="FP32", shape=(-1, CLASSES))
    outputs = right(inputs)
    return Reference(
        signature=Signature(
            inputs=(spec,), outputs=(spec.model_copy(update={"name": "logits"}),), max_batch_size=50
        ),
        golden_inputs={"x": inputs["x"][:64]},
        golden_outputs={"logits": outputs["logits"][:64]},
        test=Split(inputs, outputs["logits"].argmax(axis=1)),
        test_outputs=outputs,
    )


def wrong_at(rows: int) -> Runner:
    """Right, but for the last row of batches of one size."""

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        logits = right(inputs)["logits"].copy()
        if len(logits) == rows:
            logits[-1] += 1
        return {"logits": logits}

    return run


def not_a_number(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"logits": np.full_like(right(inputs)["logits"], np.nan)}


def one_class_less(inputs: Mapping[str, Array]) -> dict[str, Array]:
    return {"logits": right(inputs)["logits"][:, 1:]}


def opening(run: Runner) -> Callable[..., Runner]:
    return lambda kind, precision, path, signature: run


def exported(tmp_path: Path, max_abs_difference: float = 1e-4) -> Exported:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"no model")
    tolerance = {"max_abs_difference": max_abs_difference, "min_agreement": 0.9}
    return Exported(OnnxExport.model_validate({"tolerance": tolerance}), path, None)


def test_sizes_of_outputs_that_the_signature_does_not_say_are_refused(
    expected: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sized: dict[str, Array] = {"x": np.ones((2, 7), np.float32)}
    varying = TensorSpec(name="x", datatype="FP32", shape=(-1, -1))
    wrong = replace(
        expected,
        signature=expected.signature.model_copy(update={"inputs": (varying,)}),
        sized=[(sized, right(sized))],
    )
    monkeypatch.setattr(verify_module, "file_runner", opening(right))

    refusal = verify(exported(tmp_path), wrong).refusal

    assert refusal is not None
    assert "output 'logits' is [2, 7] for 'x' [2, 7], and its signature is [batch,4]" in refusal
    assert verify(exported(tmp_path), expected).refusal is None


def test_equal_outputs_have_no_distance(expected: Reference) -> None:
    compared, outputs = replay(right, expected)
    assert {comparison.parity for comparison in compared} == {Parity(0.0, 1.0)}
    assert outputs["logits"].shape == (ROWS, CLASSES)


@pytest.mark.parametrize("rows", [1, 7, 32, 50])
def test_a_mistake_at_any_batch_size_is_found(expected: Reference, rows: int) -> None:
    compared, _ = replay(wrong_at(rows), expected)
    parity = worst([comparison.parity for comparison in compared])
    assert parity.max_abs_difference == pytest.approx(1, rel=1e-6)
    assert parity.failure(TIGHT)


def test_a_mistake_beyond_the_golden_rows_is_found(expected: Reference) -> None:
    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        late = (inputs["x"] == expected.test.inputs["x"][-1]).all(axis=1)
        return {"logits": np.where(late[:, None], -1, 1) * right(inputs)["logits"]}

    compared, _ = replay(run, expected)
    parity = worst([comparison.parity for comparison in compared])
    assert parity.agreement == 0.99


def test_no_batch_is_larger_than_the_signature_allows(expected: Reference) -> None:
    sizes: list[int] = []

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        sizes.append(len(inputs["x"]))
        return right(inputs)

    small = expected.signature.model_copy(update={"max_batch_size": 7})
    replay(run, replace(expected, signature=small))
    assert max(sizes) == 7
    assert 1 in sizes


def test_batches_are_joined_in_order() -> None:
    inputs = {"x": np.arange(10, dtype=np.float32)}
    assert run_in_batches(right, inputs, 3)["logits"].tolist() == [2.0 * n for n in range(10)]


def test_a_right_artifact_is_proven_with_its_figures(
    expected: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "file_runner", opening(right))
    found = verify(exported(tmp_path), expected)
    assert found.refusal is None
    assert found.metric is not None
    assert (found.max_abs_difference, found.agreement, found.metric.value) == (0.0, 1.0, 1.0)
    assert (found.name, found.file, found.size_bytes) == ("onnx", "model.onnx", 8)
    assert sorted(found.latency_ms) == [1, 8, 32]
    assert all(0 < ms < 1000 for ms in found.latency_ms.values())
    limits = {"max_abs_difference": 1e-4, "min_agreement": 0.9, "max_probability_shift": 0.001}
    assert found.tolerance == Tolerance.model_validate(limits)
    assert found.metric.interval == pytest.approx((0.963, 1.0), abs=1e-3)
    assert found.peak_memory_bytes is not None


def test_an_artifact_that_gives_other_bits_each_time_is_refused(
    expected: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = count()

    def restless(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"logits": np.add(right(inputs)["logits"], np.float32(1e-6 * (next(runs) % 2)))}

    monkeypatch.setattr(verify_module, "file_runner", opening(restless))
    found = verify(exported(tmp_path), expected)
    assert found.refusal == "two runs of the same rows gave different numbers"


def test_an_artifact_that_is_wrong_more_often_is_refused(
    expected: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Within every other limit: one row in a hundred lost its class, which was right."""

    def forgets(inputs: Mapping[str, Array]) -> dict[str, Array]:
        logits = right(inputs)["logits"].copy()
        last = (inputs["x"] == expected.test.inputs["x"][-1]).all(axis=1)
        logits[last] = -logits[last]
        return {"logits": logits}

    limits = {"max_abs_difference": 100, "min_agreement": 0.9, "max_probability_shift": 1}
    entry = OnnxExport.model_validate({"tolerance": limits | {"max_metric_drop": 0.009}})
    lax = replace(exported(tmp_path), entry=entry)
    monkeypatch.setattr(verify_module, "file_runner", opening(forgets))
    refusal = verify(lax, expected).refusal
    assert refusal == "the test split: accuracy fell from 1.0000 to 0.9900, by more than 0.0090"


@pytest.mark.parametrize(
    ("run", "reason", "difference"),
    [
        (
            wrong_at(7),
            "golden rows in batches of 7: largest difference 1 is above 0.0001",
            pytest.approx(1, rel=1e-6),
        ),
        (not_a_number, "golden rows in batches of 1: largest difference inf is above", None),
        (one_class_less, "golden rows in batches of 1: output 'logits' has the shape [", None),
    ],
)
def test_a_wrong_artifact_is_refused_with_its_figures(
    expected: Reference,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    run: Runner,
    reason: str,
    difference: object,
) -> None:
    monkeypatch.setattr(verify_module, "file_runner", opening(run))
    found = verify(exported(tmp_path), expected)
    assert found.refusal is not None
    assert found.refusal.startswith(reason)
    assert found.max_abs_difference == difference


def test_the_tolerance_of_the_recipe_decides(
    expected: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "file_runner", opening(wrong_at(7)))
    assert verify(exported(tmp_path, max_abs_difference=1.1), expected).refusal is None


def test_accuracy_is_measured_on_the_artifact_and_not_on_the_checkpoint(
    expected: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def always_the_first(inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"logits": np.eye(CLASSES, dtype=np.float32)[np.zeros(len(inputs["x"]), np.int64)]}

    monkeypatch.setattr(verify_module, "file_runner", opening(always_the_first))
    found = verify(exported(tmp_path), expected)
    assert found.metric is not None
    assert found.metric.value == float((expected.test.labels == 0).mean())


def test_a_file_that_does_not_open_is_refused(expected: Reference, tmp_path: Path) -> None:
    found = verify(exported(tmp_path), expected)
    assert found.refusal is not None
    assert found.refusal.startswith("does not run: ")
    assert found.metric is None


def test_a_file_that_was_never_made_is_refused(expected: Reference, tmp_path: Path) -> None:
    missing = Exported(OnnxInt8Export(), tmp_path / "model.int8.onnx", "export failed: why")
    found = verify(missing, expected)
    assert (found.refusal, found.size_bytes) == ("export failed: why", None)


def with_mean(inputs: Mapping[str, Array]) -> dict[str, Array]:
    """Mixes the rows of a batch."""
    logits = right(inputs)["logits"]
    return {"logits": logits + logits.mean(axis=0)}


def test_a_network_that_mixes_rows_is_told_from_an_artifact_that_differs(
    expected: Reference, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golden = expected.golden_inputs
    mixing = replace(
        expected,
        golden_outputs=with_mean(golden),
        single_outputs=rows_alone(with_mean, golden),
        test_outputs=run_in_batches(with_mean, expected.test.inputs, 50),
    )
    words = (
        "; the trained network's own answer to a row depends on the other rows of its batch "
        "(in a batch of its own: largest difference"
    )
    monkeypatch.setattr(verify_module, "file_runner", opening(with_mean))
    report = verify(exported(tmp_path), mixing)
    assert report.refusal is not None
    assert report.refusal.startswith("golden rows in batches of 1: ")
    assert words in report.refusal
    assert report.refusal.endswith("let forward compute each row by itself, as without a mean over "
                                   "the rows of the batch")  # fmt: skip
    assert report.mixes_rows

    monkeypatch.setattr(verify_module, "file_runner", opening(wrong_at(1)))
    other = verify(exported(tmp_path), replace(expected, single_outputs=rows_alone(right, golden)))
    assert other.refusal is not None
    assert words not in other.refusal
    assert not other.mixes_rows


def test_rounding_in_batches_of_another_size_is_no_mixing(expected: Reference) -> None:
    together = {"logits": expected.golden_outputs["logits"].astype(np.float32) * np.float32(1e4)}
    alone = {"logits": together["logits"][:8] * np.float32(1 + 1e-6)}
    assert depends_on_others(together, alone, TIGHT) is None
    assert depends_on_others(together, {"logits": alone["logits"] * 2}, TIGHT) is not None
    assert depends_on_others(together, {}, TIGHT) is None
    least = Tolerance(
        max_abs_difference=1, min_agreement=0, embeddings=("logits",), min_cosine=0.99
    )
    turned = {"logits": np.roll(alone["logits"], 1, axis=0)}
    assert depends_on_others(together, turned, least) is not None
    assert depends_on_others(together, alone, least) is None
