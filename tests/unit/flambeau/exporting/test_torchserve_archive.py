"""Versions as TorchServe archives: contents, check, and versions that cannot be one."""

import io
import json
import os
import threading
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flambeau.exporting.errors import (
    ExportCheckError,
    ExportTargetError,
    NotExportableError,
)
from flambeau.exporting.export_request import ExportRequest
from flambeau.exporting.export_version import export_version
from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import object_array
from model_store.archives.archive_settings import ARCHIVE_FILE, ArchiveSettings
from model_store.archives.archive_version import source_of
from model_store.archives.handler_calls import BODY
from model_store.errors import CryptographicSignatureError, DigestMismatchError, TooLargeError
from model_store.golden import GoldenRows
from model_store.manifest import Artifact, Manifest, PythonModel
from model_store.python_models.open_model import MAX_SOURCE_BYTES
from model_store.store import ModelStore
from services.inference.trust import Trust
from tests.fixtures import exported_models, onnx_models, python_models, stateful_models
from tests.fixtures.exported_archives import export, unpacked, values_in
from tests.fixtures.misbehaving_models import SIGNATURE
from tests.fixtures.model_archives import write_archive
from tests.fixtures.python_steps import publish_repeated
from tests.fixtures.served_archives import ServedArchive, request_of
from tests.fixtures.store_versions import (
    artifact_in,
    entry_in,
    publish_artifacts,
)

WIDTH = SIGNATURE.inputs[0].shape[1]


@pytest.fixture
def store(tmp_path: Path) -> str:
    return str(tmp_path / "store")


def torchscript(folder: Path) -> Artifact:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        example = torch.zeros(2, WIDTH)
        network = torch.jit.trace(exported_models.Network().eval(), example)  # type: ignore[no-untyped-call]
        torch.jit.save(network, buffer)
    return exported_models.artifact_of(folder, "torchscript", buffer.getvalue())


def ask(path: Path, *bodies: Any) -> list[tuple[int, Any]]:
    """Returns statuses and documents of an archive that is served as the TorchServe door does."""
    served = ServedArchive(path.with_suffix(".served"), path)
    requests = [request_of(json.dumps(body).encode(), "application/json") for body in bodies]
    found = [(answer.status, values_in(answer)) for answer in served.ask(*requests)]
    served.backend.close()
    return found


def test_an_onnx_version(store: str, tmp_path: Path) -> None:
    manifest = onnx_models.publish(store, "digits", onnx_models.linear(2), max_batch_size=16)
    path = tmp_path / "digits.mar"
    exported = export(store, manifest, path, max_batch_delay_ms=7)
    assert (exported.path, exported.artifact, exported.rows) == (path, "onnx", 8)
    assert exported.size_bytes == path.stat().st_size
    archive = unpacked(path)
    assert archive.manifest.model.name == "digits"
    assert archive.manifest.model.version == "1"
    assert archive.manifest.model.serialized_file == "model.onnx"
    assert archive.ignored == ()
    assert (archive.config.batch_size, archive.config.max_batch_delay_ms) == (16, 7)
    assert (archive.config.min_workers, archive.config.max_workers) == (1, 1)
    assert (archive.folder / "model.onnx").read_bytes() == onnx_models.linear(2)
    found = ask(path, {"x": [1, 2, 3, 4]}, [1, 2], {"x": [0, 0, 0, 1]})
    assert found[0] == (200, {"y": [2, 4, 6, 8]})
    assert found[1][0] == 400
    assert found[1][1]["type"] == "BadRequestException"
    assert found[2] == (200, {"y": [0, 0, 0, 2]})


def test_no_file_of_an_archive_names_our_packages(store: str, tmp_path: Path) -> None:
    export(store, onnx_models.publish(store, "m", onnx_models.linear()), tmp_path / "m.mar")
    for path in unpacked(tmp_path / "m.mar").folder.rglob("*.py"):
        imports = [line for line in path.read_text().splitlines() if "import" in line.split()]
        assert not [line for line in imports if "flambeau" in line or "model_store" in line]


