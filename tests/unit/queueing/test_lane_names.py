"""Names of lanes in Redis: one name for each lane, and back."""

from hypothesis import given
from hypothesis import strategies as st

from services.queueing.records import Lane
from services.queueing.redis_streams.keys import LaneKeys, lane_of, version_text

ARTIFACTS = st.just("") | st.from_regex(r"[a-z0-9][a-z0-9-]*", fullmatch=True)
LANES = st.builds(Lane, st.just("m"), st.integers(1, 10**6), ARTIFACTS)


def all_keys(lane: Lane) -> set[str]:
    found: set[str] = set()
    for jobs in (False, True):
        keys = LaneKeys(lane, jobs)
        found |= {keys.workers, *keys.streams, keys.payload, keys.notices, keys.dead}
    return found


@given(LANES)
def test_a_lane_is_found_by_its_name(lane: Lane) -> None:
    assert lane_of("m", version_text(lane)) == lane


@given(LANES, LANES)
def test_two_lanes_share_no_key_but_a_slot(one: Lane, other: Lane) -> None:
    assert one == other or not all_keys(one) & all_keys(other)
    assert all(key.startswith("flambeau:{m}:") for key in all_keys(one))


def test_a_version_keeps_the_names_it_had() -> None:
    assert LaneKeys(Lane("m", 3)).workers == "flambeau:{m}:3:workers"
    assert LaneKeys(Lane("m", 3, "jobs")).workers == "flambeau:{m}:3@jobs:workers"
