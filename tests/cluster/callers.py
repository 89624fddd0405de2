"""Steady load by third-party clients, each with retries as its manual recommends.

REST by urllib3, gRPC by tritonclient, both through Envoy; and gRPC directly to the pods of a
headless Service, balanced by grpcio (`round_robin`).
"""

import itertools
import json
import random
import threading
import time
from collections.abc import Callable

import grpc
import numpy as np
import urllib3

from tests.cluster.ledger import Ledger
from tests.fixtures.triton_client import TritonClient
from tests.fixtures.triton_messages import GRPCInferenceServiceStub, pb

MODEL = "rolling"
"""Version n answers n times its input."""
PAUSE_S = 0.15
PATIENCE_S = 30.0
"""Timeout of each call."""
RETRIES = urllib3.Retry(
    total=8,
    backoff_factor=0.2,
    backoff_max=2,
    status_forcelist=(502, 503, 504),
    allowed_methods=None,  # an inference may be retried
)
# grpcio makes five attempts at most: they have to last until a moved Redis is back.
_POLICY = {
    "methodConfig": [
        {
            "name": [{"service": "inference.GRPCInferenceService"}],
            "retryPolicy": {
                "maxAttempts": 5,
                "initialBackoff": "0.5s",
                "maxBackoff": "10s",
                "backoffMultiplier": 3,
                "retryableStatusCodes": ["UNAVAILABLE"],
            },
        }
    ],
    "loadBalancingConfig": [{"round_robin": {}}],
}
CHANNEL_OPTIONS: list[tuple[str, object]] = [
    ("grpc.service_config", json.dumps(_POLICY)),
    ("grpc.enable_retries", 1),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 1_000),
]
"""Retries after a refusal, a shutdown, or a silent death (keepalive)."""

Answer = tuple[int, list[float], int]
"""The version that answered, its output, and the number of retries by the client."""
Ask = Callable[[float], Answer]


class Callers:
    """All clients; they send inside the block.

    Args:
        front: `host:port` of Envoy.
        headless: gRPC target of the pods themselves.
        ledger: record of the calls.
        each: number of clients of each kind.
        seed: seed of their choices.
    """

    def __init__(self, front: str, headless: str, ledger: Ledger, each: int, seed: int) -> None:
        self._ledger = ledger
        self._over = threading.Event()
        asks: dict[str, Callable[[], Ask]] = {
            "rest": lambda: _rest(front),
            "grpc": lambda: _grpc(front),
            "direct": lambda: _direct(headless),
        }
        numbers = itertools.count(seed)
        self._threads = [
            threading.Thread(target=self._ask_on, args=(kind, make, random.Random(next(numbers))))
            for kind, make in asks.items()
            for _ in range(each)
        ]

    def __enter__(self) -> "Callers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, kind: str, make: Callable[[], Ask], chance: random.Random) -> None:
        ask = make()
        while not self._over.wait(PAUSE_S):
            value, phase = float(chance.randrange(1000)), self._ledger.phase
            began = time.monotonic()
            try:
                version, said, retried = ask(value)
            except Exception as error:  # any exception counts as a client's error
                spent_s = time.monotonic() - began
                what = f"{type(error).__name__} after {spent_s:.1f} s: {str(error)[:400]}"
                self._ledger.failed(phase, kind, what)
                continue
            right = [version * value] * 4
            wrong = "" if said == right else f"version {version} said {said}, not {right}"
            latency_s = time.monotonic() - began
            self._ledger.answered(phase, kind, latency_s, retried=retried, wrong=wrong)


def _rest(front: str) -> Ask:
    pool = urllib3.PoolManager(retries=RETRIES, timeout=PATIENCE_S)

    def ask(value: float) -> Answer:
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}
        reply = pool.request(
            "POST", f"http://{front}/v2/models/{MODEL}/infer", json={"inputs": [tensor]}
        )
        if reply.status != 200:
            raise ValueError(f"{reply.status}: {reply.data[:300]!r}")
        document = reply.json()
        retried = len(reply.retries.history) if reply.retries else 0
        return int(document["model_version"]), document["outputs"][0]["data"], retried

    return ask


def _grpc(front: str) -> Ask:
    client = TritonClient("grpc", front, channel_args=CHANNEL_OPTIONS)

    def ask(value: float) -> Answer:
        x = np.full((1, 4), value, np.float32)
        reply = client.infer(MODEL, {"x": x}, client_timeout=PATIENCE_S)
        return int(reply.model_version), reply.outputs["y"][0].tolist(), 0

    return ask


def _direct(headless: str) -> Ask:
    stub = GRPCInferenceServiceStub(grpc.insecure_channel(headless, CHANNEL_OPTIONS))

    def ask(value: float) -> Answer:
        tensor = pb.ModelInferRequest.InferInputTensor(name="x", datatype="FP32", shape=[1, 4])
        tensor.contents.fp32_contents.extend([value] * 4)
        request = pb.ModelInferRequest(model_name=MODEL, inputs=[tensor])
        reply = stub.ModelInfer(request, timeout=PATIENCE_S)
        return int(reply.model_version), list(reply.outputs[0].contents.fp32_contents), 0

    return ask
