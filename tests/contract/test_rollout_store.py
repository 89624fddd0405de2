"""Rollouts, shadows and splits on a store in a folder: starts, ends, refusals, races."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.signature import Signature
from model_store.approvals.asked_move import AskedMove, planned
from model_store.approvals.made_move import MadeMove, make_move
from model_store.errors import (
    BreakingVersionError,
    ConflictError,
    InvalidRolloutError,
    ModelNotFoundError,
    RolloutError,
    VersionDeletedError,
    VersionInUseError,
    VersionNotFoundError,
)
from model_store.golden import GoldenRows
from model_store.manifest import Golden
from model_store.pointers import Pointers
from model_store.records.deletion import delete_version
from model_store.records.moves import moves_page
from model_store.retention.stored_versions import VersionsReader
from model_store.rollouts import rollout_store
from model_store.rollouts.requests import (
    RolloutReason,
    RolloutRequest,
    ShadowRequest,
    SplitRequest,
)
from model_store.rollouts.status import rollout_status
from model_store.rollouts.traffic import MAX_SPREADS, Arm, Rollout
from model_store.rollouts.transitions import ended, promoted
from model_store.rollouts.verdict_file import verdict_path
from model_store.semver.breaking import broken_callers_of_production
from model_store.store import ModelStore
from services.rollouts.calls import ACTS, act_on
from tests.fixtures.signatures import one_to_one
from tests.fixtures.store_versions import draft_in, entry_in, publish_in

ARMS = (Arm(version=1, share=0.5), Arm(version=2, share=0.5))
OTHER = one_to_one((1, 8, 8), (10,), names=("image", "scores"), rows=64)


@pytest.fixture
def store(tmp_path: Path, folder: Path) -> ModelStore:
    """Returns a store with digits 1 in production, 2 and 3."""
    found = ModelStore(str(tmp_path / "store"))
    for _ in range(3):
        publish_in(found, folder)
    found.promote("digits", 1)
    return found


def rolling(store: ModelStore, version: int = 2, **wanted: object) -> Pointers:
    request = RolloutRequest.model_validate({"version": version, **wanted})
    return rollout_store.start_rollout(store, "digits", request, "ada")


def promote(store: ModelStore, version: int, **more: object) -> MadeMove:
    move = AskedMove.model_validate({"act": "promote", "version": version, **more})
    return make_move(store, "digits", move, "ada")


def roll_back(store: ModelStore, alias: str = "production") -> MadeMove:
    return make_move(store, "digits", AskedMove(act="rollback", alias=alias, why="worse"), "ada")


def splitting(store: ModelStore) -> Pointers:
    return rollout_store.start_split(store, "digits", SplitRequest(name="ab", arms=ARMS))


def publish_breaking(store: ModelStore, folder: Path, signature: Signature = OTHER) -> int:
    rows = GoldenRows(
        {"image": np.zeros((8, 1, 8, 8), np.float32)}, {"scores": np.zeros((8, 10), np.float32)}
    )
    draft = draft_in(folder, signature=signature)
    golden = Golden(file=entry_in(folder, "golden.safetensors", rows.to_bytes()), rows=8)
    return store.publish(draft.model_copy(update={"golden": golden}), folder).version


@pytest.mark.parametrize("act", [name for name in ACTS if name.startswith("rollout ")])
def test_an_act_on_one_rollout_leaves_another_one_alone(store: ModelStore, act: str) -> None:
    first = rolling(store).traffic.rollout
    assert first is not None
    rollout_store.abort_rollout(store, "digits")
    runs = rolling(store, 3)
    asked = {"why": "mine", "rollout_id": first.id}
    with pytest.raises(RolloutError, match=f"the rollout {first.id} has ended; version 3 is"):
        act_on(store, "digits", act, ACTS[act].model_validate(asked))
    assert store.pointers("digits") == runs
    promotion = AskedMove(act="rollout promote", rollout_id=first.id)
    with pytest.raises(RolloutError, match="has ended"):
        planned(store, "digits", promotion, runs, "ada")
    assert runs.traffic.rollout is not None
    wanted = RolloutReason(rollout_id=runs.traffic.rollout.id)
    assert act_on(store, "digits", "rollout abort", wanted).traffic.rollout is None


def test_a_rollout_goes_from_start_to_promotion(store: ModelStore) -> None:
    moved = rolling(store, why="better")
    assert (moved.who, moved.why) == ("ada", "better")
    rollout = moved.traffic.rollout
    assert rollout is not None
    assert (rollout.candidate, rollout.baseline, rollout.share) == (2, 1, 0.01)
    assert rollout.guards.disagreement is not None
    assert rollout.guards.disagreement.limit == pytest.approx(0.028)  # both err on 1.4 %
    assert rollout.guards.outputs is not None
    assert rollout.guards.outputs.values == 10
    rollout_store.pause_rollout(store, "digits", "lunch")
    paused = rollout_status(store, "digits")["rollout"]
    assert (paused["paused"], paused["next_step_at"]) == ("lunch", None)
    rollout_store.resume_rollout(store, "digits")
    ends = rollout_store.promote_rollout(store, "digits", "now")
    assert (ends.aliases, bool(ends.traffic)) == ({"production": 2}, False)
    last = rollout_status(store, "digits")["last"]
    assert (last["outcome"], last["why"], last["candidate"]) == ("promoted", "now", 2)


def test_an_abort_leaves_production(store: ModelStore) -> None:
    rolling(store)
    ends = rollout_store.abort_rollout(store, "digits", "bad")
    assert (ends.aliases, bool(ends.traffic)) == ({"production": 1}, False)
    assert rollout_status(store, "digits")["last"]["outcome"] == "aborted"
    with pytest.raises(RolloutError, match="no version is being rolled out"):
        rollout_store.abort_rollout(store, "digits")


def test_the_history_shows_each_step_and_the_evidence_of_the_end(store: ModelStore) -> None:
    rolling(store)
    current = store.pointers("digits")
    assert current is not None
    evidence = {"guard": "errors", "findings": []}
    store.point("digits", ended(current, "", "rollout controller a", "worse", evidence))
    newest, start, _ = moves_page(store, "digits", 10).moves
    assert newest.document()["evidence"] == evidence
    assert [one["act"] for one in newest.document()["traffic_changes"]] == ["rolled back"]
    assert [one.act for one in start.traffic_changes] == ["started"]
    assert rollout_status(store, "digits")["last"]["outcome"] == "rolled back"


def test_a_promotion_of_another_version_ends_a_rollout(store: ModelStore) -> None:
    rolling(store)
    store.promote("digits", 3)
    assert rollout_status(store, "digits")["last"]["outcome"] == "ended"


@pytest.mark.parametrize(
    ("version", "outcome", "changes"),
    [
        (1, "aborted", []),
        (2, "promoted", [{"alias": "production", "from": 1, "to": 2}]),
        (3, "ended", [{"alias": "production", "from": 1, "to": 3}]),
    ],
)
def test_a_promotion_ends_the_rollout_and_says_so(
    store: ModelStore, version: int, outcome: str, changes: list[object]
) -> None:
    rolling(store)
    made = promote(store, version, why="by hand").document()
    assert (made["generation"], made["aliases"]) == (3, {"production": version})
    assert (made["changes"], made["ended"]) == (changes, ["rollout of version 2"])
    assert "traffic" not in made
    last = rollout_status(store, "digits")["last"]
    assert (last["outcome"], last["who"], last["why"]) == (outcome, "ada", "by hand")


@pytest.mark.parametrize("version", [1, 2, 3])
def test_a_promotion_ends_the_split_and_says_so(store: ModelStore, version: int) -> None:
    splitting(store)
    made = promote(store, version).document()
    assert (made["aliases"], made["ended"]) == ({"production": version}, ["split 'ab'"])
    assert "traffic" not in made


def test_a_promotion_of_another_alias_ends_nothing(store: ModelStore) -> None:
    runs = rolling(store)
    made = promote(store, 2, alias="canary")
    assert made.pointers.traffic == runs.traffic
    assert "ended" not in made.document()
    again = promote(store, 2, alias="canary")
    assert (again.pointers, again.document()["changes"]) == (made.pointers, [])


def test_a_promotion_to_the_version_that_is_live_alone_moves_nothing(store: ModelStore) -> None:
    rollout_store.start_shadow(store, "digits", ShadowRequest(version=2))
    newest = store.pointers("digits")
    again = promote(store, 1)
    assert again.pointers == newest == store.pointers("digits")
    assert again.document()["changes"] == []
    assert "ended" not in again.document()
    moved = promote(store, 2).document()
    assert (moved["ended"], "traffic" in moved) == (["shadow of version 2"], False)


def test_a_rollback_leads_away_from_the_candidate(store: ModelStore) -> None:
    """Also if the candidate was in production before, and if no other version was."""
    rolling(store)
    only_one = roll_back(store).document()
    assert (only_one["aliases"], only_one["ended"]) == ({"production": 1}, ["rollout of version 2"])
    assert (only_one["changes"], only_one["why"]) == ([], "worse")
    assert rollout_status(store, "digits")["last"]["outcome"] == "aborted"
    with pytest.raises(VersionNotFoundError, match="has named no other version before"):
        roll_back(store)
    promote(store, 2)
    promote(store, 1)
    rolling(store)
    assert roll_back(store).pointers.aliases == {"production": 1}
    splitting(store)
    ended_split = roll_back(store).document()
    assert (ended_split["aliases"], ended_split["ended"]) == ({"production": 1}, ["split 'ab'"])
    rolling(store)
    assert roll_back(store).pointers.aliases == {"production": 1}
    assert roll_back(store).pointers.aliases == {"production": 2}


def test_a_rollback_of_another_alias_ends_nothing(store: ModelStore) -> None:
    promote(store, 3, alias="canary")
    promote(store, 2, alias="canary")
    runs = rolling(store)
    back = roll_back(store, "canary").pointers
    assert (back.aliases["canary"], back.traffic) == (3, runs.traffic)


@pytest.mark.parametrize(
    ("wanted", "error", "message"),
    [
        ({"version": 9}, VersionNotFoundError, "has no version 9"),
        ({"version": 1}, InvalidRolloutError, "version 1 is already in production"),
        ({"steps": (0.5, 0.1)}, InvalidRolloutError, "ascending"),
        ({"steps": (1,)}, InvalidRolloutError, "the first step is 100%"),
        ({"sticky": "cookie:x"}, InvalidRolloutError, "write header:NAME or parameter:NAME"),
        ({"guards": {"taste": None}}, InvalidRolloutError, "unknown key 'taste'"),
        ({"guards": {"errors": {"ratio": 0.1}}}, InvalidRolloutError, "write 1 or more"),
        (
            {"mirrored": 0, "guards": {"disagreement": {"limit": 0.1}}},
            InvalidRolloutError,
            "set mirrored",
        ),
    ],
)
def test_what_cannot_start_is_refused_and_changes_nothing(
    store: ModelStore, wanted: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        rolling(store, **{"version": 2, **wanted})  # type: ignore[arg-type]
    current = store.pointers("digits")
    assert current is not None
    assert (current.generation, bool(current.traffic)) == (1, False)


def test_a_model_without_production_or_without_versions_has_no_rollout(
    store: ModelStore, folder: Path
) -> None:
    publish_in(store, folder, "other")
    wanted = RolloutRequest(version=1)
    with pytest.raises(RolloutError, match="'production' names no version"):
        rollout_store.start_rollout(store, "other", wanted)
    with pytest.raises(ModelNotFoundError):
        rollout_store.start_rollout(store, "none", wanted)
    with pytest.raises(RolloutError, match="no longer 3; decide again"):
        rollout_store.start_rollout(store, "digits", RolloutRequest(version=2), live=3)


def test_without_mirrored_requests_nothing_is_compared(store: ModelStore) -> None:
    rollout = rolling(store, mirrored=0, guards={"latency": None}).traffic.rollout
    assert rollout is not None
    assert rollout.guards.disagreement is None
    assert rollout.guards.latency is None


def test_a_breaking_candidate_needs_to_be_allowed(store: ModelStore, folder: Path) -> None:
    number = publish_breaking(store, folder)
    message = r"breaks callers of 1 \(1.0.0\).*output 'logits' is removed"
    with pytest.raises(BreakingVersionError, match=message):
        rolling(store, number)
    with pytest.raises(BreakingVersionError, match=message):
        rollout_store.start_shadow(store, "digits", ShadowRequest(version=number))
    arms = (Arm(version=1, share=0.5), Arm(version=number, share=0.5))
    with pytest.raises(BreakingVersionError, match=message):
        rollout_store.start_split(store, "digits", SplitRequest(name="ab", arms=arms))
    assert rolling(store, number, allow_breaking=True).traffic.rollout is not None


def test_a_breaking_promotion_needs_to_be_allowed(store: ModelStore, folder: Path) -> None:
    number = publish_breaking(store, folder)
    assert "its promotion to production takes --allow-breaking" in broken_callers_of_production(
        store, store.manifest("digits", number)
    )
    assert broken_callers_of_production(store, store.manifest("digits", 2)) == ""
    with pytest.raises(BreakingVersionError, match="output 'logits' is removed"):
        promote(store, number)
    assert promote(store, number, alias="canary").pointers.aliases["canary"] == number
    moved = promote(store, number, allow_breaking=True).pointers
    assert moved.aliases["production"] == number
    assert promote(store, number).pointers == moved


def test_shadows_and_splits_start_and_end(store: ModelStore) -> None:
    shadow = ShadowRequest(version=2, sample=0.5)
    rollout_store.start_shadow(store, "digits", shadow)
    with pytest.raises(RolloutError, match="is a shadow since"):
        rollout_store.start_shadow(store, "digits", shadow)
    with pytest.raises(RolloutError, match="answers the requests itself"):
        rollout_store.start_shadow(store, "digits", ShadowRequest(version=1))
    split = SplitRequest(name="ab", arms=ARMS)
    both = rollout_store.start_split(store, "digits", split)
    assert (both.traffic.shadow is not None, both.traffic.split is not None) == (True, True)
    with pytest.raises(RolloutError, match="the split 'ab' has the requests"):
        rolling(store)
    with pytest.raises(RolloutError, match="the split 'ab' has the requests"):
        rollout_store.start_split(store, "digits", split)
    rollout_store.stop_shadow(store, "digits")
    assert not rollout_store.end_split(store, "digits").traffic
    for end in (rollout_store.stop_shadow, rollout_store.end_split):
        with pytest.raises(RolloutError, match="start one first"):
            end(store, "digits")
    rolling(store)
    with pytest.raises(RolloutError, match="version 2 is being rolled out"):
        rollout_store.start_split(store, "digits", split)


def test_versions_in_use_are_neither_deleted_nor_pruned(store: ModelStore) -> None:
    rolling(store)
    for version, part in ((2, "candidate"), (1, "alias")):
        with pytest.raises(VersionInUseError, match=part):
            delete_version(store, "digits", version)
    assert "the candidate of a rollout" in VersionsReader(store).read().uses["digits", 2]
    rollout_store.abort_rollout(store, "digits")
    rollout_store.start_split(store, "digits", SplitRequest(name="ab", arms=ARMS))
    with pytest.raises(VersionInUseError, match="an arm of the split 'ab'"):
        delete_version(store, "digits", 2)
    rollout_store.end_split(store, "digits")
    delete_version(store, "digits", 2)
    with pytest.raises(VersionDeletedError):
        rolling(store)


def test_an_act_is_decided_again_after_another_writer(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rolling(store)
    point = store.point
    moved: list[Pointers] = []

    def raced(model: str, following: Pointers) -> Pointers:
        if not moved:
            current = store.pointers(model)
            assert current is not None
            moved.append(point(model, promoted(current, "", "rollout controller", "kept")))
        return point(model, following)

    monkeypatch.setattr(store, "point", raced)
    with pytest.raises(RolloutError, match="no version is being rolled out"):
        rollout_store.abort_rollout(store, "digits")
    assert moved[0] == store.pointers("digits")


def test_an_act_that_always_loses_says_so(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(model: str, following: Pointers) -> Pointers:
        raise ConflictError("another was faster")

    monkeypatch.setattr(store, "point", lost)
    with pytest.raises(ConflictError):
        rolling(store)


VERDICT = (
    '{"decision": "undecided", "reason": "errors: more", "guard": "errors", "more_requests": 7, '
    '"when": "2026-11-28T09:00:00+00:00", "process": "p", "later": 1, "findings": [{"guard": '
    '"errors", "state": "open", "log_e_against": -Infinity, "log_e_to_roll_back": 5.3, '
    '"log_e_for": 1.2, "log_e_to_promote": 4.6, "observed": 1234, "unit": "requests", "more": 99, '
    '"figures": {"candidate_rate": 0.01, "candidate_rate_low": 0, "candidate_rate_high": NaN}}]}'
)


def with_verdict(store: ModelStore, data: bytes) -> dict[str, object]:
    rollout = rolling(store).traffic.rollout
    assert rollout is not None
    store.storage.replace(verdict_path("digits", rollout.id), data)
    return rollout_status(store, "digits")


def test_a_verdict_is_told_in_words(store: ModelStore) -> None:
    found = with_verdict(store, VERDICT.encode())["verdict"]
    assert isinstance(found, dict)
    (finding,) = found["findings"]
    assert finding["log_e_against"] is None
    assert finding["text"] == (
        "candidate 1% (0% to ?); not proven by 1,234 requests: e-value 3.32 of 99.5; about 99 more "
        "of both versions are expected to be needed"
    )


@pytest.mark.parametrize(
    "data",
    [
        b"", b"null", b"[]", b"{}", b"\xff", b"[" * 100_000, b'{"a":' * 10_000, b"1" * 2**21,
        VERDICT.replace("open", "perhaps").encode(), VERDICT.replace("1234", "-1").encode(),
        VERDICT.replace("1234", "1" * 5000).encode(), VERDICT.replace("errors", "e" * 99).encode(),
    ],
    ids=range(12),
)  # fmt: skip
def test_a_damaged_verdict_is_told_beside_the_rest(store: ModelStore, data: bytes) -> None:
    found = with_verdict(store, data)
    assert found["verdict"] is None
    assert "the verdict cannot be read" in str(found["note"])
    assert found["rollout"] is not None


@given(
    st.lists(st.floats(0, 1, exclude_min=True), min_size=1, max_size=6, unique=True),
    st.dictionaries(
        st.text(min_size=1, max_size=9), st.floats(0, exclude_min=True, allow_infinity=False),
        max_size=MAX_SPREADS,
    ),
)  # fmt: skip
def test_any_ascending_shares_make_a_rollout(
    shares: list[float], spreads: dict[str, float]
) -> None:
    steps = sorted(shares)
    if steps[0] == 1:
        steps = [0.5, 1.0]
    rollout = Rollout(candidate=2, baseline=1, steps=tuple(steps), spreads=spreads)
    assert Rollout.model_validate_json(rollout.model_dump_json()) == rollout
