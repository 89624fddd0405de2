"""Steps of a rollout: each is the next generation, and what cannot follow is refused."""

import pytest

from model_store.errors import RolloutError
from model_store.pointers import PRODUCTION, Pointers, parse_pointers
from model_store.rollouts.traffic import MAX_SPREADS, Arm, Rollout, Shadow, Split, Traffic
from model_store.rollouts.transitions import (
    advanced,
    begun,
    ended,
    paused,
    promoted,
    resumed,
    shadow_begun,
    split_begun,
)

LIVE = Pointers.after(None, {PRODUCTION: 1}, "ada", "first")


def rolling(**changes: object) -> Pointers:
    rollout = Rollout.model_validate(
        {"candidate": 2, "baseline": 1, "steps": (0.01, 0.5, 1), **changes}
    )
    return begun(LIVE, rollout, "ada", "better")


def test_a_rollout_goes_step_by_step_to_the_promotion() -> None:
    first = rolling()
    assert first.generation == 2
    assert first.aliases == {PRODUCTION: 1}
    second = advanced(first, "", "controller", "kept")
    assert second.traffic.rollout is not None
    assert second.traffic.rollout.share == 0.5
    last = advanced(second, "", "controller", "kept")
    assert last.aliases == {PRODUCTION: 2}
    assert not last.traffic


def test_its_generation_is_read_as_it_was_written() -> None:
    written = paused(rolling(sticky="header:X-User"), "", "ada", "lunch")
    assert parse_pointers(written.to_json(), "here") == written
    assert written.traffic.rollout is not None
    assert written.traffic.rollout.sticky == "header:x-user"


def test_spreads_are_kept_to_the_end_and_may_be_missing() -> None:
    """Servers before they were known neither write nor take the key."""
    for spreads in ({}, {"y": 0.5}):
        first = rolling(spreads=spreads)
        rollout = parse_pointers(advanced(first, "", "a", "").to_json(), "here").traffic.rollout
        assert rollout is not None
        assert rollout.spreads == spreads
        shadow = Shadow(candidate=2, sample=0.1, spreads=spreads)
        assert Shadow.model_validate_json(shadow.model_dump_json()) == shadow
        written = [rollout.model_dump(mode="json"), shadow.model_dump(mode="json")]
        assert ["spreads" in one for one in written] == [bool(spreads)] * 2


def test_pointers_with_the_longest_spreads_are_read() -> None:
    names = [chr(0x10000 + n) * 256 for n in range(MAX_SPREADS)]
    spreads = dict.fromkeys(names, 2.2250738585072014e-308)
    first = rolling(spreads=spreads)
    begun_too = shadow_begun(first, Shadow(candidate=2, sample=0.1, spreads=spreads), "a", "")
    assert parse_pointers(begun_too.to_json(), "here") == begun_too


def test_generations_without_traffic_are_as_older_servers_read_them() -> None:
    assert set(LIVE.model_dump()) == {
        "schema_version", "generation", "aliases", "who", "when", "why",
    }  # fmt: skip


def test_a_pause_keeps_the_step_and_a_resume_begins_it_again() -> None:
    first = rolling()
    held = paused(first, "", "ada", "lunch")
    with pytest.raises(RolloutError, match="is paused: lunch"):
        paused(held, "", "ada", "again")
    going = resumed(held, "", "ada", "")
    assert going.traffic.rollout is not None
    assert first.traffic.rollout is not None
    assert going.traffic.rollout.share == first.traffic.rollout.share
    assert going.traffic.rollout.step_began > first.traffic.rollout.step_began
    with pytest.raises(RolloutError, match="not paused"):
        resumed(going, "", "ada", "")


def test_the_end_keeps_the_baseline_and_the_evidence() -> None:
    over = ended(rolling(), "", "controller", "errors are worse", {"guard": "errors"})
    assert over.aliases == {PRODUCTION: 1}
    assert not over.traffic
    assert parse_pointers(over.to_json(), "here").evidence == {"guard": "errors"}


def test_another_rollouts_id_is_refused() -> None:
    rollout = rolling()
    with pytest.raises(RolloutError, match="the rollout 0000 has ended"):
        promoted(rollout, "0000", "controller", "kept")
    with pytest.raises(RolloutError, match="no version is being rolled out"):
        ended(LIVE, "", "ada", "")


