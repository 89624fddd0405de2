"""A gateway's directory and queue, as reported by the workers."""

import pytest

from services.errors import ModelNotReadyError, UnknownModelError, UnknownVersionError
from services.queueing.directory import Directory
from services.queueing.fleet import FleetView
from services.queueing.fleet_directory import FleetDirectory, make_live
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import Lane, ServedArtifact, ServedVersion
from tests.fixtures.queue_ends import Caller, Shelf, request
from tests.fixtures.signatures import one_to_one

ONE, TWO = Lane("m", 1), Lane("m", 2)
SIGNATURE = one_to_one((1,), rows=4)


def ready(lane: Lane, *further: str) -> ServedVersion:
    signature = SIGNATURE.model_copy()  # each announcement is decoded anew
    artifacts = tuple(
        ServedArtifact(
            name=name,
            precision="int8",
            accuracy_loss=0.0,
            row_ms=1.0,
            lane=lane._replace(artifact=name),
        )
        for name in further
    )
    return ServedVersion(lane=lane, state="ready", signature=signature, artifacts=artifacts)


def view(*served: ServedVersion, live: int | None = None, started: bool = True) -> FleetView:
    return FleetView({s.lane: s for s in served}, {"m": live} if live else {}, {}, started)


class Gateway:
    """A gateway's directory and queue; all lanes end on one shelf."""

    def __init__(self) -> None:
        self.directory, self.queue, self.shelf = Directory(), MemoryQueue(9), Shelf()
        self.fleet = FleetDirectory(self.directory, self.queue, lambda _: self.shelf)

    async def sends(self, lane: Lane) -> bool:
        """Returns True if a request for a lane is sent."""
        before = self.shelf.waiting
        Caller(self.queue, request(lane=lane))
        return self.shelf.waiting > before


@pytest.fixture
def gateway() -> Gateway:
    return Gateway()


async def test_what_workers_serve_can_be_asked_for(gateway: Gateway) -> None:
    gateway.fleet.apply(view(ready(ONE), live=1))
    assert gateway.directory.resolve("m")[0].lane == ONE
    assert await gateway.sends(ONE)
    assert not await gateway.sends(TWO)


async def test_nothing_is_started_before_a_worker_is(gateway: Gateway) -> None:
    gateway.fleet.apply(view(started=False))
    assert not gateway.fleet.started
    gateway.fleet.apply(view(ready(ONE)))
    gateway.fleet.apply(view(started=False))
    assert gateway.fleet.started


async def test_a_signature_that_stays_the_same_stays_the_same_object(gateway: Gateway) -> None:
    gateway.fleet.apply(view(ready(ONE), live=1))
    first = gateway.directory.resolve("m")[1]
    gateway.fleet.apply(view(ready(ONE), ready(TWO), live=1))
    assert gateway.directory.resolve("m")[1] is first


async def test_a_model_goes_over_to_its_next_version(gateway: Gateway) -> None:
    gateway.fleet.apply(view(ready(ONE), live=1))
    gateway.fleet.apply(view(ready(ONE), ready(TWO), live=2))
    assert gateway.directory.resolve("m")[0].lane == TWO
    gateway.fleet.apply(view(ready(TWO), live=2))
    with pytest.raises(UnknownVersionError):
        gateway.directory.resolve("m", "1")
    assert not await gateway.sends(ONE)


async def test_a_model_nobody_serves_any_more_is_not_ready_and_comes_back(
    gateway: Gateway,
) -> None:
    gateway.fleet.apply(view(ready(ONE), live=1))
    gateway.fleet.apply(view())
    with pytest.raises(ModelNotReadyError, match="no worker serves it"):
        gateway.directory.resolve("m")
    with pytest.raises(UnknownModelError):
        gateway.directory.resolve("other")
    gateway.fleet.apply(view(ready(ONE), live=1))
    assert gateway.directory.resolve("m")[0].lane == ONE
    assert await gateway.sends(ONE)


async def test_the_lanes_of_artifacts_come_and_go_with_them(gateway: Gateway) -> None:
    small, tiny = (ONE._replace(artifact=name) for name in ("small", "tiny"))
    gateway.fleet.apply(view(ready(ONE, "small"), live=1))
    assert await gateway.sends(small)
    gateway.fleet.apply(view(ready(ONE, "tiny"), live=1))
    assert [await gateway.sends(lane) for lane in (ONE, small, tiny)] == [True, False, True]
    gateway.fleet.apply(view())
    assert not await gateway.sends(tiny)
    gateway.fleet.apply(view(ready(ONE, "tiny"), live=1))
    assert await gateway.sends(tiny)
    gateway.fleet.apply(view(ready(TWO), live=2))
    assert [await gateway.sends(lane) for lane in (ONE, tiny, TWO)] == [False, False, True]


def test_only_what_is_known_here_becomes_live() -> None:
    directory = Directory()
    directory.announce(ready(ONE))
    make_live(directory, view(live=2))
    assert directory.live_version("m") is None
    make_live(directory, view(live=1))
    assert directory.live_version("m") == 1