def test_the_same_version_gives_the_same_bytes(store: str, tmp_path: Path) -> None:
    manifest = onnx_models.publish(store, "m", onnx_models.linear())
    for name in ("a.mar", "b.mar"):
        export(store, manifest, tmp_path / name)
    assert (tmp_path / "a.mar").read_bytes() == (tmp_path / "b.mar").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.mar") as archive:
        assert {info.external_attr >> 16 for info in archive.infolist()} == {0o644}


def test_a_torchscript_version(store: str, tmp_path: Path) -> None:
    manifest = exported_models.publish(store, "m", torchscript)
    exported = export(store, manifest, tmp_path / "m.mar")
    assert exported.artifact == "torchscript"
    x = np.linspace(-1, 1, WIDTH, dtype=np.float32)
    ((status, found),) = ask(tmp_path / "m.mar", {"x": x.tolist()})
    assert (status, found) == (200, {"y": pytest.approx(exported_models.right(x).tolist())})


def test_the_fastest_fit_artifact_or_the_named_one(store: str, tmp_path: Path) -> None:
    def openvino(folder: Path) -> Artifact:
        data, weights = exported_models.openvino_ir()
        fast = {"latency_ms": {1: 0.001}}
        return exported_models.artifact_of(folder, "openvino", data, weights, **fast)

    manifest = exported_models.publish(store, "m", openvino, torchscript)
    assert export(store, manifest, tmp_path / "m.mar").artifact == "torchscript"
    with pytest.raises(NotExportableError, match="has openvino, and an archive takes onnx"):
        export(store, manifest, tmp_path / "n.mar", artifact="openvino")
    with pytest.raises(NotExportableError, match="no artifact 'onnx'; give one of openvino, tor"):
        export(store, manifest, tmp_path / "n.mar", artifact="onnx")
    assert not (tmp_path / "n.mar").exists()


MODEL = """
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import flambeau

import words

class Model:
    async def load(self, context: "flambeau.Context") -> None:
        self.more = context.args["more"] + int(context.files["more.txt"].read_text())
        self.network = context.network("net.onnx")

    def infer(self, inputs):
        if (inputs["x"] < 0).any():
            raise ValueError("x is below 0")
        if (inputs["x"] > 100).any():
            raise KeyError("too large")
        return {"y": self.network(x=inputs["x"])["y"] + words.one() + self.more}
"""


def test_a_python_model_with_files_and_a_network(store: str, tmp_path: Path) -> None:
    x = np.arange(8 * WIDTH, dtype=np.float32).reshape(8, WIDTH) % 7
    manifest = python_models.publish(
        store,
        "m",
        MODEL,
        golden=GoldenRows({"x": x}, {"y": x * 3 + np.float32(8)}),
        files={
            "net.onnx": onnx_models.linear(3),
            "more.txt": b"5",
            "words.py": b"import numpy\ndef one():\n    return numpy.float32(1)\n",
        },
        args={"more": 2},
    )
    export(store, manifest, tmp_path / "m.mar")
    rows = [[float(value)] * WIDTH for value in (0, -1, 101, 1)]
    found = ask(tmp_path / "m.mar", *rows)
    assert [status for status, _ in found] == [200, 400, 500, 200]
    assert found[0][1] == {"y": [8.0] * WIDTH}
    assert found[1][1]["message"] == "x is below 0"
    assert found[3][1] == {"y": [11.0] * WIDTH}


STEP = """
class Lengths:
    def __init__(self, scale):
        self.scale = scale

    def __call__(self, inputs):
        if (inputs["n"] < 0).any():
            raise ValueError("n is below 0")
        import numpy
        return {"x": numpy.repeat(inputs["n"][:, None], 4, 1).astype("f4") * self.scale}
"""


def test_a_python_step_before_a_network(store: str, tmp_path: Path) -> None:
    manifest = publish_repeated(store, tmp_path / "draft", "m", STEP.encode(), "Lengths")
    export(store, manifest, tmp_path / "m.mar")
    found = ask(tmp_path / "m.mar", {"n": 5}, {"n": -1}, 1)
    assert found[0] == (200, {"y": [30.0] * 4})
    assert (found[1][0], found[1][1]["message"]) == (400, "n is below 0")
    assert found[2] == (200, {"y": [6.0] * 4})