def test_a_rollout_needs_its_baseline_live_and_the_requests_to_itself() -> None:
    rollout = Rollout(candidate=2, baseline=1, steps=(0.1, 1))
    with pytest.raises(RolloutError, match="names no version"):
        begun(None, rollout, "ada", "")
    with pytest.raises(RolloutError, match="names version 3 and no longer 1"):
        begun(Pointers.after(LIVE, {PRODUCTION: 3}, "ada", ""), rollout, "ada", "")
    with pytest.raises(RolloutError, match="version 2 is being rolled out since"):
        begun(rolling(), rollout, "ada", "")
    split = Split(name="colours", arms=(Arm(version=1, share=0.5), Arm(version=2, share=0.5)))
    apart = Pointers.after(LIVE, LIVE.aliases, "ada", "", Traffic(split=split))
    with pytest.raises(RolloutError, match="'colours' has the requests"):
        begun(apart, rollout, "ada", "")


def test_a_last_step_below_all_requests_waits_for_somebody() -> None:
    with pytest.raises(RolloutError, match="at its last step"):
        advanced(rolling(steps=(0.1,)), "", "controller", "")


def splitting() -> Pointers:
    split = Split(name="ab", arms=(Arm(version=1, share=0.5), Arm(version=2, share=0.5)))
    return split_begun(LIVE, split, "ada", "")


@pytest.mark.parametrize("version", [1, 2, 3])
@pytest.mark.parametrize(
    ("before", "ended"), [(rolling(), "rollout of version 2"), (splitting(), "split 'ab'")]
)
def test_a_move_of_production_ends_a_rollout_and_a_split(
    before: Pointers, ended: str, version: int
) -> None:
    """Also a move to the version that it names already."""
    moved = Pointers.moved(before, PRODUCTION, version, "ada", "")
    assert (moved.aliases, bool(moved.traffic)) == ({PRODUCTION: version}, False)
    assert before.traffic.ended_in(moved.traffic) == (ended,)
    assert LIVE.traffic.ended_in(before.traffic) == ()


def test_a_move_of_another_alias_ends_nothing() -> None:
    for before in (rolling(), splitting()):
        moved = Pointers.moved(before, "canary", 2, "ada", "")
        assert moved.traffic == before.traffic
        assert Pointers.after(moved, {PRODUCTION: 1}, "ada", "").traffic == before.traffic
        assert not Pointers.after(moved, {PRODUCTION: 3}, "ada", "").traffic
        assert not Pointers.after(moved, {}, "ada", "").traffic


def test_a_move_of_production_ends_the_shadow_of_that_version_alone() -> None:
    shadowed = Pointers.after(
        LIVE, LIVE.aliases, "ada", "", Traffic(shadow=Shadow(candidate=2, sample=0.1))
    )
    assert shadowed.versions == {1, 2}
    for version in (1, 3):
        kept = Pointers.moved(shadowed, PRODUCTION, version, "ada", "")
        assert kept.traffic == shadowed.traffic
    moved = Pointers.moved(shadowed, PRODUCTION, 2, "ada", "")
    assert shadowed.traffic.ended_in(moved.traffic) == ("shadow of version 2",)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"steps": (0.5, 0.1)}, "ascending"),
        ({"steps": (1,)}, "the first step is 100%"),
        ({"candidate": 1}, "version 1 is already in production"),
        ({"sticky": "cookie:x"}, "write header:NAME or parameter:NAME"),
        ({"step": 2}, "gives no share"),
        ({"steps": ()}, "at least 1"),
        ({"steps": (float("nan"),)}, "finite number"),
        ({"spreads": {"y": 0.0}}, "greater than 0"),
        ({"spreads": {"y": float("nan")}}, "finite number"),
        ({"spreads": {"y": float("inf")}}, "finite number"),
        ({"spreads": {"y" * 257: 1.0}}, "at most 256"),
        ({"spreads": {str(n): 1.0 for n in range(MAX_SPREADS + 1)}}, "at most 16"),
    ],
)
def test_a_rollout_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rolling(**changes)
