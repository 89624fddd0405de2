"""Versions as models of a Triton repository: files, configuration, and answers of `model.py`."""

import io
import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from google.protobuf import text_format

from flambeau.exporting.archived_version.batch_inputs import BatchInputs
from flambeau.exporting.archived_version.tensor import RefusedError
from flambeau.exporting.errors import ExportCheckError, ExportTargetError, NotExportableError
from flambeau.exporting.export_request import Exported, ExportRequest
from flambeau.exporting.export_version import export_version
from flambeau.protocol.signature import Padding
from flambeau.protocol.tensors import object_array
from model_store.errors import ManifestError
from model_store.golden import GoldenRows
from model_store.manifest import Artifact, Manifest, parse_manifest
from model_store.store import ModelStore
from protos import model_config_pb2 as pb
from tests.fixtures import exported_models, onnx_models, python_models, stateful_models
from tests.fixtures.client_environment import run_in_client_environment
from tests.fixtures.misbehaving_models import SIGNATURE
from tests.fixtures.python_steps import REPEATED, publish_repeated

WIDTH = SIGNATURE.inputs[0].shape[1]
READ = """
import sys
from google.protobuf import json_format, text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig
print(json_format.MessageToJson(text_format.Parse(sys.stdin.read(), ModelConfig())))
"""


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    (tmp_path / "repository").mkdir()
    return tmp_path / "repository"


def export(store: str, manifest: Manifest, repository: Path, **options: Any) -> Exported:
    replace = options.pop("replace", False)
    request = ExportRequest(store=ModelStore(store), manifest=manifest, **options)
    return export_version(request, "triton", repository, replace=replace)


def files_in(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}


def config_in(folder: Path) -> pb.ModelConfig:
    return text_format.Parse((folder / "config.pbtxt").read_text(), pb.ModelConfig())


def test_an_onnx_version_is_its_own_file(store: str, repository: Path) -> None:
    manifest = onnx_models.publish(store, "digits", onnx_models.linear(2), max_batch_size=16)
    exported = export(store, manifest, repository, max_batch_delay_ms=7)
    assert (exported.path, exported.artifact) == (repository / "digits", "onnx")
    assert (exported.rows, exported.max_abs_difference) == (None, None)
    files = files_in(repository)
    assert sorted(files) == ["digits/1/model.onnx", "digits/config.pbtxt"]
    assert files["digits/1/model.onnx"] == onnx_models.linear(2)
    assert exported.size_bytes == sum(map(len, files.values()))
    config = config_in(repository / "digits")
    assert (config.name, config.backend, config.max_batch_size) == ("digits", "onnxruntime", 16)
    assert config.default_model_filename == "model.onnx"
    assert [(one.name, one.data_type, list(one.dims)) for one in config.input] == [
        ("x", pb.TYPE_FP32, [4])
    ]
    assert [(one.name, one.data_type, list(one.dims)) for one in config.output] == [
        ("y", pb.TYPE_FP32, [4])
    ]
    assert config.dynamic_batching.max_queue_delay_microseconds == 7000
    assert config.parameters["flambeau_version"].string_value == "1 (1.0.0)"


def test_triton_s_client_reads_the_configuration(store: str, repository: Path) -> None:
    manifest = onnx_models.publish(store, "digits", onnx_models.linear(2), max_batch_size=16)
    export(store, manifest, repository)
    text = (repository / "digits" / "config.pbtxt").read_text()
    found = json.loads(run_in_client_environment(READ, text))
    assert (found["name"], found["backend"], found["maxBatchSize"]) == (
        "digits", "onnxruntime", 16,
    )  # fmt: skip
    assert found["input"][0] == {"name": "x", "dataType": "TYPE_FP32", "dims": ["4"]}


def test_the_same_version_gives_the_same_bytes(store: str, tmp_path: Path) -> None:
    manifest = python_models.publish(store, "m", python_models.DOUBLING)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        export(store, manifest, tmp_path / name)
    assert files_in(tmp_path / "a") == files_in(tmp_path / "b")


def test_a_torchscript_version_has_tensors_by_place(store: str, repository: Path) -> None:
    def torchscript(folder: Path) -> Artifact:
        buffer = io.BytesIO()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            example = torch.zeros(2, WIDTH)
            network = torch.jit.trace(exported_models.Network().eval(), example)  # type: ignore[no-untyped-call]
            torch.jit.save(network, buffer)
        return exported_models.artifact_of(folder, "torchscript", buffer.getvalue())

    def openvino(folder: Path) -> Artifact:
        data, weights = exported_models.openvino_ir()
        fast = {"latency_ms": {1: 0.001}}
        return exported_models.artifact_of(folder, "openvino", data, weights, **fast)

    manifest = exported_models.publish(store, "m", openvino, torchscript)
    assert export(store, manifest, repository).artifact == "torchscript"
    assert sorted(files_in(repository)) == ["m/1/model.pt", "m/config.pbtxt"]
    config = config_in(repository / "m")
    assert (config.backend, config.input[0].name, config.output[0].name) == (
        "pytorch", "x__0", "y__0",
    )  # fmt: skip
    export(store, manifest, repository, artifact="openvino", replace=True)
    assert sorted(files_in(repository)) == ["m/1/model.bin", "m/1/model.xml", "m/config.pbtxt"]
    assert config_in(repository / "m").backend == "openvino"


