"""Steps of a rollout: each is the next generation, and what cannot follow is refused."""

import pytest

from model_store.errors import RolloutError
from model_store.pointers import PRODUCTION, Pointers, parse_pointers
from model_store.rollouts.traffic import Arm, Rollout, Shadow, Split, Traffic
from model_store.rollouts.transitions import advanced, begun, ended, paused, promoted, resumed

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


def test_moving_production_ends_its_rollout_and_the_shadow_of_that_version() -> None:
    shadowed = Pointers.after(
        LIVE, LIVE.aliases, "ada", "", Traffic(shadow=Shadow(candidate=2, sample=0.1))
    )
    assert shadowed.versions == {1, 2}
    assert Pointers.after(shadowed, {PRODUCTION: 3}, "ada", "").traffic.shadow is not None
    assert not Pointers.after(shadowed, {PRODUCTION: 2}, "ada", "").traffic
    moved = Pointers.after(rolling(), {PRODUCTION: 1, "old": 1}, "ada", "")
    assert moved.traffic.rollout is not None
    assert not Pointers.after(moved, {PRODUCTION: 3}, "ada", "").traffic


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
    ],
)
def test_a_rollout_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        rolling(**changes)
