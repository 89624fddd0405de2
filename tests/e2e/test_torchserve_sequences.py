"""Sequences of a handler with state, by TorchServe's API, with two workers and two processes."""

import concurrent.futures
import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fixtures.model_archives import write_archive
from tests.fixtures.torchserve_server import Said, TorchServeProcess, running_torchserve

HANDLER = """
    import os
    import time

    SEEN = {}

    def handle(data, context):
        names = [context.get_sequence_id(place) for place in range(len(data or ()))]
        found = []
        for name, row in zip(names, data or ()):
            text = bytes(row["body"]).decode()
            if text == "exit":
                os._exit(3)
            SEEN.setdefault(name, []).append(text)
            found.append({"name": name, "seen": SEEN[name], "pid": os.getpid(), "batch": names})
        time.sleep(0.02)
        return found
    """
"""Answers with what it has seen of the sequence, in which process and in which batch."""
SETTINGS = """
minWorkers: 2
maxWorkers: 2
batchSize: 8
sequenceMaxIdleMSec: 3000
maxNumSequence: 12
maxSequenceJobQueueSize: 9
"""
SHORT = SETTINGS.replace("maxNumSequence: 12", "sequenceTimeoutMSec: 700\nmaxNumSequence: 70000")
"""Sequences that end 0.7 s after their first request."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServeProcess]:
    folder = tmp_path_factory.mktemp("torchserve")
    (folder / "archives").mkdir()
    write_archive(
        folder / "archives", HANDLER, name="m", files={"m.yaml": SETTINGS}, configFile="m.yaml"
    )
    write_archive(
        folder / "archives", HANDLER, name="short", files={"m.yaml": SHORT}, configFile="m.yaml"
    )
    options = ("--disable-token-auth", "--models=m=m.mar,short=short.mar", "--processes=2")
    with running_torchserve(folder, *options) as running:
        yield running


def said_to(server: TorchServeProcess, name: str, body: str, model: str = "m") -> Said:
    headers = {"ts_request_sequence_id": name}
    return server.call("POST", f"/predictions/{model}", body.encode(), headers)


def step(server: TorchServeProcess, name: str, body: str, model: str = "m") -> Any:
    said = said_to(server, name, body, model)
    assert said.status == 200, said.body
    return said.document


@pytest.mark.long
def test_the_steps_of_a_sequence_go_to_one_worker_in_order(server: TorchServeProcess) -> None:
    def run(number: int) -> list[Any]:
        return [step(server, f"s{number}", str(place)) for place in range(12)]

    with concurrent.futures.ThreadPoolExecutor(8) as threads:
        sequences = list(threads.map(run, range(8)))
    for answers in sequences:
        assert len({one["pid"] for one in answers}) == 1
        assert answers[-1]["seen"] == [str(place) for place in range(12)]
    batches = [one["batch"] for answers in sequences for one in answers]
    assert all(len(set(names)) == len(names) for names in batches)
    assert len({answers[0]["pid"] for answers in sequences}) == 2


@pytest.mark.long
def test_what_becomes_of_sequences(server: TorchServeProcess) -> None:
    """Those without a name get one, too many are refused until others are idle for too long."""
    (described,) = server.manage("GET", "/models/m").document
    assert (described["stateful"], described["sequenceMaxIdleMSec"]) == (True, 3000)
    nameless = json.loads(server.predict("m", b"x").body)
    assert nameless["name"].startswith("ts-seq-")
    assert step(server, nameless["name"], "y")["seen"] == ["x", "y"]
    statuses = [said_to(server, f"t{number}", "x").status for number in range(12)]
    assert 503 in statuses
    first = step(server, "t0", "z")["pid"]
    died = said_to(server, "t0", "exit")
    assert (died.status, died.document["message"]) == (500, "Worker died.")
    again = step(server, "t0", "anew")
    assert again["seen"] == ["anew"]
    assert again["pid"] != first


@pytest.mark.long
def test_a_sequence_in_use_ends_with_its_timeout(server: TorchServeProcess) -> None:
    """Its requests go to one worker until then, and perhaps to another one afterwards."""
    (described,) = server.manage("GET", "/models/short").document
    assert (described["sequenceTimeoutMSec"], described["maxNumSequence"]) == (700, 65_536)

    def ended(reason: str) -> float:
        labels = {"model": "short", "reason": reason}
        return server.metric("flambeau_ended_sequences_total", **labels) or 0

    assert step(server, "s", "x", "short")["seen"] == ["x"]
    number = 0
    while not ended("expired"):
        number += 1
        step(server, "s", str(number), "short")
    assert number
    assert not ended("idle")
