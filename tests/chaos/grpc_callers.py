"""Steady load over gRPC: small tensors and large ones, recorded in the ledger."""

import random
import threading
from dataclasses import dataclass
from itertools import count
from typing import Any

import grpc
import numpy as np

from tests.chaos.callers import AFTER_FAILURE_S, MODEL, PATIENCE_S, PAUSE_S, SCALE
from tests.chaos.ledger import Ledger
from tests.chaos.processes_server import ProcessesServer
from tests.e2e.grpc_calls import outputs, raw_request
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

ECHO = "echo"
"""A model that returns `in_FP32` as `out_FP32`."""
LARGE = 200_000
"""Elements that travel in steps through the shared memory."""
LARGE_SHARE = 0.2
STATUSES = {
    grpc.StatusCode.UNAVAILABLE: 503,
    grpc.StatusCode.RESOURCE_EXHAUSTED: 503,
    grpc.StatusCode.DEADLINE_EXCEEDED: 504,
}
OF_THE_LIBRARY = ("failed to connect", "Socket closed", "reset by peer", "GOAWAY", "Broken pipe",
                  "Connection refused", "Stream removed", "Endpoint closing")  # fmt: skip
"""Words of the client's library where a connection, or the attempt at one, has ended."""
QUICKLY = (
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.use_local_subchannel_pool", 1),
)


@dataclass
class GrpcCallers:
    """All clients of one run; the fields are those of `Callers`."""

    server: ProcessesServer
    ledger: Ledger
    count: int
    seed: int

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._numbers = count()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(random.Random(self.seed + n),))
            for n in range(self.count)
        ]

    def __enter__(self) -> "GrpcCallers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, chance: random.Random) -> None:
        with grpc.insecure_channel(self.server.grpc, QUICKLY) as channel:
            stub: Any = GRPCInferenceServiceStub(channel)
            worked = self.server.endings.now()
            while not self._over.is_set():
                mark = self.server.endings.now()
                if self._ask(stub, chance, worked):
                    worked = mark
                    self._over.wait(PAUSE_S)
                else:
                    self._over.wait(AFTER_FAILURE_S)

    def _ask(self, stub: Any, chance: random.Random, worked: int) -> bool:
        """Sends one request. Returns True on a response with a value.

        Args:
            stub: where it sends it.
            chance: source of its choices.
            worked: mark from before the last call that was answered.
        """
        request_id, value = f"g{next(self._numbers)}", float(chance.randrange(1000))
        if chance.random() < LARGE_SHARE:
            array = np.full((1, LARGE), value, np.float32)
            name, model, expected = "in_FP32", ECHO, value
        else:
            array = np.full((1, 4), value, np.float32)
            name, model, expected = "x", MODEL, SCALE * value
        request = raw_request(model, {name: ("FP32", array)}, id=request_id)
        with self._lock:
            self.ledger.asked(request_id, expected)
        try:
            response = stub.ModelInfer(request, timeout=PATIENCE_S)
        except grpc.RpcError as error:
            words = error.details() or ""
            with self._lock:
                if any(said in words for said in OF_THE_LIBRARY):
                    self.ledger.cut_off(request_id, self.server.endings.since(worked))
                else:
                    status = STATUSES.get(error.code(), 500)
                    self.ledger.refused(request_id, status, f"{error.code().name}: {words}")
            return False
        (found,) = outputs(response).values()
        right = found.shape == array.shape and (found == found[0, 0]).all()
        with self._lock:
            self.ledger.answered(response.id, float(found[0, 0]) if right else float("nan"))
        return True