@pytest.mark.parametrize(
    "body",
    [
        "def infer_one(self, x):\n        return {'y': 2 * x}",
        "async def infer(self, inputs):\n        return 2 * inputs['x']",
        "async def infer_one(self, x):\n        return 2 * x",
    ],
)
def test_other_methods_of_python_models(store: str, tmp_path: Path, body: str) -> None:
    manifest = python_models.publish(store, "m", f"class Model:\n    {body}\n")
    export(store, manifest, tmp_path / "m.mar")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("import flambeau\n", "No module named 'flambeau' where TorchServe runs"),
        ("from model_store import manifest\n", "No module named 'model_store'"),
        ("import services.queueing.records as r\n", "No module named 'services'"),
        ("raise SystemExit(3)\n", "SystemExit: 3"),
        ("import nothing_like_it\n", "No module named 'nothing_like_it'"),
    ],
)
def test_code_that_does_not_load_elsewhere(
    store: str, tmp_path: Path, source: str, reason: str
) -> None:
    manifest = python_models.publish(store, "m", source + python_models.DOUBLING)
    with pytest.raises(ExportCheckError, match=reason):
        export(store, manifest, tmp_path / "m.mar")
    assert os.listdir(tmp_path) == ["store"]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("class Model:\n    def infer(self, inputs):\n        yield inputs['x']\n", "many answers"),
        ("class Model:\n    def infer(self, inputs):\n        return inputs['x'] * 3\n",
         "other answers than the version: golden rows in batches of 1: largest difference"),
        ("class Model:\n    def infer(self, inputs):\n        return inputs['x'][:1] * 2\n",
         "row 0 has status 500"),
        ("class Model:\n    def infer(self, inputs):\n        return inputs['x'].tolist()\n",
         "it must be FP32"),
        ("class Model:\n    def infer(self, inputs):\n        import os; os._exit(3)\n",
         "exit code 3"),
        ("class Model:\n    def infer(self, inputs):\n        return {'z': 1}\n", "status 500"),
    ],
)  # fmt: skip
def test_versions_whose_handler_answers_otherwise(
    store: str, tmp_path: Path, source: str, reason: str
) -> None:
    manifest = python_models.publish(store, "m", source)
    with pytest.raises(ExportCheckError, match=reason):
        export(store, manifest, tmp_path / "m.mar")
    assert os.listdir(tmp_path) == ["store"]


@pytest.mark.timeout(60)
def test_a_handler_that_never_answers_ends_in_time(store: str, tmp_path: Path) -> None:
    source = "import time\nclass Model:\n    def infer(self, inputs):\n        time.sleep(600)\n"
    manifest = python_models.publish(store, "m", source)
    with pytest.raises(ExportCheckError, match="it took longer than 3 s"):
        export(store, manifest, tmp_path / "m.mar", time_limit_s=3.0)
    assert os.listdir(tmp_path) == ["store"]
    assert not [one for one in threading.enumerate() if isinstance(one, threading.Timer)]


def test_a_handler_that_takes_all_memory_ends(store: str, tmp_path: Path) -> None:
    source = """
        class Model:
            def infer(self, inputs):
                return {"y": bytearray(2**33)}
        """
    manifest = python_models.publish(store, "m", source)
    with pytest.raises(ExportCheckError, match="Out of resources"):
        export(store, manifest, tmp_path / "m.mar", memory_limit_bytes=2**30)
    assert os.listdir(tmp_path) == ["store"]


def test_versions_that_no_archive_can_have(store: str, tmp_path: Path) -> None:
    stateful = stateful_models.publish_running_sum(store)
    with pytest.raises(NotExportableError, match="keeps states of sequences"):
        export(store, stateful, tmp_path / "m.mar")
    bf16 = python_models.publish_bf16(store)
    with pytest.raises(NotExportableError, match=r"tensor 'x' of bf16 1.* is BF16"):
        export(store, bf16, tmp_path / "m.mar")
    files = {"handler.py": b""}
    named = python_models.publish(store, "n", python_models.DOUBLING, files=files)
    with pytest.raises(NotExportableError, match=r"side file 'handler\.py'"):
        export(store, named, tmp_path / "m.mar")
    assert os.listdir(tmp_path) == ["store"]


