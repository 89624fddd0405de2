"""A version's way out and back: exported as an archive, served by TorchServe's API, imported."""

import io
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.golden import GoldenRows
from tests.fixtures import onnx_models, python_models
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.torchserve_server import TorchServeProcess, running_torchserve

JSON = "application/json"
TEXTS = """
class Model:
    def infer(self, inputs):
        return {"loud": [text.upper() for text in inputs["text"].tolist()]}
"""


def command(*arguments: str) -> str:
    """Returns what a command prints, once it has ended well."""
    found = run_flambeau(*arguments)
    assert found.returncode == 0, found.stderr
    return found.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store, and its versions as archives."""
    folder = tmp_path_factory.mktemp("exported")
    (folder / "archives").mkdir()
    store = str(folder / "store")
    onnx_models.publish(store, "doubling", onnx_models.linear(2), max_batch_size=8)
    specs = [("text", "BYTES", (-1,))], [("loud", "BYTES", (-1,))]
    texts, loud = (np.array(one, np.object_) for one in ([b"a", b"bc"], [b"A", b"BC"]))
    golden = GoldenRows({"text": texts}, {"loud": loud})
    signature = python_models.signature_of(*specs)
    python_models.publish(store, "loud", TEXTS, signature, golden)
    for name in ("doubling", "loud"):
        output = str(folder / "archives" / f"{name}.mar")
        command("models", "export", f"{name}/1", "--format", "mar", "--output", output,
                "--store", store)  # fmt: skip
    return folder


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[TorchServeProcess]:
    models = "--models=doubling.mar,loud.mar"
    with running_torchserve(folder, "--disable-token-auth", models) as running:
        yield running


def npy(row: list[float]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(row, np.float32))
    return file.getvalue()


def test_rows_are_json_arrays_parts_and_bytes(server: TorchServeProcess) -> None:
    row = [1.0, 2.0, 3.0, 4.0]
    part = b'--b\r\ncontent-disposition: form-data; name="x"; filename="x"\r\n\r\n%s\r\n--b--\r\n'
    for body, content_type in (
        (json.dumps({"x": row}).encode(), JSON),
        (json.dumps(row).encode(), "text/plain"),
        (npy(row), "application/octet-stream"),
        (part % npy(row), "multipart/form-data; boundary=b"),
    ):
        said = server.predict("doubling/1", body, content_type=content_type)
        assert (said.status, said.headers["content-type"]) == (200, JSON)
        assert said.document == {"y": [2.0, 4.0, 6.0, 8.0]}
    assert server.predict("loud", "grüße".encode()).document == {"loud": "GRüßE"}
    said = server.predict("doubling", b"[1]", content_type=JSON)
    assert (said.status, said.document["type"]) == (400, "BadRequestException")
    assert said.document["message"].startswith("input 'x' has a list of 1 where")


def test_bad_rows_among_many_are_refused_alone(server: TorchServeProcess) -> None:
    def ask(number: int) -> tuple[int, Any]:
        row = [float(number)] * (4 if number % 7 else 3)
        said = server.predict("doubling", json.dumps(row).encode(), content_type=JSON)
        return said.status, said.document.get("y")

    with ThreadPoolExecutor(16) as pool:
        found = list(pool.map(ask, range(70)))
    wanted = [(200, [2.0 * n] * 4) if n % 7 else (400, None) for n in range(70)]
    assert found == wanted


def test_the_limits_of_batches_are_those_of_the_version(server: TorchServeProcess) -> None:
    (described,) = server.manage("GET", "/models/doubling?customized=true").document
    assert described["modelVersion"] == "1"
    assert (described["batchSize"], described["maxBatchDelay"]) == (8, 1)
    assert described["customizedMetadata"]["model"] == "doubling"


@pytest.mark.long
def test_an_exported_archive_is_imported_again(folder: Path) -> None:
    store, bodies = str(folder / "imported"), [b'{"x": [1, 2, 3, 4]}', b'{"x": [0, 0, 0, 0]}']
    np.savez(folder / "bodies.npz", body=np.array(bodies))
    archive = str(folder / "archives" / "doubling.mar")
    examples = str(folder / "bodies.npz")
    command("import", archive, "--examples", examples, "--store", store)
    shown = json.loads(command("models", "show", "doubling", "--store", store, "--json"))
    assert shown["lineage"]["imported_from"] == "TorchServe archive doubling.mar (doubling 1)"
    # And out again: the archive that was imported.
    again = str(folder / "again.mar")
    command("models", "export", "doubling/1", "--format", "mar", "--output", again,
            "--store", store)  # fmt: skip
