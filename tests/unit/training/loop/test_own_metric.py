"""A metric of the user's own: it stops the training, judges artifacts and moves the alias."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from flambeau.protocol.tensors import Array
from model_store.metric import MeasuredMetric
from model_store.store import ModelStore
from tests.unit.training.recipes import CLASSES, recipe, splits
from training.errors import TargetError
from training.metrics.own_metric import OwnMetric
from training.metrics.task_metric import TaskMetric
from training.pipeline import run
from training.recipe.kinds.onnx_kind import OnnxExport, OnnxInt8Export
from training.recipe.recipe import Recipe
from training.verification.gate import no_difference, too_much_worse

COST = [[0.0, 1.0, 5.0], [1.0, 0.0, 1.0], [5.0, 1.0, 0.0]]
"""Cost of each answer, by label and answer."""


def cost(outputs: Array, labels: Array, scale: float = 1.0) -> Any:
    """Returns the mean cost of a split's answers."""
    assert len(outputs) == len(labels)
    return scale * np.array(COST)[labels, outputs.argmax(axis=1)].mean()


def share_right(outputs: Array, labels: Array) -> float:
    """Returns the accuracy, under another name."""
    return float((outputs.argmax(axis=1) == labels).mean())


def broken(outputs: Array, labels: Array) -> str:
    """Returns no number."""
    return "good"


def data(seed: int) -> Any:
    made = splits(80)
    named = {"train": made.train, "validation": made.validation, "test": made.test}
    return {name: (split.inputs, split.labels) for name, split in named.items()}


def own(name: str = "cost", better: str = "lower", **changes: Any) -> Recipe:
    document: dict[str, Any] = {
        "data": {"target": f"{__name__}:data", "batch_size": 16},
        "metric": {"target": f"{__name__}:{name}", "better": better},
        "stop": {"metric": f"val/{name}", "patience": 2},
        "train": {"epochs": 40, "threads": 1},
        "optim": {"adamw": {"lr": 0.02}},
        "export": [{"kind": "onnx"}],
        "publish": {"model": "small", "if": f"test/{name} <= live"},
    }
    return recipe(**{**document, **changes})


def test_it_stops_the_training_judges_artifacts_and_moves_the_alias(tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "s"))
    first = run(own(), store.url, tmp_path / "r")
    metrics = first.lineage.metrics
    assert metrics["test/cost"] >= 0
    assert metrics["test/accuracy"] > 0.5, "the task's metrics are there too"
    assert metrics["guess/cost"] > metrics["test/cost"]
    judged = first.artifacts[0].verification.judged_by
    assert judged is not None
    assert (judged.name, judged.better, judged.interval) == ("cost", "lower", None)
    assert judged.value == pytest.approx(metrics["test/cost"])
    pointers = store.pointers("small")
    assert pointers is not None
    assert pointers.aliases == {"production": 1}
    report = store.read_file(first, first.file("report.json") or pytest.fail("no report"))
    assert b'"cost"' in report
    again = run(own(seed=3), store.url, tmp_path / "r")
    better = again.lineage.metrics["test/cost"] <= metrics["test/cost"]
    pointers = store.pointers("small")
    assert pointers is not None
    assert pointers.aliases["production"] == (2 if better else 1)


def test_the_best_epoch_is_the_one_with_the_best_own_value(tmp_path: Path) -> None:
    wanted = own("share_right", "higher", publish={"model": "small"})
    same = own("cost", stop={"metric": "val/accuracy", "patience": 2}, publish={"model": "small"})
    epochs = []
    for one in (wanted, same):
        manifest = run(one, str(tmp_path / "s"), tmp_path / "r")
        file = manifest.file("report.json")
        assert file is not None
        text = ModelStore(str(tmp_path / "s")).read_file(manifest, file).decode()
        epochs.append([line for line in text.splitlines() if '"best_epoch"' in line])
    assert epochs[0] == epochs[1]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"stop": {"metric": "val/costs"}}, "val/costs.*did you mean 'val/cost'"),
        ({"publish": {"model": "m", "if": "test/costs <= live"}}, "did you mean 'test/cost'"),
        ({"publish": {"model": "m", "if": "test/cost >= live"}}, "is better when lower; write <="),
        ({"metric": {"target": "a.py:accuracy", "better": "higher"}}, "rename the function"),
        ({"metric": {"target": "a.py:cost", "better": "up"}}, "'higher' or 'lower'"),
        ({"metric": {"target": "a.py:1", "better": "lower"}}, "name a function"),
        ({"metric": {"target": "a.py:cost"}}, "better"),
        ({"metric": None}, "test/cost, and the loss is about classes, which has no such"),
    ],
)
def test_what_does_not_fit_is_told(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        own(**changes)


def test_a_recipe_without_one_reads_and_digests_as_before() -> None:
    plain = recipe()
    assert "metric" not in plain.document()
    assert own().training_digest() != own("share_right", "higher", publish={
        "model": "small"}).training_digest()  # fmt: skip
    assert Recipe.model_validate(own().document()) == own()


def test_arguments_and_failures_of_the_function() -> None:
    outputs, labels = np.eye(CLASSES), np.array([0, 1, 0])
    metric = OwnMetric("cost", f"{__name__}:cost", {"scale": 3.0}, "lower")
    assert metric.value(outputs, labels) == 5.0
    for name, words in (("broken", "returned 'good'; return one number"), ("cots", "'cost'")):
        with pytest.raises(TargetError, match=words):
            OwnMetric(name, f"{__name__}:{name}", {}, "lower").value(outputs, labels)
    with pytest.raises(TargetError, match="unexpected keyword"):
        OwnMetric("cost", f"{__name__}:cost", {"sale": 1}, "lower").value(outputs, labels)
    measured = TaskMetric("classes", own=metric).measured(outputs, labels)
    assert measured == MeasuredMetric(name="cost", value=5.0, better="lower")


@pytest.mark.parametrize(
    ("better", "before", "after", "refused"),
    [
        ("higher", 0.9, 0.898, False),
        ("higher", 0.9, 0.89, True),
        ("lower", 100.0, 100.05, False),
        ("lower", 100.0, 100.2, True),
        ("lower", 1e-6, 2e-6, True),
        ("lower", 0.0, 0.0, False),
    ],
)
def test_an_artifact_is_refused_by_the_own_metric_in_its_own_unit(
    better: Any, before: float, after: float, refused: bool
) -> None:
    one, other = (
        MeasuredMetric(name="cost", value=value, better=better) for value in (before, after)
    )
    labels = np.array([[1.0], [500.0]], np.float32)
    assert (too_much_worse(one, other, OnnxExport(), labels) is not None) is refused
    if better == "lower" and not refused:
        assert too_much_worse(one, other, OnnxInt8Export(), labels) is None
    assert no_difference("test/cost", "classes", labels, 100.0) == pytest.approx(1e-3)
