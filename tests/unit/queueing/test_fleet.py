"""The models served by all workers together, from each worker's report."""

import msgspec
import pytest

from model_store.rollouts.traffic import Shadow, Traffic
from services.queueing.directory import Directory
from services.queueing.fleet import (
    AnnouncedArtifact,
    AnnouncedVersion,
    Announcement,
    State,
    announced,
    announced_traffic,
    fleet_view,
)
from services.queueing.fleet_directory import FleetDirectory
from services.queueing.memory_queue import MemoryQueue
from services.queueing.records import Lane, ServedArtifact, ServedVersion
from tests.fixtures.queue_ends import Shelf

ONE, TWO = Lane("m", 1), Lane("m", 2)


def version(
    lane: Lane,
    state: State = "ready",
    reason: str = "",
    row_s: float = 0.0,
    artifacts: tuple[AnnouncedArtifact, ...] = (),
) -> AnnouncedVersion:
    return AnnouncedVersion(
        lane.model, lane.version, state, reason, "", "onnx", "fp32", row_s, artifacts
    )


def artifact(
    name: str, *, is_default: bool = False, precision: str = "int8", row_s: float = 0.0
) -> AnnouncedArtifact:
    return AnnouncedArtifact(name, precision, 0.01, 2.0, is_default, row_s)


def worker(
    *versions: AnnouncedVersion,
    live: tuple[int, int] | None = None,
    started: bool = True,
    name: str = "w",
) -> Announcement:
    return Announcement(name, started, versions, {"m": live} if live else {})


def test_nobody_serves_nothing() -> None:
    view = fleet_view([])
    assert (view.versions, view.live, view.started) == ({}, {}, False)


def test_a_version_is_ready_as_soon_as_one_worker_has_it() -> None:
    view = fleet_view([worker(version(ONE, "failed", "no room")), worker(version(ONE))])
    assert view.versions[ONE].state == "ready"
    assert view.versions[ONE].reason == ""


def test_what_workers_say_of_their_stores_is_told_once() -> None:
    said = [
        Announcement(name, True, (), {}, fault)
        for name, fault in (("a", "x"), ("b", "x"), ("c", ""))
    ]
    assert fleet_view(said).faults == ("x",)


def test_an_announcement_of_an_older_worker_is_understood() -> None:
    older = msgspec.msgpack.encode(["w", True, [], {}])
    assert msgspec.msgpack.decode(older, type=Announcement).fault == ""


def test_why_nobody_has_a_version_is_told_once_for_each_reason() -> None:
    said = [worker(version(ONE, "failed", why)) for why in ("no room", "no room", "wrong")]
    view = fleet_view(said)
    assert (view.versions[ONE].state, view.versions[ONE].reason) == ("failed", "no room; wrong")


def test_a_model_goes_over_when_the_last_worker_has() -> None:
    ready = (version(ONE), version(TWO))
    behind = worker(version(ONE), version(TWO, "loading"), live=(7, 1))
    assert fleet_view([worker(*ready, live=(8, 2)), behind]).live == {"m": 1}
    assert fleet_view([worker(*ready, live=(8, 2)), worker(*ready, live=(8, 2))]).live == {"m": 2}


def test_a_worker_that_cannot_go_over_holds_nobody_up() -> None:
    cannot = worker(version(ONE), version(TWO, "failed", "no room"), live=(7, 1))
    assert fleet_view([worker(version(ONE), version(TWO), live=(8, 2)), cannot]).live == {"m": 2}


def test_a_worker_that_has_nothing_live_yet_holds_nobody_up() -> None:
    starting = worker(version(TWO, "loading"), started=False)
    assert fleet_view([worker(version(TWO), live=(8, 2)), starting]).live == {"m": 2}


def test_going_back_is_going_over_too() -> None:
    ready = (version(ONE), version(TWO))
    back, behind = worker(*ready, live=(9, 1)), worker(*ready, live=(8, 2))
    assert fleet_view([back, behind]).live == {"m": 2}
    assert fleet_view([back, back]).live == {"m": 1}


def test_two_workers_halve_what_a_row_costs() -> None:
    said = [worker(version(ONE, row_s=0.2)), worker(version(ONE, row_s=0.2)), worker(version(ONE))]
    assert fleet_view(said).row_s == {ONE: 0.1}
    assert fleet_view([worker(version(ONE))]).row_s == {ONE: 0.0}


def lanes_of(*said: Announcement) -> dict[str, Lane]:
    """The artifacts of version 1 that can be asked for, each with its lane."""
    return {known.name: known.lane for known in fleet_view(said).versions[ONE].artifacts}


def test_an_artifact_can_be_asked_for_as_soon_as_one_worker_keeps_it() -> None:
    default, small = artifact("whole", is_default=True), artifact("small", row_s=0.2)
    said = [
        worker(version(ONE, row_s=0.4, artifacts=(default,))),
        worker(version(ONE, row_s=0.4, artifacts=(default, small))),
        worker(version(ONE, "loading", artifacts=(artifact("never"),))),
    ]
    further = Lane("m", 1, "small")
    assert lanes_of(*said) == {"whole": ONE, "small": further}
    assert fleet_view(said).row_s == {ONE: 0.2, further: 0.2}


