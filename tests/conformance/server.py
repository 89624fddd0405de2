"""The server that is examined: the models of `generated.py`, at most 8 rows a request."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.generated import ECHOED
from tests.fixtures import onnx_models
from tests.fixtures.servers import ServerProcess, running_server

MAX_ROWS = 8
LABELS = ("ant", "bee", "cat", "dog")


def publish_models(store: Path) -> None:
    """Publishes `linear`, y = 2 * x with labels, and the echoes."""
    linear = onnx_models.linear(2.0)
    onnx_models.publish(str(store), "linear", linear, max_batch_size=MAX_ROWS, labels={"y": LABELS})
    for datatype in ECHOED:
        name = f"echo-{datatype.lower()}"
        onnx_models.publish(str(store), name, onnx_models.echo(datatype), max_batch_size=MAX_ROWS)


@contextmanager
def running(store: Path, **settings: object) -> Iterator[ServerProcess]:
    """Publishes the models and serves them."""
    publish_models(store)
    with running_server(store, **settings) as server:
        server.wait_until_read_through()
        yield server
