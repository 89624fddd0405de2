"""Python models behind a server: text in, errors in one line, and faults that harm no neighbour."""

import os
import re
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from model_store.golden import GoldenRows
from tests.e2e.rest_calls import Reply, call, infer, linear_input, tensor
from tests.fixtures import python_models
from tests.fixtures.misbehaving_models import WIDTH
from tests.fixtures.python_models import DOUBLING, signature_of
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.triton_client import TritonClient, TritonError

WORDS = """
class Model:
    def load(self, context):
        self.stop = context.files["stop.txt"].read_text().split()

    async def infer_one(self, text):
        words = text.decode().split()
        if not words:
            raise ValueError("the text is empty; send words")
        if words == ["explode"]:
            return {}["exploded"]
        kept = [word for word in words if word not in self.stop]
        return {"words": len(kept), "first": kept[0]}
"""
FAULTY = """
import os

class Model:
    def infer(self, inputs):
        value = int(inputs["x"].max())
        if value == 21:
            os._exit(7)
        if value == 22:
            while True:
                pass
        if value == 23:
            raise RuntimeError("twenty-three")
        return {"y": 2 * inputs["x"]}
"""
TEXTS = ["the sun", "rain and storm", "ice"]
EXECUTION_TIMEOUT_S = 1.0


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    store = str(tmp_path_factory.mktemp("store"))
    texts = np.array([text.encode() for text in TEXTS], object)
    python_models.publish(
        store,
        "words",
        WORDS,
        signature_of(
            [("text", "BYTES", (-1,))], [("words", "INT64", (-1,)), ("first", "BYTES", (-1,))]
        ),
        GoldenRows(
            {"text": texts},
            {"words": np.array([1, 2, 1]), "first": np.array([b"sun", b"rain", b"ice"], object)},
        ),
        files={"stop.txt": b"the and"},
    )
    python_models.publish(store, "faulty", FAULTY)
    python_models.publish(store, "neighbour", DOUBLING, process="shared")
    settings = {"faulty": {"execution_timeout_s": EXECUTION_TIMEOUT_S, "batch_wait_ms": 200}}
    with running_server(Path(store), model_settings=settings) as server:
        yield server


def ask(server: ServerProcess, model: str, value: float) -> Reply:
    return infer(server, model, linear_input([value] * WIDTH))


def is_doubled(reply: Reply, value: float) -> bool:
    return bool(reply.outputs() == {"y": [2 * value] * WIDTH})


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_text_is_answered_over_both_protocols(server: ServerProcess, protocol: str) -> None:
    address = server.http if protocol == "http" else server.grpc
    with TritonClient(protocol, address) as client:
        given = np.array([text.encode() for text in TEXTS], object)
        outputs = client.infer("words", {"text": given}).outputs
        assert outputs["words"].tolist() == [1, 2, 1]
        assert outputs["first"].tolist() == [b"sun", b"rain", b"ice"]
        with pytest.raises(TritonError, match="the text is empty; send words"):
            client.infer("words", {"text": np.array([b" "], object)})
    metadata = call(server, "GET", "/v2/models/words").json()
    assert metadata["platform"] == "flambeau_python"


def test_a_fault_is_one_line_and_the_log_has_the_traceback(server: ServerProcess) -> None:
    reply = infer(server, "words", tensor("text", "BYTES", [1], ["explode"]), id="boom")
    assert reply.status == 500
    assert reply.error() == (
        "model 'words' version 1 failed on this input: Model.infer_one raised KeyError: "
        "'exploded' (function infer_one, line 11)"
    )
    line = server.wait_for_log(message="backend failed", request_id="boom")
    assert """return {}["exploded"]""" in str(line["exception"])
    refused = infer(server, "words", tensor("text", "BYTES", [1], [""]))
    assert (refused.status, "send words" in refused.error()) == (400, True)


def test_a_bad_row_fails_its_own_request_alone(server: ServerProcess) -> None:
    with ThreadPoolExecutor(3) as threads:
        replies: list[Future[Reply]] = [
            threads.submit(ask, server, "faulty", value) for value in (1.0, 23.0, 2.0)
        ]
    good, bad, fine = (reply.result() for reply in replies)
    assert is_doubled(good, 1.0)
    assert is_doubled(fine, 2.0)
    assert (bad.status, "twenty-three" in bad.error()) == (500, True)


@pytest.mark.parametrize(
    ("value", "status", "words"),
    [
        (21.0, 500, r"ended its process on this input \(exit code 7\)"),
        (22.0, 500, "blocked|execution_timeout_s"),
    ],
)
def test_a_fault_of_its_process_harms_no_neighbour(
    server: ServerProcess, value: float, status: int, words: str
) -> None:
    with ThreadPoolExecutor(1) as threads:
        failing = threads.submit(ask, server, "faulty", value)
        while not failing.done():
            assert is_doubled(ask(server, "neighbour", 3.0), 3.0)
        failed = failing.result()
    assert failed.status == status
    assert re.search(words, failed.error())
    assert is_doubled(ask(server, "faulty", 4.0), 4.0)


def test_a_load_that_never_ends_is_shown_ended_and_harms_no_neighbour(tmp_path: Path) -> None:
    source = f"""
    import os, threading

    class Model:
        def load(self, context):
            with open({str(tmp_path / "began")!r}, "w") as fifo:  # waits for a reader
                fifo.write("began")
            threading.Event().wait()
        def infer(self, inputs):
            return inputs
    """
    os.mkfifo(tmp_path / "began")
    store = tmp_path / "store"
    python_models.publish(str(store), "neighbour", DOUBLING, process="shared")
    with running_server(store, open_time_limit_s=8.0) as server:
        python_models.publish(str(store), "endless", source)
        assert (tmp_path / "began").read_text() == "began"
        waiting = ask(server, "endless", 3.0)
        assert (waiting.status, "is not ready: version 1: loading" in waiting.error()) == (
            503,
            True,
        )
        assert is_doubled(ask(server, "neighbour", 3.0), 3.0)
        assert is_doubled(ask(server, "neighbour", 4.0), 4.0)
        server.wait_for_log(message="version refused", model="endless")
        refused = ask(server, "endless", 3.0)
        assert (refused.status, "model 'endless'" in refused.error()) == (503, True)
        assert "did not open within 8 s (open_time_limit_s); raise the limit" in refused.error()
