"""Python models published as users do, and asked over both protocols."""

import json
import os
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flambeau
from flambeau.errors import InvalidRequestError
from flambeau.protocol.tensors import object_array
from tests.fixtures.servers import COMMAND, running_server
from tests.fixtures.triton_client import TritonClient, TritonError

TEXTS = ["two words", "one", "", "three more words", "just two"]


class Words:
    """Answers with a list and with boxes, as many as there are words."""

    def infer_one(self, text: bytes) -> dict[str, Any]:
        """Answers one text."""
        words = text.decode().split()
        return {"words": words, "boxes": np.full((len(words), 4), len(words), np.float32)}


class Split:
    """Takes batches, of one row each."""

    def infer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Answers texts."""
        return {"words": [text.split() for text in inputs["text"]]}


class Forking:
    """Leaves processes behind, in sessions of their own."""

    def load(self, context: flambeau.Context) -> None:
        """Reads the folder of the marks."""
        self.marks = context.args["marks"]

    def infer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Answers, and forks a process that forks another."""
        reader, writer = os.pipe()
        if os.fork() == 0:
            os.setsid()
            os.fork()
            (Path(self.marks) / str(os.getpid())).touch()
            os.close(writer)
            time.sleep(600)
            os._exit(0)
        os.close(writer)
        os.read(reader, 1)  # until both have left a mark
        return {"y": inputs["x"]}


def test_each_request_gets_answers_of_its_own_shape(tmp_path: Path) -> None:
    texts, to = {"text": TEXTS}, str(tmp_path)
    version = flambeau.publish(Words, texts, name="words", to=to, progress=False)
    assert "requests have one row each" in version.notes[0]
    flambeau.publish(Split, texts, name="split", to=to, process="shared", progress=False)
    with flambeau.load("words", store=tmp_path) as words:
        together = words.infer({"text": object_array([b"a b", b"c d"])})
        assert together["boxes"].shape == (2, 2, 4)
        with pytest.raises(InvalidRequestError, match="2 rows have different shapes; call with"):
            words(text=["a b", "c"])
    with running_server(tmp_path) as server:
        for protocol, address in (("http", server.http), ("grpc", server.grpc)):
            with TritonClient(protocol, address) as client:
                for text in ("a b c d e", "", "alone"):
                    right = [word.encode() for word in text.split()]
                    given = {"text": np.array([text.encode()], object)}
                    found = client.infer("words", given).outputs
                    assert found["words"].tolist() == [right]
                    assert found["boxes"].shape == (1, len(right), 4)
                    assert client.infer("split", given).outputs["words"].tolist() == [right]
                with pytest.raises(TritonError, match="has 2 rows; send one row a request"):
                    client.infer("words", {"text": np.array([b"a", b"b"], object)})
    for name, process in (("words", "own"), ("split", "shared")):
        manifest = json.loads((tmp_path / name / "1" / "manifest.json").read_text())
        assert manifest["artifacts"][0]["python"]["process"] == process


def test_processes_that_a_class_leaves_behind_are_ended(tmp_path: Path) -> None:
    marks = tmp_path / "marks"
    marks.mkdir()
    rows, args = {"x": np.ones((4, 2), np.float32)}, {"marks": str(marks)}
    flambeau.publish(Forking, rows, name="f", to=tmp_path / "store", progress=False, args=args)
    left = [int(mark.name) for mark in marks.iterdir()]
    assert len(left) >= 2
    assert [process for process in left if Path(f"/proc/{process}").exists()] == []


def test_a_file_is_imported_for_the_process_of_the_server(tmp_path: Path) -> None:
    (tmp_path / "halves.py").write_text(
        "class Halves:\n    def infer(self, inputs): return {'y': inputs['x'] / 2}\n"
    )
    np.savez(tmp_path / "rows.npz", x=np.ones((4, 2), np.float32))
    command = [
        COMMAND, "import", "halves.py:Halves", "--examples", "rows.npz", "--max-batch-size", "4",
        "--process", "shared", "--store", "store", "--json",
    ]  # fmt: skip
    subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, timeout=120)
    manifest = json.loads((tmp_path / "store" / "halves" / "1" / "manifest.json").read_text())
    assert manifest["artifacts"][0]["python"]["process"] == "shared"
    assert manifest["signature"]["max_batch_size"] == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"process": "theirs"}, "'python.process' is 'theirs': write 'own' or 'shared'"),
        ({"dynamic": {"text": {1: (1, 2)}}}, "dynamic is for modules and functions"),
        ({"targets": [1]}, r"targets has shape \[1\] and the examples have 5 rows"),
    ],
)
def test_options_that_do_not_fit_a_class_are_refused(
    tmp_path: Path, options: dict[str, Any], words: str
) -> None:
    with pytest.raises(flambeau.PublishError, match=words) as refused:
        flambeau.publish(
            Words, {"text": TEXTS}, name="words", to=tmp_path, progress=False, **options
        )
    assert "\n" not in str(refused.value)