def test_different_default_ones_count_as_one_that_has_no_name_of_theirs() -> None:
    said = [
        worker(version(ONE, artifacts=(artifact("b", is_default=True, precision="fp32"),))),
        worker(version(ONE, artifacts=(artifact("a", is_default=True), artifact("b")))),
    ]
    assert lanes_of(*said) == {"a or b": ONE, "b": Lane("m", 1, "b")}
    assert fleet_view(said).versions[ONE].artifacts[0].precision == "int8"


def test_what_is_announced_is_what_is_heard() -> None:
    further = Lane("m", 1, "small")
    artifacts = tuple(
        ServedArtifact(name=name, precision="int8", accuracy_loss=0.25, row_ms=0.5, lane=lane)
        for name, lane in (("onnx", ONE), ("small", further))
    )
    served = ServedVersion(
        lane=ONE, state="ready", artifact="onnx", artifacts=artifacts, semver="1.4.0"
    )
    row_s = {ONE: 0.5, further: 0.25}
    view = fleet_view([worker(announced(served, row_s))])
    assert (view.versions, view.row_s) == ({ONE: served}, row_s)


def test_the_workers_of_a_version_are_known_by_name() -> None:
    view = fleet_view([worker(version(ONE), version(TWO), name="a"), worker(version(TWO))])
    assert view.workers == {ONE: {"a"}, TWO: {"a", "w"}}


def test_aliases_are_those_of_the_newest_pointers_whose_version_is_ready() -> None:
    def said(generation: int, aliases: dict[str, int], *versions: AnnouncedVersion) -> Announcement:
        return Announcement("w", True, versions, {"m": (generation, 1)}, "", {"m": aliases})

    old = said(4, {"canary": 1, "old": 1}, version(ONE))
    loads = said(5, {"canary": 2}, version(ONE), version(TWO, "loading"))
    ready = said(5, {"canary": 2}, version(ONE), version(TWO))
    assert fleet_view([old, loads]).aliases == {"m": {"canary": 1, "old": 1}}
    assert fleet_view([ready, old]).aliases == {"m": {"canary": 2, "old": 1}}
    assert fleet_view([ready]).aliases == {"m": {"canary": 2}}


TRAFFIC = Traffic(shadow=Shadow(candidate=2, sample=0.5))


def sharing(generation: int, traffic: Traffic | None) -> Announcement:
    said = {"m": traffic.model_dump_json()} if traffic is not None else {}
    return Announcement("w", True, (version(ONE),), {"m": (generation, 1)}, traffic=said)


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ([(1, TRAFFIC)], {"m": TRAFFIC}),
        ([(1, None), (2, TRAFFIC)], {"m": TRAFFIC}),
        ([(2, None), (1, TRAFFIC)], {"m": None}),
    ],
)
def test_traffic_is_that_of_the_newest_pointers(
    said: list[tuple[int, Traffic | None]], found: dict[str, Traffic | None]
) -> None:
    assert fleet_view([sharing(*one) for one in said]).traffic == found
    assert fleet_view([sharing(*one) for one in reversed(said)]).traffic == found


def test_traffic_of_a_newer_release_is_left_out() -> None:
    said = Announcement("w", True, (version(ONE),), {"m": (1, 1)}, traffic={"m": '{"new": 1}'})
    view = fleet_view([said])
    assert view.traffic == {"m": None}
    assert view.versions


def test_announced_traffic_is_that_of_the_models_here() -> None:
    encoded = msgspec.msgpack.encode(sharing(1, TRAFFIC))
    said = msgspec.msgpack.decode(encoded, type=Announcement)
    assert fleet_view([said]).traffic == {"m": TRAFFIC}
    assert announced_traffic({"m": TRAFFIC, "n": TRAFFIC}, ["m"]).keys() == {"m"}


def loading(traffic: Traffic | None = None) -> Announcement:
    """Returns the announcement of a worker that has just started."""
    said = {"m": traffic.model_dump_json()} if traffic is not None else {}
    return Announcement("w", False, (version(ONE, "loading"),), {}, traffic=said)


def test_traffic_of_a_model_that_no_worker_has_live_is_what_one_says_or_unknown() -> None:
    assert fleet_view([loading()]).traffic == {}
    assert fleet_view([loading(TRAFFIC), loading()]).traffic == {"m": TRAFFIC}
    assert fleet_view([loading(TRAFFIC), sharing(1, None)]).traffic == {"m": None}


def test_traffic_stays_while_the_workers_restart() -> None:
    directory, queue = Directory(), MemoryQueue(8)
    followed = FleetDirectory(directory, queue, lambda _: Shelf())
    followed.apply(fleet_view([sharing(1, TRAFFIC)]))
    for said in ([loading()], [], [loading()], [sharing(1, TRAFFIC)]):
        followed.apply(fleet_view(said))
        assert directory.traffic("m") == TRAFFIC
    followed.apply(fleet_view([sharing(2, None)]))
    assert directory.traffic("m") is None
