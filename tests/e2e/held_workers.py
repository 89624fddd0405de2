"""Suspended worker processes, so that running and queued work is known instead of timed.

For servers with models in processes of their own (`isolate`): a worker stopped by a signal keeps
its batch until it is continued, independent of the machine's speed.
"""

import contextlib
import os
import signal
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from tests.e2e.rest_calls import infer
from tests.fixtures.servers import ServerProcess
from tests.fixtures.worker_processes import children_of


@contextlib.contextmanager
def stopped_workers(server: ServerProcess) -> Iterator[None]:
    """Suspends every worker process until the block ends."""
    workers = children_of(server.pid)
    assert workers, "no worker processes: start the server with isolate=True"
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in workers:
            with contextlib.suppress(ProcessLookupError):  # it was killed
                os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def held_worker(
    server: ServerProcess, model: str, *inputs: Mapping[str, Any], **fields: Any
) -> Iterator[None]:
    """Keeps the model's only instance busy with this request until the block ends; others wait."""
    with ThreadPoolExecutor(1) as threads:
        with stopped_workers(server):
            before = server.metric("flambeau_in_flight_requests")
            held = threads.submit(infer, server, model, *inputs, **fields)
            server.wait_for_metric(before + 1, "flambeau_in_flight_requests")
            server.wait_for_metric(0, "flambeau_queue_depth", model=model)
            yield
            assert not held.done(), "the worker was never held"
        assert held.result().status == 200, held.result().body
