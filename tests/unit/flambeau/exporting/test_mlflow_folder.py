"""Versions as MLflow models: the documented fields, and MLflow itself where it is installed."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from flambeau.exporting.errors import ExportCheckError, NotExportableError
from flambeau.exporting.export_request import Exported, ExportRequest
from flambeau.exporting.export_version import export_version
from flambeau.protocol.tensors import object_array
from model_store.golden import GoldenRows
from model_store.manifest import Manifest
from model_store.store import ModelStore
from tests.fixtures import onnx_models, python_models, stateful_models
from tests.fixtures.misbehaving_models import SIGNATURE

WIDTH = SIGNATURE.inputs[0].shape[1]
MLFLOW = Path(__file__).parents[4] / "var/peers/mlflow/venv/bin/python"
"""An environment with `mlflow-skinny>=3.9,<4 numpy pandas onnx onnxruntime`."""
needs_mlflow = pytest.mark.skipif(not MLFLOW.exists(), reason=f"{MLFLOW} is not there")
PREDICT = """
import json, sys
import numpy
import mlflow.pyfunc
from mlflow.models import Model

folder, given = sys.argv[1], json.loads(sys.argv[2])
model = Model.load(folder)
inputs = {
    one.name: numpy.array(
        [v.encode() for v in given[one.name]] if one.type == object else given[one.name], one.type
    )
    for one in model.signature.inputs.inputs if one.name in given
}
found = mlflow.pyfunc.load_model(folder).predict(inputs)
print(json.dumps({
    "flavors": sorted(model.flavors),
    "metadata": model.metadata,
    "shapes": [list(one.shape) for one in model.signature.inputs.inputs],
    "outputs": {
        name: [v.decode() if isinstance(v, bytes) else v for v in array.tolist()]
        for name, array in found.items()
    },
}))
"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def export(store: str, manifest: Manifest, path: Path) -> Exported:
    return export_version(ExportRequest(store=ModelStore(store), manifest=manifest), "mlflow", path)


def files_in(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def predicted(folder: Path, inputs: dict[str, Any]) -> dict[str, Any]:
    """Returns what MLflow itself says of a model, and its answer."""
    command = [str(MLFLOW), "-W", "ignore", "-c", PREDICT, str(folder), json.dumps(inputs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_an_onnx_version_has_the_flavor_onnx(store: str, tmp_path: Path) -> None:
    manifest = onnx_models.publish(store, "digits", onnx_models.linear(2))
    path = tmp_path / "digits.mlflow"
    exported = export(store, manifest, path)
    assert (exported.path, exported.artifact, exported.rows) == (path, "onnx", None)
    files = files_in(path)
    assert sorted(files) == ["MLmodel", "model.onnx", "python_env.yaml", "requirements.txt"]
    assert files["model.onnx"] == onnx_models.linear(2)
    assert exported.size_bytes == sum(map(len, files.values()))
    document = yaml.safe_load(files["MLmodel"])
    flavors = document["flavors"]
    assert flavors["onnx"] == {"data": "model.onnx", "providers": ["CPUExecutionProvider"]}
    assert flavors["python_function"]["loader_module"] == "mlflow.onnx"
    assert flavors["python_function"]["data"] == "model.onnx"
    assert flavors["python_function"]["env"] == {"virtualenv": "python_env.yaml"}
    assert json.loads(document["signature"]["inputs"]) == [
        {"type": "tensor", "name": "x", "tensor-spec": {"dtype": "float32", "shape": [-1, 4]}}
    ]
    assert json.loads(document["signature"]["outputs"])[0]["name"] == "y"
    assert document["metadata"]["semver"] == "1.0.0"
    environment = yaml.safe_load(files["python_env.yaml"])
    assert environment["dependencies"] == ["-r requirements.txt"]
    assert files["requirements.txt"].decode().split() == ["mlflow", "numpy", "onnx", "onnxruntime"]


def test_the_same_version_gives_the_same_bytes(store: str, tmp_path: Path) -> None:
    manifest = python_models.publish(store, "m", python_models.DOUBLING)
    for name in ("a", "b"):
        export(store, manifest, tmp_path / name)
    assert files_in(tmp_path / "a") == files_in(tmp_path / "b")


def test_a_python_model_has_a_loader_of_its_own(store: str, tmp_path: Path) -> None:
    manifest = python_models.publish(store, "m", python_models.DOUBLING)
    exported = export(store, manifest, tmp_path / "m.mlflow")
    assert (exported.rows, exported.max_abs_difference) == (8, 0)
    document = yaml.safe_load((tmp_path / "m.mlflow" / "MLmodel").read_text())
    flavor = document["flavors"]["python_function"]
    assert (flavor["code"], flavor["data"]) == ("code", "data")
    assert flavor["loader_module"] == "archived_version.mlflow_model"
    assert list(document["flavors"]) == ["python_function"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import flambeau\n" + python_models.DOUBLING, "No module named 'flambeau' where MLflow"),
        ("class Model:\n    def infer(self, inputs):\n        return inputs['x'] * 3\n",
         "other answers than the version"),
    ],
)  # fmt: skip
def test_code_that_does_not_answer_elsewhere_leaves_no_folder(
    store: str, tmp_path: Path, source: str, reason: str
) -> None:
    manifest = python_models.publish(store, "m", source)
    with pytest.raises(ExportCheckError, match=reason):
        export(store, manifest, tmp_path / "m.mlflow")
    assert os.listdir(tmp_path) == ["store"]


def test_a_version_with_states_is_refused(store: str, tmp_path: Path) -> None:
    manifest = stateful_models.publish_running_sum(store)
    with pytest.raises(NotExportableError, match="keeps states of sequences"):
        export(store, manifest, tmp_path / "m.mlflow")


@needs_mlflow
@pytest.mark.slow
def test_mlflow_runs_an_onnx_version(store: str, tmp_path: Path) -> None:
    manifest = onnx_models.publish(store, "digits", onnx_models.linear(2))
    export(store, manifest, tmp_path / "digits.mlflow")
    found = predicted(tmp_path / "digits.mlflow", {"x": [[1, 2, 3, 4], [0, 0, 0, 1]]})
    assert found["flavors"] == ["onnx", "python_function"]
    assert found["shapes"] == [[-1, 4]]
    assert found["metadata"]["model"] == "digits"
    assert found["outputs"] == {"y": [[2, 4, 6, 8], [0, 0, 0, 2]]}


@needs_mlflow
@pytest.mark.slow
def test_mlflow_runs_python_models(store: str, tmp_path: Path) -> None:
    numbers = python_models.publish(store, "m", python_models.DOUBLING)
    export(store, numbers, tmp_path / "m.mlflow")
    rows = [[float(row)] * WIDTH for row in range(20)]
    found = predicted(tmp_path / "m.mlflow", {"x": rows})
    assert found["outputs"]["y"] == (2 * np.array(rows)).tolist()
    source = """
        class Model:
            def infer(self, inputs):
                return {"loud": [text.upper() for text in inputs["text"].tolist()]}
        """
    signature = python_models.signature_of([("text", "BYTES", (-1,))], [("loud", "BYTES", (-1,))])
    golden = GoldenRows({"text": object_array([b"a"])}, {"loud": object_array([b"A"])})
    texts = python_models.publish(store, "loud", source, signature, golden)
    export(store, texts, tmp_path / "loud.mlflow")
    found = predicted(tmp_path / "loud.mlflow", {"text": ["a", "bc"]})
    assert found["outputs"] == {"loud": ["A", "BC"]}
