"""Python models with any number of answers, in a server of every shape."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from model_store.golden import GoldenRows
from tests.fixtures import python_models
from tests.fixtures.misbehaving_models import WIDTH
from tests.fixtures.servers import ServerProcess
from tests.fixtures.signatures import one_to_one

COUNT = """
class Model:
    def infer(self, inputs):
        count = int(inputs["x"][0, 0])
        if count < 0:
            raise ValueError("the count is negative; send 0 or more")
        for number in range(count):
            if number == 50:
                raise RuntimeError("fifty")
            yield {"y": 0 * inputs["x"] + number}
"""
ENDLESS = """
from pathlib import Path

class Model:
    def load(self, context):
        self.ended = Path(context.args["ended"])

    def infer(self, inputs):
        yield {"y": inputs["x"]}
        if inputs["x"][0, 0] == 0:
            return
        try:
            while True:
                yield {"y": inputs["x"]}
        finally:
            self.ended.touch()
"""
TEXT = python_models.signature_of(
    [("text", "BYTES", (-1,)), ("times", "INT32", (-1,))],
    [("said", "BYTES", (-1,)), ("left", "INT32", (-1,))],
    rows=1,
)
SAY = """
import numpy as np

class Model:
    def infer(self, inputs):
        times = int(inputs["times"][0])
        if times > 99:
            raise ValueError("too often; ask for 99 at most")
        for number in range(times):
            if number == 5:
                raise RuntimeError("five")
            yield {"said": inputs["text"], "left": np.array([times - number - 1], np.int32)}
"""


def publish_count(store_url: str) -> None:
    """Publishes `count`: as many answers as the first number of `x` says; the 51st fails."""
    x = np.full((1, WIDTH), 1, np.float32)
    one = one_to_one((WIDTH,), rows=1)
    golden = GoldenRows({"x": x}, {"y": 0 * x})
    python_models.publish(store_url, "count", COUNT, one, golden, process="shared")


def publish_say(store_url: str) -> None:
    """Publishes `say`: `said` is `text`, as many times as `times` says; the 6th fails."""
    said = {"said": np.array([b"hi"], object), "left": np.array([0], np.int32)}
    asked = {"text": np.array([b"hi"], object), "times": np.array([1], np.int32)}
    python_models.publish(store_url, "say", SAY, TEXT, GoldenRows(asked, said), process="shared")


@contextmanager
def stream_server(running: Any, store: Path) -> Iterator[ServerProcess]:
    """Runs a server of these models.

    count    see `publish_count`
    endless  answers without an end; it touches `store/../ended` once nobody reads
    say      see `publish_say`
    double   one answer
    """
    publish_count(str(store))
    publish_say(str(store))
    x, one = np.full((1, WIDTH), 1, np.float32), one_to_one((WIDTH,), rows=1)
    zero = GoldenRows({"x": 0 * x}, {"y": 0 * x})
    args = {"ended": str(store.parent / "ended")}
    python_models.publish(str(store), "endless", ENDLESS, one, zero, args=args)
    python_models.publish(str(store), "double", python_models.DOUBLING, process="shared")
    with running(store, max_request_bytes=8 * 2**20) as server:
        server.wait_until_read_through()
        yield server