def imported(store: str, folder: Path, source: str, outputs: list[bytes]) -> Manifest:
    """Publishes an archive as `flambeau import` does."""
    folder.mkdir()
    data = write_archive(folder, source, name="old", modelVersion="9.9").read_bytes()
    settings = ArchiveSettings(folder="", model_name="old", handler="handler.py", batch_size=4)

    def artifact(made: Path) -> Artifact:
        code = source_of("ImportedHandler")
        return artifact_in(
            made,
            code,
            name="python",
            kind="python",
            file=entry_in(made, "imported_handler.py", code),
            python=PythonModel(
                name="ImportedHandler",
                args=settings.model_dump(mode="json"),
                files=(entry_in(made, ARCHIVE_FILE, data),),
            ),
        )

    bodies = object_array([b"ab", b"c"])
    golden = GoldenRows({BODY: bodies}, {BODY: object_array(outputs)})
    specs = [(BODY, "BYTES", (-1,))]
    signature: Signature = python_models.signature_of(specs, specs, rows=4)
    return publish_artifacts(store, "mood", signature, golden, artifact)


UPPER = """
    class Upper:
        def initialize(self, context):
            pass

        def handle(self, data, context):
            return [bytes(row["body"]).upper() for row in data]
    """


def test_an_imported_archive_is_that_archive_again(store: str, tmp_path: Path) -> None:
    manifest = imported(store, tmp_path / "old", UPPER, [b"AB", b"C"])
    export(store, manifest, tmp_path / "new.mar")
    with (
        zipfile.ZipFile(tmp_path / "old" / "old.mar") as old,
        zipfile.ZipFile(tmp_path / "new.mar") as new,
    ):
        assert sorted(old.namelist()) == sorted(new.namelist())
        assert old.read("handler.py") == new.read("handler.py")
        before, after = (json.loads(one.read("MAR-INF/MANIFEST.json")) for one in (old, new))
    model = before["model"] | {"modelName": "mood", "modelVersion": "1"}
    assert after == before | {"model": model}


def test_an_imported_archive_must_answer_as_it_did(store: str, tmp_path: Path) -> None:
    manifest = imported(store, tmp_path / "old", UPPER, [b"AB", b"c"])
    with pytest.raises(ExportCheckError, match="other answers"):
        export(store, manifest, tmp_path / "new.mar")
    assert not (tmp_path / "new.mar").exists()


def test_changed_files_of_the_store_are_refused(store: str, tmp_path: Path) -> None:
    manifest = onnx_models.publish(store, "m", onnx_models.linear())
    file = tmp_path / "store" / "m" / "1" / manifest.artifacts[0].file.file
    file.write_bytes(onnx_models.linear(3))
    with pytest.raises(DigestMismatchError):
        export(store, manifest, tmp_path / "m.mar")
    assert os.listdir(tmp_path) == ["store"]


def test_code_needs_a_signature_where_the_settings_say_so(store: str, tmp_path: Path) -> None:
    manifest = python_models.publish(store, "m", python_models.DOUBLING)
    trust = Trust(keys_folder=str(tmp_path), signature_needed_for="code")
    with pytest.raises(CryptographicSignatureError):
        export(store, manifest, tmp_path / "m.mar", trust=trust)


def test_a_source_beyond_its_limit_is_not_read(store: str, tmp_path: Path) -> None:
    source = python_models.DOUBLING + "#" * MAX_SOURCE_BYTES
    manifest = python_models.publish(store, "m", source)
    with pytest.raises(TooLargeError):
        export(store, manifest, tmp_path / "m.mar")


def test_a_file_is_replaced_only_if_asked(store: str, tmp_path: Path) -> None:
    manifest = onnx_models.publish(store, "m", onnx_models.linear())
    request = ExportRequest(store=ModelStore(store), manifest=manifest)
    path = tmp_path / "m.mar"
    path.write_text("mine")
    with pytest.raises(ExportTargetError, match="exists; remove it, or add --force"):
        export_version(request, "mar", path)
    assert path.read_text() == "mine"
    export_version(request, "mar", path, replace=True)
    assert zipfile.is_zipfile(path)
    with pytest.raises(ExportTargetError, match="no regular file"):
        export_version(request, "mar", tmp_path, replace=True)
    with pytest.raises(ExportTargetError, match="there is no folder"):
        export_version(request, "mar", tmp_path / "none" / "m.mar")
