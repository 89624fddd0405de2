"""A live Triton serves exported versions, and answers as ours does.

PyPI's Triton has the Python backend alone (`bench/peers/servers/triton_peer.py`), so the versions
are Python models, and a step before an ONNX network, which onnxruntime runs there if it is
installed.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from flambeau.exporting.export_request import ExportRequest
from flambeau.exporting.export_version import export_version
from flambeau.protocol.tensors import Array, object_array
from model_store.golden import GoldenRows
from model_store.store import ModelStore
from tests.conformance.live_triton import LiveTriton, installed, running_triton
from tests.fixtures import python_models
from tests.fixtures.python_steps import publish_repeated
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.triton_client import TritonClient, TritonError

ENVIRONMENT = installed()
HAS_ONNX = ENVIRONMENT is not None and (ENVIRONMENT.site_packages / "onnxruntime").is_dir()
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(ENVIRONMENT is None, reason="no Triton here: make bench-peers installs it"),
]
SCALED = """
import flambeau_words

class Model:
    def load(self, context):
        self.scale = context.args["scale"] * flambeau_words.ONE

    def infer(self, inputs):
        if (inputs["x"] < 0).any():
            raise ValueError("x is below 0")
        return {"y": inputs["x"] * self.scale}
"""
LOUD = """
class Model:
    def infer(self, inputs):
        rows = zip(inputs["text"].tolist(), inputs["n"].tolist())
        return {"loud": [text.upper() * n for text, n in rows]}
"""
TEXTS = {"text": object_array([b"gr\xc3\xbc\xc3\x9fe", b"\x00\xff"]), "n": np.array([1, 3])}


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ModelStore:
    """A store with three versions."""
    folder = tmp_path_factory.mktemp("live")
    store = ModelStore(str(folder / "store"))
    x = np.arange(8 * 4, dtype=np.float32).reshape(8, 4)
    python_models.publish(
        store.url,
        "scaled",
        SCALED,
        golden=GoldenRows({"x": x}, {"y": x * np.float32(3)}),
        files={"flambeau_words.py": b"import numpy\nONE = numpy.float32(1)\n"},
        args={"scale": 3},
    )
    loud = object_array([b"A", b"BB"])
    golden = GoldenRows({"text": object_array([b"a", b"b"]), "n": np.array([1, 2])}, {"loud": loud})
    specs = [("text", "BYTES", (-1,)), ("n", "INT64", (-1,))], [("loud", "BYTES", (-1,))]
    python_models.publish(store.url, "loud", LOUD, python_models.signature_of(*specs), golden)
    publish_repeated(store.url, folder / "draft", "repeated")
    for model in store.models():
        store.promote(model, 1)
    return store


@pytest.fixture(scope="module")
def triton(store: ModelStore) -> Iterator[LiveTriton]:
    def write(repository: Path) -> None:
        for model in store.models():
            if model != "repeated" or HAS_ONNX:
                request = ExportRequest(store=store, manifest=store.manifest(model, 1))
                export_version(request, "triton", repository)

    assert ENVIRONMENT is not None
    with running_triton(ENVIRONMENT, write) as running:
        yield running


@pytest.fixture(scope="module")
def ours(store: ModelStore) -> Iterator[ServerProcess]:
    with running_server(Path(store.url)) as server:
        server.wait_until_read_through()
        yield server


def both(
    triton: LiveTriton, ours: ServerProcess, kind: str, model: str, inputs: dict[str, Array]
) -> tuple[dict[str, Array], dict[str, Array]]:
    """Returns the answers of both servers."""
    here = ours.http if kind == "http" else ours.grpc
    with (
        TritonClient(kind, triton.http if kind == "http" else triton.grpc) as theirs,
        TritonClient(kind, here.removeprefix("http://")) as mine,
    ):
        return theirs.infer(model, inputs).outputs, mine.infer(model, inputs).outputs


@pytest.mark.parametrize("kind", ["http", "grpc"])
def test_numbers(triton: LiveTriton, ours: ServerProcess, kind: str) -> None:
    x = np.random.default_rng(7).uniform(0, 9, (5, 4)).astype(np.float32)
    theirs, mine = both(triton, ours, kind, "scaled", {"x": x})
    np.testing.assert_array_equal(theirs["y"], mine["y"])
    np.testing.assert_array_equal(theirs["y"], x * np.float32(3))


def test_texts_and_one_number_a_row(triton: LiveTriton, ours: ServerProcess) -> None:
    """One number a row is [rows, 1] for Triton, and [rows] for ours."""
    columns = {name: array.reshape(-1, 1) for name, array in TEXTS.items()}
    with (
        TritonClient("grpc", triton.grpc) as theirs,
        TritonClient("grpc", ours.grpc.removeprefix("http://")) as mine,
    ):
        found = theirs.infer("loud", columns).outputs["loud"]
        wanted = mine.infer("loud", TEXTS).outputs["loud"]
    assert found.shape == (2, 1)
    assert found.ravel().tolist() == wanted.tolist() == [b"GR\xc3\xbc\xc3\x9fE", b"\x00\xff" * 3]


@pytest.mark.skipif(not HAS_ONNX, reason="Triton's environment has no onnxruntime")
def test_a_step_before_an_onnx_network(triton: LiveTriton, ours: ServerProcess) -> None:
    n = np.array([5, 0, -2])
    with (
        TritonClient("grpc", triton.grpc) as theirs,
        TritonClient("grpc", ours.grpc.removeprefix("http://")) as mine,
    ):
        found = theirs.infer("repeated", {"n": n.reshape(-1, 1)}).outputs["y"]
        wanted = mine.infer("repeated", {"n": n}).outputs["y"]
    np.testing.assert_array_equal(found, wanted)


def test_a_bad_row_is_refused_alone(triton: LiveTriton) -> None:
    with TritonClient("grpc", triton.grpc) as client:
        with pytest.raises(TritonError, match="x is below 0"):
            client.infer("scaled", {"x": np.full((1, 4), -1, np.float32)})
        assert client.infer("scaled", {"x": np.ones((1, 4), np.float32)}).outputs["y"][0, 0] == 3


def test_triton_has_the_configuration(triton: LiveTriton) -> None:
    with TritonClient("grpc", triton.grpc) as client:
        config = client.call("get_model_config", "scaled", as_json=True)["config"]
    assert (config["name"], config["backend"]) == ("scaled", "python")
    assert config["dynamic_batching"]["max_queue_delay_microseconds"] == "1000"
