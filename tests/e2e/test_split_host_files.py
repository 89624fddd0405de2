"""Large tensors between processes of one host, while processes are killed."""

import json
import os
import signal
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from tests.e2e.rest_calls import call, infer_path
from tests.fixtures.onnx_models import publish, slow_identity
from tests.fixtures.redis_servers import redis_process, until_true
from tests.fixtures.servers import ServerProcess
from tests.fixtures.split_servers import Part, running_gateway, running_worker

COLUMNS = 2**18
"""A request and its answer have 1 MiB each."""
HOST = Path(f"/dev/shm/flambeau-{os.geteuid()}")


def echoed(gateway: ServerProcess, seed: int) -> bool:
    """Sends a request of 1 MiB. Returns whether the answer has the same bytes."""
    data = np.random.default_rng(seed).random(COLUMNS, np.float32).tobytes()
    size = {"binary_data_size": len(data)}
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, COLUMNS], "parameters": size}
    fields = {"inputs": [tensor], "parameters": {"binary_data_output": True}}
    head = json.dumps(fields).encode()
    headers = {"Inference-Header-Content-Length": str(len(head))}
    reply = call(gateway, "POST", infer_path("echo"), head + data, headers)
    assert reply.status == 200, reply.body[:500]
    return reply.body.endswith(data)


def folders_of(part: Part) -> list[Path]:
    return list(HOST.glob(f"*-{part.process.pid}-*"))


@pytest.mark.long
def test_killed_processes_cost_no_request_and_leave_no_memory(tmp_path: Path) -> None:
    publish(
        str(tmp_path / "store"), "echo", slow_identity(6_000, columns=COLUMNS), max_batch_size=2
    )
    with redis_process() as redis, ExitStack() as stack:
        stays, dies = [
            stack.enter_context(running_worker(tmp_path / "store", redis.url)) for _ in range(2)
        ]
        gateway = stack.enter_context(running_gateway(redis.url))
        (own,) = folders_of(gateway)
        assert len(folders_of(stays)) == len(folders_of(dies)) == 1
        until_true(lambda: gateway.metric("flambeau_fleet_workers") == 2)
        right: list[bool] = []
        threads = [
            threading.Thread(target=lambda seed=seed: right.append(echoed(gateway, seed)))
            for seed in range(12)
        ]
        for thread in threads:
            thread.start()
        until_true(lambda: len(list(own.glob("request-*"))) >= 6, every_s=0.01)
        dies.expected_code = -signal.SIGKILL
        dies.process.kill()
        for thread in threads:
            thread.join()
        assert Counter(right) == {True: 12}
        until_true(lambda: not folders_of(dies))
        assert list(own.iterdir()) == []
        (own / "request-1").write_bytes(b"x")
        gateway.expected_code = -signal.SIGKILL
        gateway.process.kill()
        until_true(lambda: not own.exists())
