"""The table of artifacts: attempted exports for each family, and a reason for every gap."""

import numpy as np
import pytest

from bench.artifacts import FAMILIES, NOT_TRAINED, every_export, page_block
from bench.peers.servers.flambeau_peer import ROOT
from model_store.metric import MeasuredMetric
from training.metrics.task_metric import TaskMetric
from training.recipe.file import load_recipe
from training.recipe.kinds.export_kinds import Export
from training.recipe.kinds.onnx_kind import OnnxExport
from training.recipe.parts.export_entries import ExportEntry
from training.reporting.report import ArtifactReport, CheckpointReport, Report
from training.verification.gate import tolerance_of

ACCURACY = MeasuredMetric(name="accuracy", value=0.9, better="higher")


@pytest.mark.parametrize("recipe", FAMILIES.values())
def test_every_family_is_tried_in_every_kind_with_its_own_settings(recipe: str) -> None:
    given = load_recipe(str(ROOT / recipe))
    found = every_export(given).export
    assert isinstance(found, tuple)
    tried: dict[str, ExportEntry] = {entry.name: entry for entry in found}
    assert {"torchscript", "onnx-int8", "pt2-bf16", "aoti", "openvino-int8"} <= {*tried}
    assert ("pt2-int8-qat" in tried) is (given.qat is not None)
    own: tuple[Export, ...] = given.listed_exports()
    assert [tried[entry.name] for entry in own] == [*own]


def test_every_hole_has_its_reason() -> None:
    onnx = ArtifactReport(
        name="onnx", kind="onnx", precision="fp32", file="model.onnx", refusal=None,
        tolerance=tolerance_of(OnnxExport(), TaskMetric(), np.zeros(1, np.int64)),
        size_bytes=2000, agreement=1.0, metric=ACCURACY, latency_ms={1: 0.5, 32: 1.0},
    )  # fmt: skip
    broken = ArtifactReport(
        name="pt2", kind="pt2", precision="fp32", file="model.pt2", refusal="it | broke",
        tolerance=onnx.tolerance,
    )  # fmt: skip
    checkpoint = CheckpointReport(size_bytes=1000, metric=ACCURACY, latency_ms={1: 1.0, 32: 4.0})
    report = Report(
        run="r", model="m", epochs=1, best_epoch=1, metrics={}, checkpoint=checkpoint,
        artifacts=(onnx, broken),
    )  # fmt: skip
    lines = page_block({"MLP": report}).splitlines()
    assert "| `onnx` | 4.0 |" in lines
    assert "| `pt2` | - |" in lines
    assert "| `onnx` | - | 100.0% | 90.0% | 2 | 4.0 | verified |" in lines
    assert "| `pt2` | - | - | - | - | - | it \\| broke |" in lines
    assert f"| `pt2-int8-qat` | - | - | - | - | - | {NOT_TRAINED} |" in lines
