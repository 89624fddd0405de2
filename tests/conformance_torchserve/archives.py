"""The archives that both servers get, written as `torch-model-archiver` writes them."""

import io
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.fixtures.model_archives import write_archive

TELL = """
    import json

    def told(value):
        if isinstance(value, (bytes, bytearray)):
            return ["bytes", bytes(value).decode("latin-1")]
        return [type(value).__name__, value]

    class Tell:
        def initialize(self, context):
            self.manifest = context.manifest

        def handle(self, data, context):
            if context.get_request_header(0, "explain") == "True":
                return [{"explained": {k: told(v) for k, v in row.items()}} for row in data]
            return [
                {
                    "version": self.manifest["model"]["modelVersion"],
                    "row": {key: told(value) for key, value in sorted(row.items())},
                }
                for row in data
            ]
    """
"""Tells what comes to a handler."""
MODULE = """
    def handle(data, context):
        if data is None:
            return None
        return ["one of a module"] * len(data)
    """
KINDS = """
    import json
    import torch

    VALUES = {
        "bytes": b"\\x00\\xff", "bytearray": bytearray(b"ab"), "text": "grüße", "empty": "",
        "list": [1, 2.5, None, True], "dict": {"b": 1, "a": [2]}, "int": 7, "none": None,
        "tensor": torch.tensor([1.0, 2.0]).tolist(), "nested": {"x": {"y": [[1], [2]]}},
        "set": {1}, "object": object(),
    }

    class Kinds:
        def initialize(self, context):
            pass

        def handle(self, data, context):
            return [VALUES[bytes(row.get("body") or row.get("data")).decode()] for row in data]
    """
"""Answers with a value of the kind that is asked for."""
RESPONDING = """
    import json

    class Responding:
        def initialize(self, context):
            pass

        def handle(self, data, context):
            answers = []
            for place, row in enumerate(data):
                value = row.get("body") or row.get("data")
                asked = value if isinstance(value, dict) else json.loads(bytes(value))
                if "status" in asked:
                    context.set_response_status(
                        code=asked["status"], phrase=asked.get("phrase", ""), idx=place
                    )
                for name, text in asked.get("headers", {}).items():
                    context.set_response_header(place, name, text)
                if "type" in asked:
                    context.set_response_content_type(place, asked["type"])
                answers.append(asked.get("body", "ok"))
            return answers
    """
"""Sets the status, headers and content type that are asked for."""
FAULTS = """
    import os
    import sys

    from ts.utils.util import PredictionException

    class Faults:
        def initialize(self, context):
            pass

        def handle(self, data, context):
            asked = bytes(data[0].get("body") or data[0].get("data")).decode()
            if asked == "raise":
                raise ValueError("no such thing")
            if asked == "named":
                raise PredictionException("named fault", 599)
            if asked == "surrogate":
                raise PredictionException("fault \\ud800", 599)
            if asked == "memory":
                raise MemoryError("all gone")
            if asked == "few":
                return []
            if asked == "many":
                return ["a"] * (len(data) + 1)
            if asked == "no list":
                return "abc"
            if asked == "none":
                return None
            if asked == "print":
                print("x" * 1_000_000)
            return ["fine"] * len(data)
    """
STREAM = """
    from ts.handler_utils.utils import send_intermediate_predict_response

    class Stream:
        def initialize(self, context):
            pass

        def handle(self, data, context):
            count = int(bytes(data[0].get("body") or data[0].get("data")).decode())
            for number in range(count):
                send_intermediate_predict_response(
                    [f"part {number} "] * len(data), context.request_ids,
                    "Intermediate Prediction success", 200, context,
                )
            return ["the end"] * len(data)
    """
NETWORK = """
    from torch import nn

    class Network(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x)
    """
LINEAR = """
    import torch
    from ts.torch_handler.base_handler import BaseHandler

    class Linear(BaseHandler):
        def preprocess(self, data):
            rows = [row.get("body") or row.get("data") for row in data]
            return torch.tensor([row["x"] for row in rows], dtype=torch.float32)

        def postprocess(self, inferred):
            return [[round(value, 4) for value in row] for row in inferred.tolist()]

        def describe_handle(self):
            return {"about": "a linear layer"}
    """
BROKEN = """
    class Broken:
        def initialize(self, context):
            raise RuntimeError("it cannot begin")

        def handle(self, data, context):
            return ["never"] * len(data)
    """
SLOW = """
    import time

    class Slow:
        def initialize(self, context):
            pass

        def handle(self, data, context):
            time.sleep(0.05)
            return [bytes(row.get("body") or row.get("data")) for row in data]
    """
"""Answers a batch in 50 ms, so that requests at once come into batches."""

STATEFUL = """
    SEEN = {}

    def handle(data, context):
        found = []
        for place, row in enumerate(data or ()):
            name = context.get_sequence_id(place)
            SEEN.setdefault(name, []).append(bytes(row.get("body") or row["data"]).decode())
            start = context.get_request_header(place, "ts_request_sequence_start")
            context.set_response_header(place, "x-own", name[:6])
            found.append({"sequence": name, "seen": SEEN[name], "start": start})
        return found
    """
SEQUENCES = """
minWorkers: 2
maxWorkers: 2
batchSize: 4
sequenceBatching: true
sequenceMaxIdleMSec: 600000
maxNumSequence: 4
maxSequenceJobQueueSize: 10
"""
NAMES = ("tell", "module", "kinds", "responding", "faults", "stream", "eager", "script", "slow",
         "stateful")  # fmt: skip
"""Models that both servers have from the start."""
_SOURCES = {
    "tell": TELL, "module": MODULE, "kinds": KINDS, "responding": RESPONDING, "faults": FAULTS,
    "stream": STREAM, "slow": SLOW, "broken": BROKEN,
}  # fmt: skip


def write_archives(folder: Path) -> None:
    """Writes all archives into a folder: those of `NAMES`, `broken`, and `tell` as version 2.0."""
    write_archive(folder, TELL, name="tell", modelVersion="2.0").rename(folder / "second.mar")
    for name, source in _SOURCES.items():
        write_archive(folder, source, name=name)
    write_archive(
        folder, STATEFUL, name="stateful", files={"model.yaml": SEQUENCES}, configFile="model.yaml"
    )
    (folder / "text.mar").write_text("no archive")
    for name, files in (("eager", _eager()), ("script", _script())):
        extra: dict[str, Any] = {"serializedFile": "model.pt"}
        if name == "eager":
            extra["modelFile"] = "network.py"
        write_archive(folder, LINEAR, name=name, files=files, **extra)


def _weights() -> Any:
    import torch

    return {
        "linear.weight": torch.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 0.25]]),
        "linear.bias": torch.tensor([0.5, -0.5]),
    }


def _eager() -> Mapping[str, str | bytes]:
    import textwrap

    import torch

    buffer = io.BytesIO()
    torch.save(_weights(), buffer)
    return {"network.py": textwrap.dedent(NETWORK), "model.pt": buffer.getvalue()}


def _script() -> Mapping[str, str | bytes]:
    import torch

    network = torch.nn.Sequential(torch.nn.Linear(3, 2))
    named = {name.replace("linear", "0"): value for name, value in _weights().items()}
    network.load_state_dict(named)
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # archives have it all the same
        torch.jit.save(torch.jit.trace(network.eval(), torch.zeros(1, 3)), buffer)  # type: ignore[no-untyped-call]
    return {"model.pt": buffer.getvalue()}
