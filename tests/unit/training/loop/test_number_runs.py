"""Runs on labels that are not classes; one of them publishes a version and verifies it."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from model_store.arrays.parity import first_failure
from model_store.golden import parse_golden
from model_store.manifest import Manifest, parse_manifest
from services.inference.loading.kept_artifacts import accuracy_loss, is_accurate
from tests.unit.training.number_tasks import number_recipe
from training.auto.recipe_judge import RecipeJudge
from training.datasets import load_splits
from training.exporters import export
from training.loop.loop import train
from training.pipeline import run
from training.recipe.file import load_recipe, parse_recipe
from training.recipe.kinds.onnx_kind import OnnxExport
from training.reporting.report import Report
from training.run_folder import RunFolder
from training.verification import final_replay, verify
from training.verification.runners import file_runner
from training.watcher import NullWatcher

DIABETES = str(Path(__file__).parents[4] / "training/recipes/diabetes_mlp.yaml")


class Listener(NullWatcher):
    """Keeps the metrics of the last epoch."""

    def end_epoch(self, epoch: int, metrics: Any) -> None:
        """See `Watcher`."""
        self.metrics = dict(metrics)


@pytest.mark.parametrize(
    ("kind", "loss", "metric", "at_least"),
    [
        ("columns", {"smooth_l1": {}}, "val/r2", 0.5),
        ("places", {"huber": {}}, "val/r2", 0.9),
        ("counts", {"poisson": {}}, "val/r2", 0.3),
        ("multi_label", {"bce": {"pos_weight": "balanced"}}, "val/f1", 0.8),
    ],
)
def test_each_task_learns(
    tmp_path: Path, kind: str, loss: dict[str, Any], metric: str, at_least: float
) -> None:
    chosen = number_recipe(kind, loss, stop={"metric": metric}, train={"epochs": 12, "threads": 1})
    splits, listener = load_splits(chosen), Listener()
    if kind == "columns":  # one unit for both: a linear layer that learns fast knows no others
        for split in (splits.train, splits.validation):
            split.labels[:, 1] /= 1000
    screen = io.StringIO()
    folder = RunFolder(tmp_path, chosen, "0" * 64)
    found = train(chosen, splits, folder, Console(file=screen), watcher=listener)
    assert found.state.best_value >= at_least
    assert {name for name in listener.metrics if name.startswith("val/")} > {metric, "val/loss"}
    assert ("val/f1" if kind == "multi_label" else "val/rmse") in screen.getvalue()


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """The recipe of the diabetes data, for some epochs, exported and proven in this process."""
    folder = tmp_path_factory.mktemp("diabetes")
    quick = load_recipe(DIABETES, ["train.epochs=12", "track=[jsonl]"])
    with pytest.MonkeyPatch.context() as patch:
        for module in (export, final_replay, verify):
            patch.setattr(module, "run_limited", lambda call, *arguments, **_: call(*arguments))
        manifest = run(quick, str(folder), folder / "runs", console=Console(file=io.StringIO()))
    return folder, manifest


def test_a_regression_is_published_with_its_error(published: tuple[Path, Manifest]) -> None:
    folder, manifest = published
    version = folder / "diabetes" / "1"
    stored = parse_manifest((version / "manifest.json").read_bytes(), "stored")
    assert [artifact.name for artifact in stored.artifacts] == ["onnx", "onnx-int8"]
    loaded = load_recipe(DIABETES)
    spread = load_splits(loaded).test.labels.std()
    for artifact, share in zip(stored.artifacts, (1e-3, 0.25), strict=True):
        proof = artifact.verification
        assert proof.judged_by is not None
        assert (proof.judged_by.name, proof.judged_by.better) == ("rmse", "lower")
        assert proof.judged_by.interval is not None
        low, high = proof.judged_by.interval
        assert low < proof.metrics["rmse"] == proof.judged_by.value < high < spread
        assert proof.tolerance.max_abs_difference == pytest.approx(share * spread, rel=1e-3)
        assert proof.tolerance.min_agreement == 0
        assert 0 <= accuracy_loss(manifest, artifact) < 0.02
    assert is_accurate(manifest, stored.artifacts[0], "exact")
    assert manifest.lineage.metrics["test/r2"] > 0.2
    report = Report.model_validate(json.loads((version / "report.json").read_text()))
    assert {artifact.agreement for artifact in report.artifacts} == {None}
    page = (version / "report.html").read_text()
    assert "Rmse (lower is better), by milliseconds a row" in page
    assert "<th>rmse</th>" in page
    (phase,) = report.curves
    assert (phase.phase, phase.epochs) == ("train", 12)
    assert report.examination is not None
    (column,) = report.examination.residuals
    pairs = np.array(column.points)
    assert len(pairs) == column.labels == report.examination.rows
    assert report.checkpoint.metric is not None
    rmse = np.sqrt(np.square(pairs[:, 1] - pairs[:, 0]).mean())
    assert rmse == pytest.approx(report.checkpoint.metric.value, rel=1e-5)
    assert list(report.examination.worst[0].values) == list(load_splits(loaded).test.inputs)
    for title in ("Loss, by epoch", "Residuals", "Worst answers"):
        assert title in page


def test_its_proof_is_repeated_and_fails_what_errs_more(published: tuple[Path, Manifest]) -> None:
    folder, manifest = published
    version = folder / "diabetes" / "1"
    golden = parse_golden((version / "golden.safetensors").read_bytes(), manifest)
    recipe = parse_recipe((version / "recipe.resolved.yaml").read_text(), "resolved")
    judge = RecipeJudge(recipe, manifest, version / "checkpoint.safetensors", golden)
    onnx = manifest.artifacts[0]
    right = file_runner("onnx", "fp32", version / OnnxExport().file, manifest.signature)
    found, metrics, refusal = judge.judge(right, onnx)
    assert refusal is None
    assert first_failure(found, onnx.verification.tolerance) is None
    assert metrics["rmse"] == pytest.approx(onnx.verification.metrics["rmse"])

    def errs(inputs: Any) -> Any:
        return {name: np.multiply(array, np.float32(1.5)) for name, array in right(inputs).items()}

    found, _, refusal = judge.judge(errs, onnx)
    assert refusal is not None
    assert "rmse rose from" in refusal
    assert first_failure(found, onnx.verification.tolerance) is not None