MODEL = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import flambeau

import words

class Model:
    def load(self, context: "flambeau.Context") -> None:
        self.network = context.network("net.onnx")

    def infer(self, inputs):
        return {"y": self.network(x=inputs["x"])["y"] + words.one()}
"""


def test_a_python_model_answers_its_golden_rows(store: str, repository: Path) -> None:
    x = np.arange(8 * WIDTH, dtype=np.float32).reshape(8, WIDTH) % 7
    words = b"import numpy\ndef one():\n    return numpy.float32(1)\n"
    manifest = python_models.publish(
        store,
        "m",
        MODEL,
        golden=GoldenRows({"x": x}, {"y": x * 3 + np.float32(1)}),
        files={"net.onnx": onnx_models.linear(3), "words.py": words},
    )
    exported = export(store, manifest, repository)
    assert (exported.artifact, exported.rows, exported.max_abs_difference) == ("python", 8, 0)
    config = config_in(repository / "m")
    assert (config.backend, config.default_model_filename) == ("python", "model.py")
    assert config.parameters["threads"].string_value == "1"
    for path in repository.rglob("*.py"):
        if path.parent.name != "model_code":
            lines = [line for line in path.read_text().splitlines() if "import" in line.split()]
            assert not [line for line in lines if "flambeau" in line or "model_store" in line]


def test_texts_and_numbers_of_rows(store: str, repository: Path) -> None:
    signature = python_models.signature_of(
        [("text", "BYTES", (-1,)), ("n", "INT64", (-1,))], [("loud", "BYTES", (-1,))]
    )
    golden = GoldenRows(
        {"text": object_array([b"a", b"bc"]), "n": np.array([1, 2])},
        {"loud": object_array([b"A", b"BCBC"])},
    )
    source = """
        class Model:
            def infer(self, inputs):
                rows = zip(inputs["text"].tolist(), inputs["n"].tolist())
                return {"loud": [text.upper() * n for text, n in rows]}
        """
    manifest = python_models.publish(store, "m", source, signature, golden)
    assert export(store, manifest, repository).rows == 2
    config = config_in(repository / "m")
    assert [(one.data_type, list(one.dims)) for one in config.input] == [
        (pb.TYPE_STRING, [1]), (pb.TYPE_INT64, [1]),
    ]  # fmt: skip


def test_a_python_step_runs_before_the_network(store: str, repository: Path) -> None:
    manifest = publish_repeated(store, repository.parent / "draft", "m")
    assert export(store, manifest, repository).rows == 4
    files = files_in(repository / "m" / "1")
    assert files["model.onnx"] == onnx_models.linear(2)
    assert files["model_code/step.py"] == REPEATED
    config = config_in(repository / "m")
    assert (config.backend, config.input[0].name) == ("python", "n")


def test_a_mask_may_be_left_out(store: str, repository: Path) -> None:
    source = """
        class Model:
            def infer(self, inputs):
                return {"total": (inputs["tokens"] * inputs["mask"]).sum(1)}
        """
    signature = python_models.signature_of(
        [("tokens", "INT64", (-1, -1)), ("mask", "INT64", (-1, -1))], [("total", "INT64", (-1,))]
    ).model_copy(update={"padding": Padding(inputs={"tokens": 1}, buckets=(4,), mask="mask")})
    tokens = np.array([[1, 2, 3], [4, 5, 6]])
    rows = GoldenRows({"tokens": tokens, "mask": np.ones_like(tokens)}, {"total": tokens.sum(1)})
    manifest = python_models.publish(store, "m", source, signature, rows)
    assert export(store, manifest, repository).rows == 2
    inputs = {one.name: one.optional for one in config_in(repository / "m").input}
    assert inputs == {"tokens": False, "mask": True}


def test_masks_and_lengths_that_are_missing_are_those_of_full_rows() -> None:
    signature = python_models.signature_of(
        [("tokens", "INT64", (-1, -1)), ("mask", "INT64", (-1, -1)), ("count", "INT32", (-1,))],
        [("total", "INT64", (-1,))],
    ).model_copy(
        update={
            "padding": Padding(inputs={"tokens": 1}, buckets=(4,), mask="mask", lengths="count")
        }
    )
    inputs = BatchInputs(signature.model_dump(mode="json"))
    tokens = np.array([[1, 2, 3], [4, 5, 6]])
    found = inputs.completed({"tokens": tokens})
    assert found["mask"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert (found["count"].tolist(), str(found["count"].dtype)) == ([3, 3], "int32")
    own = np.array([[1, 1, 0], [1, 1, 1]])
    assert inputs.completed({"tokens": tokens, "mask": own})["mask"] is own
    for wrong in ({"tokens": np.ones((2, 5), np.int64)}, {"tokens": tokens, "mask": own[:, :2]}):
        with pytest.raises(RefusedError, match="length"):
            inputs.completed(wrong)
    with pytest.raises(RefusedError):
        inputs.completed({"mask": own})


def test_sequences_have_their_states_and_initial_values(store: str, repository: Path) -> None:
    manifest = stateful_models.publish_running_sum(store)
    export(store, manifest, repository)
    config = config_in(repository / manifest.model)
    assert config.HasField("sequence_batching")
    assert not config.HasField("dynamic_batching")


def test_only_a_model_s_folder_is_replaced_and_only_if_told(store: str, repository: Path) -> None:
    first = onnx_models.publish(store, "m", onnx_models.linear(2))
    second = onnx_models.publish(store, "m", onnx_models.linear(3))
    export(store, first, repository)
    with pytest.raises(ExportTargetError, match="m exists; remove it, or add --force"):
        export(store, second, repository)
    export(store, second, repository, replace=True)
    assert sorted(files_in(repository)) == ["m/2/model.onnx", "m/config.pbtxt"]
    (repository / "m" / "config.pbtxt").unlink()
    with pytest.raises(ExportTargetError, match=r"has no config\.pbtxt"):
        export(store, second, repository, replace=True)
    assert sorted(files_in(repository)) == ["m/2/model.onnx"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import flambeau\n" + python_models.DOUBLING, "No module named 'flambeau' where Triton"),
        ("class Model:\n    def infer(self, inputs):\n        yield inputs['x']\n", "many answers"),
        ("class Model:\n    def infer(self, inputs):\n        return inputs['x'] * 3\n",
         "other answers than the version"),
        ("class Model:\n    def infer(self, inputs):\n        return inputs['x'][:1] * 2\n",
         "has 1 rows"),
        ("class Model:\n    def infer(self, inputs):\n        raise KeyError('why')\n", "why"),
    ],
)  # fmt: skip
def test_code_that_does_not_answer_elsewhere_leaves_no_folder(
    store: str, repository: Path, source: str, reason: str
) -> None:
    manifest = python_models.publish(store, "m", source)
    with pytest.raises(ExportCheckError, match=reason):
        export(store, manifest, repository)
    assert os.listdir(repository) == []


def test_names_are_quoted(store: str, repository: Path) -> None:
    odd = 'x" } ] backend: "python" # \\ \n é'
    signature = python_models.signature_of([(odd, "FP32", (-1, 4))], [("y", "FP32", (-1, 4))])
    x = np.ones((2, 4), np.float32)
    source = """
        class Model:
            def infer(self, inputs):
                (x,) = inputs.values()
                return {"y": x}
        """
    manifest = python_models.publish(store, "m", source, signature, GoldenRows({odd: x}, {"y": x}))
    export(store, manifest, repository)
    assert config_in(repository / "m").input[0].name == odd


@pytest.mark.parametrize(
    "name", ["../up.onnx", "/etc/up.onnx", "a/b.onnx", "..", ".hidden", "a\\b"]
)
@pytest.mark.parametrize("place", ["artifact", "side file", "golden", "model"])
def test_no_manifest_names_a_path(store: str, name: str, place: str) -> None:
    """Every format writes the names of a manifest alone."""
    manifest = python_models.publish(store, "m", python_models.DOUBLING, files={"a.txt": b""})
    document = json.loads(manifest.to_json())
    if place == "model":
        document["model"] = name
    else:
        artifact = document["artifacts"][0]
        entries = {
            "artifact": artifact["file"],
            "side file": artifact["python"]["files"][0],
            "golden": document["golden"]["file"],
        }
        entries[place]["file"] = name
    data = json.dumps(document).encode()
    with pytest.raises(ManifestError, match="is not allowed"):
        parse_manifest(data, "manifest.json")


def test_versions_that_triton_cannot_have(store: str, repository: Path) -> None:
    bf16 = python_models.publish_bf16(store)
    with pytest.raises(NotExportableError, match=r"tensor 'x' of bf16 1.* is BF16"):
        export(store, bf16, repository)
    named = python_models.publish(
        store, "n", python_models.DOUBLING, files={"archived_version.py": b""}
    )
    with pytest.raises(NotExportableError, match=r"side file 'archived_version\.py'"):
        export(store, named, repository)
    assert os.listdir(repository) == []
