"""Versions that workers hold, as the registry of a split server knows them."""

import pytest

from services.errors import QueueUnavailableError
from services.queueing.fleet import AnnouncedVersion, Announcement, State, fleet_view
from services.queueing.redis_streams.outage import Outage
from services.registry_server.worker_versions import WorkerVersions


def announcement(*versions: tuple[int, State], started: bool = True) -> Announcement:
    said = tuple(
        AnnouncedVersion("digits", number, state, "", "", "onnx", "", 0.0)
        for number, state in versions
    )
    return Announcement("one", started, said, {})


def versions_of(*announcements: Announcement) -> WorkerVersions:
    found = WorkerVersions(Outage("redis://127.0.0.1"))
    found.follow(fleet_view(announcements))
    return found


def test_a_version_is_held_in_every_state_but_failed() -> None:
    versions = versions_of(
        announcement((1, "ready"), (2, "loading"), (3, "unloaded"), (4, "failed"))
    )
    assert [versions.holds("digits", number) for number in range(1, 6)] == [
        True, True, True, False, False,
    ]  # fmt: skip


def test_a_version_that_the_workers_have_dropped_is_held_no_more() -> None:
    """Also one of a model that none of them announces any more."""
    versions = versions_of(announcement((1, "ready"), (2, "ready")))
    versions.follow(fleet_view([announcement((2, "ready"))]))
    assert (versions.holds("digits", 1), versions.holds("digits", 2)) == (False, True)
    versions.follow(fleet_view([announcement()]))
    assert not versions.holds("digits", 2)


@pytest.mark.parametrize("said", [(), (announcement((1, "loading"), started=False),)])
def test_without_a_started_worker_it_is_not_known(said: tuple[Announcement, ...]) -> None:
    with pytest.raises(QueueUnavailableError, match="no worker tells which versions it holds"):
        versions_of(*said).holds("digits", 2)


def test_before_the_first_look_and_without_redis_it_is_not_known() -> None:
    outage = Outage("redis://127.0.0.1")
    versions = WorkerVersions(outage)
    with pytest.raises(QueueUnavailableError, match="have not been read yet"):
        versions.holds("digits", 1)
    versions.follow(fleet_view([announcement()]))
    outage.failed(OSError("refused"))
    with pytest.raises(QueueUnavailableError, match="refused"):
        versions.holds("digits", 1)
