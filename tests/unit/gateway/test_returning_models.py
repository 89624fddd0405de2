"""Inferences whose model made room for others: they wait, and each gets one outcome."""

import time
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from services.access.authenticator import CachedAuthorization
from services.access.caller import Caller
from services.access.grants import Grant
from services.access.tenants import Tenants
from services.errors import RateLimitedError, TooManyInFlightError
from services.gateway import sliced_work
from services.gateway.admission import Admission, InferCall, InputTensor
from services.gateway.edges.rest_infer import REST
from services.gateway.inference import InferencePath
from services.gateway.load_waits import BEGUN_A_TURN
from services.gateway.request_accounting import RequestAccounting
from services.gateway.sliced_work import Slices
from services.queueing.directory import Directory
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import Lane, ServedVersion
from services.telemetry.access_metrics import AccessMetrics
from services.telemetry.metrics import Metrics
from services.wire.body import Body
from tests.fixtures.inferences import KeepingSink
from tests.fixtures.queue_ends import Shelf
from tests.fixtures.redis_servers import until
from tests.fixtures.signatures import one_to_one

LANE = Lane("m", 1)
AWAY = ServedVersion(lane=LANE, state="unloaded", reason="made room", comes_back=True)
READY = ServedVersion(lane=LANE, state="ready", signature=one_to_one((1,), rows=4))


class LargeSink(KeepingSink):
    """Decodes its request in slices."""

    def decode(self, body: Body, caller: Caller | None) -> Slices[InferCall]:  # type: ignore[override]
        yield
        array = np.ones((1, 1), np.float32)
        tensor = InputTensor(name="x", datatype="FP32", array=array)
        return InferCall(request_id="r", model="m", version="", inputs=[tensor], caller=caller)


class Place:
    """A gateway of one version that is away."""

    def __init__(self) -> None:
        self.directory, queue, metrics = Directory(), MemoryQueue(100), Metrics("0")
        self.directory.announce(AWAY)
        self.directory.make_live(LANE)
        self.directory.missing = lambda _lane, _is_known: None
        self.shelf = Shelf()
        queue.open(LANE, self.shelf)
        self.admission = Admission(
            self.directory, queue, metrics, max_in_flight_requests=100, request_timeout_s=60
        )
        accounting = RequestAccounting(metrics, self.directory, access_log=False)
        self.path = InferencePath(REST, self.admission, accounting)

    def begin(self, authorization: CachedAuthorization | None = None) -> LargeSink:
        sink = LargeSink()
        self.path.open(sink, time.monotonic(), "r", "m").begin(b"", authorization)
        return sink


def authorized(requests_per_s: float) -> CachedAuthorization:
    """Returns the authorization of a caller with a rate."""
    metrics = AccessMetrics(CollectorRegistry())
    tenant = Tenants(metrics).find("me", requests_per_s, 0)
    caller = Caller("key:me", [Grant("infer", "*")], time.time() + 60, tenant, metrics)
    return cast(CachedAuthorization, SimpleNamespace(caller=lambda _model: caller))


async def test_large_requests_wait_and_are_admitted_once_their_model_is_back() -> None:
    place = Place()
    sinks = [place.begin() for _ in range(2 * BEGUN_A_TURN)]
    assert place.admission.load_waits.count == len(sinks)
    place.directory.announce(READY)
    await until(lambda: place.shelf.waiting == len(sinks))
    assert not any(sink.errors for sink in sinks)


async def test_large_requests_that_cannot_be_decoded_after_a_wait_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place()
    sinks = [place.begin() for _ in range(2 * BEGUN_A_TURN)]
    monkeypatch.setattr(sliced_work, "MAX_WAITING", 0)
    place.directory.announce(READY)
    await until(lambda: all(sink.errors for sink in sinks))
    assert {type(error) for sink in sinks for error in sink.errors} == {TooManyInFlightError}
    assert place.admission.load_waits.count == 0


async def test_request_that_waits_counts_once_against_its_callers_rate() -> None:
    place = Place()
    caller = authorized(0.001)  # a single one is free at first
    waiting, refused = place.begin(caller), place.begin(caller)
    assert isinstance(refused.errors[0], RateLimitedError)
    place.directory.announce(READY)
    await until(lambda: place.shelf.waiting == 1)
    assert not waiting.errors
