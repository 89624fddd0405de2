"""What all workers together serve, from what each of them says."""

from services.queueing.records import Lane
from services.queueing.redis_streams.fleet import (
    AnnouncedVersion,
    Announcement,
    State,
    fleet_view,
)

ONE, TWO = Lane("m", 1), Lane("m", 2)


def version(
    lane: Lane, state: State = "ready", reason: str = "", row_s: float = 0.0
) -> AnnouncedVersion:
    return AnnouncedVersion(lane.model, lane.version, state, reason, "", "onnx", "fp32", row_s)


def worker(
    *versions: AnnouncedVersion, live: tuple[int, int] | None = None, started: bool = True
) -> Announcement:
    return Announcement("w", started, versions, {"m": live} if live else {})


def test_nobody_serves_nothing() -> None:
    view = fleet_view([])
    assert (view.versions, view.live, view.started) == ({}, {}, False)


def test_a_version_is_ready_as_soon_as_one_worker_has_it() -> None:
    view = fleet_view([worker(version(ONE, "failed", "no room")), worker(version(ONE))])
    assert view.versions[ONE].state == "ready"
    assert view.versions[ONE].reason == ""


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
