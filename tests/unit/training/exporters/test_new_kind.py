"""A new kind of artifact: one record and one exporter suffice to export and verify it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
import pytest
from pydantic import ValidationError
from torch import Tensor, nn

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.artifact_kinds import STORED_KINDS, StoredKind
from model_store.manifest import Precision
from tests.unit.training.recipes import CLASSES, export_here, recipe, splits, untrained
from training.auto.candidates import Machine, ModelContents, candidates
from training.exporters.exporter import ExportJob
from training.network.runner import Runner
from training.recipe.kinds.export_kind import ExportKind
from training.recipe.kinds.export_kinds import EXPORT_KINDS
from training.recipe.parts.auto_export import AutoExport
from training.recipe.parts.export_entries import KIND, Fp32Entry
from training.verification.verify import reference, verify


class Affine(nn.Module):
    """A matrix and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, CLASSES)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.layer(image.flatten(1))
        return logits


class MatrixExport(Fp32Entry):
    """The weights of a linear network, as NumPy's arrays."""

    kind: Annotated[Literal["matrix"], KIND] = "matrix"
    method: Literal["plain", "halved"] = "plain"


MATRIX = ExportKind(
    entries=(MatrixExport,),
    exporter=__name__,
    recorded=("numpy",),
    speedups={"matrix plain": (9.0, 9.0, 9.0, 9.0)},
)


def write(model: nn.Module, example: tuple[Tensor, ...], job: ExportJob) -> None:
    """Writes the matrix and the bias."""
    weight, bias = (p.detach().numpy() for p in model.parameters())
    factor = 0.5 if job.method == "halved" else 1.0
    with job.path.open("wb") as file:
        np.savez(file, weight=weight * np.float32(factor), bias=bias)


def open_file(path: Path, precision: Precision, signature: Signature) -> Runner:
    """Opens the file."""
    with np.load(path) as file:
        weight, bias = file["weight"], file["bias"]

    def run(inputs: Mapping[str, Array]) -> dict[str, Array]:
        rows = np.asarray(inputs["image"]).reshape(len(inputs["image"]), -1)
        return {"logits": (rows[:, None] * weight).sum(axis=-1) + bias}

    return run


@pytest.fixture
def _matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STORED_KINDS, "matrix", StoredKind(suffix="npz"))
    monkeypatch.setitem(EXPORT_KINDS, "matrix", MATRIX)


@pytest.mark.usefixtures("_matrix")
@pytest.mark.parametrize(("method", "refusal"), [("plain", None), ("halved", "golden rows in b")])
def test_it_is_exported_and_verified(tmp_path: Path, method: str, refusal: str | None) -> None:
    model = {"target": f"{__name__}:Affine"}
    wanted = recipe(model=model, export=[{"kind": "matrix", "method": method}])
    trained = untrained(wanted, splits(), tmp_path)
    (made,) = export_here(wanted, trained, splits(), tmp_path)
    assert (made.entry.name, made.path.name) == ("matrix", "model.npz")
    assert list(made.made_with.libraries) == ["numpy"]
    expected, _ = reference(trained, splits().test)
    report = verify(made, expected)
    assert (report.kind, report.file) == ("matrix", "model.npz")
    assert report.refusal == refusal or str(report.refusal).startswith(str(refusal))


@pytest.mark.usefixtures("_matrix")
def test_it_is_a_candidate_of_auto() -> None:
    auto = AutoExport(kinds=("onnx", "matrix"), precisions=("fp32",))
    found = candidates(auto, ModelContents(linear=True), Machine())
    assert [one.label for one in found] == ["onnx", "matrix plain", "matrix halved"]


@pytest.mark.usefixtures("_matrix")
def test_its_faults_are_named_like_those_of_others() -> None:
    with pytest.raises(ValidationError, match="kind matrix has no precision 'int8'; it has fp32"):
        recipe(export=[{"kind": "matrix", "precision": "int8"}])


def test_a_kind_without_a_record_is_unknown() -> None:
    with pytest.raises(ValidationError, match="no kind 'matrix'"):
        recipe(export=[{"kind": "matrix"}])
