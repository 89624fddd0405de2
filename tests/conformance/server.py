"""The server that is examined: its models, and how it runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.conformance.generated import ECHOED
from tests.e2e.stream_models import publish_count, publish_say
from tests.fixtures import onnx_models
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.stateful_models import publish_running_sum

MAX_ROWS = 8
LABELS = ("ant", "bee", "cat", "dog")
MODELS = ("linear", "count", "say", "sum", *(f"echo-{t.lower()}" for t in ECHOED))


def publish_models(store: Path) -> None:
    """Publishes the models.

    linear  y = 2 * x with labels, at most `MAX_ROWS` rows a request
    echo-…  one for each datatype of `ECHOED`
    count, say  models with any number of answers (`tests/e2e/stream_models.py`)
    sum     a running sum, with state (`tests/fixtures/stateful_models.py`)
    """
    linear = onnx_models.linear(2.0)
    onnx_models.publish(str(store), "linear", linear, max_batch_size=MAX_ROWS, labels={"y": LABELS})
    for datatype in ECHOED:
        name = f"echo-{datatype.lower()}"
        onnx_models.publish(str(store), name, onnx_models.echo(datatype), max_batch_size=MAX_ROWS)
    publish_count(str(store))
    publish_say(str(store))
    publish_running_sum(str(store))


@contextmanager
def running(store: Path, **settings: object) -> Iterator[ServerProcess]:
    """Publishes the models and serves them."""
    publish_models(store)
    with running_server(store, **settings) as server:
        server.wait_until_read_through()
        yield server
