"""Moves that need two persons, on stores of every kind: requests, decisions, races, limits."""

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier

import pytest

from model_store.approvals import request_store
from model_store.approvals.asked_move import AskedMove, started
from model_store.approvals.move_request import (
    MoveRequest,
    is_same_person,
    request_of,
    request_path,
)
from model_store.approvals.request_store import MAX_OPEN, MAX_OPEN_OF_ONE, approve, ask, refuse
from model_store.errors import (
    ApprovalError,
    DecidedRequestError,
    DocumentError,
    ExpiredRequestError,
    ModelNotFoundError,
    OutdatedRequestError,
    OwnRequestError,
    TooManyRequestsError,
    UnknownRequestError,
    VersionDeletedError,
    VersionNotFoundError,
)
from model_store.pointers import Pointers
from model_store.records.deletion import delete_version
from model_store.rollouts import transitions
from model_store.rollouts.requests import RolloutRequest, ShadowRequest, SplitRequest
from model_store.rollouts.rollout_store import (
    pause_rollout,
    start_rollout,
    start_shadow,
    start_split,
)
from model_store.rollouts.traffic import Arm
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in

ANN, BEN, EVE = "key:ann", "key:ben", "jwt:eve"
NOW = timedelta(0)


@pytest.fixture
def store(store: ModelStore, folder: Path) -> ModelStore:
    """Returns a store with digits 1 in production, and 2."""
    for _ in range(2):
        publish_in(store, folder)
    store.promote("digits", 1)
    return store


def promotion(version: int = 2, alias: str = "production", why: str = "") -> AskedMove:
    return AskedMove(act="promote", alias=alias, version=version, why=why)


def asked(store: ModelStore, move: AskedMove | None = None, who: str = ANN) -> MoveRequest:
    return ask(store, "digits", move or promotion(), who)


def live(store: ModelStore) -> tuple[int, int]:
    """Returns the version in production, and the generation."""
    pointers = store.pointers("digits")
    assert pointers is not None
    return pointers.aliases["production"], pointers.generation


def states(store: ModelStore) -> list[str]:
    return [one["state"] for one in request_store.described_all(store, "digits", 100)]


def test_a_second_person_makes_the_move_once(store: ModelStore) -> None:
    request = asked(store, promotion(why="better"))
    assert live(store) == (1, 1)
    moved = approve(store, "digits", request.number, BEN, "looked at it")
    assert (live(store), moved.who, moved.why) == ((2, 2), ANN, "better")
    assert moved.approval is not None
    assert (moved.approval.by, moved.approval.why) == (BEN, "looked at it")
    assert approve(store, "digits", request.number, BEN) == moved
    with pytest.raises(DecidedRequestError, match="approved by key:ben, and made generation 2"):
        approve(store, "digits", request.number, EVE)
    store.promote("digits", 1)
    with pytest.raises(DecidedRequestError):
        approve(store, "digits", request.number, EVE)
    assert (live(store), states(store)) == ((1, 3), ["executed"])


@pytest.mark.parametrize("name", [ANN, "jwt:ann", "jwt: Ann", "key:\uff41nn"])
def test_nobody_approves_an_own_request(store: ModelStore, name: str) -> None:
    request = asked(store)
    with pytest.raises(OwnRequestError, match="asked for by key:ann"):
        approve(store, "digits", request.number, name)
    assert (live(store), states(store)) == ((1, 1), ["open"])


def test_names_of_one_person() -> None:
    assert is_same_person("key:ann", "jwt:ANN")
    assert not is_same_person("key:ann", "key:anna")
    assert not is_same_person("jwt:x:ann", "key:ann")


def test_a_request_is_for_one_generation(store: ModelStore) -> None:
    first, second = asked(store), asked(store, promotion(alias="canary"), EVE)
    approve(store, "digits", second.number, BEN)
    with pytest.raises(OutdatedRequestError, match="for generation 1 of 'digits'"):
        approve(store, "digits", first.number, BEN)
    assert (live(store), states(store)) == ((1, 2), ["executed", "outdated"])
    third = asked(store)
    with pytest.raises(OutdatedRequestError):  # now as its decision says
        approve(store, "digits", first.number, BEN)
    approve(store, "digits", third.number, BEN)
    assert live(store) == (2, 3)


def test_a_request_expires(store: ModelStore) -> None:
    request = ask(store, "digits", promotion(), ANN, NOW)
    with pytest.raises(ExpiredRequestError, match="ask again"):
        approve(store, "digits", request.number, BEN)
    assert states(store) == ["expired"]
    again = asked(store)
    assert again.number == request.number + 1
    with pytest.raises(DecidedRequestError, match="was expired"):
        approve(store, "digits", request.number, BEN)
    assert live(store) == (1, 1)


@pytest.mark.parametrize(("who", "outcome"), [(ANN, "withdrawn"), (BEN, "refused")])
def test_a_refused_or_withdrawn_request_is_not_approved(
    store: ModelStore, who: str, outcome: str
) -> None:
    request = asked(store)
    refuse(store, "digits", request.number, who, "not today")
    with pytest.raises(DecidedRequestError, match=f"{outcome} by {who} .*: not today"):
        approve(store, "digits", request.number, EVE)
    with pytest.raises(DecidedRequestError):
        refuse(store, "digits", request.number, who)
    assert (live(store), states(store)) == ((1, 1), [outcome])


def test_a_version_that_is_deleted_meanwhile_is_not_promoted(store: ModelStore) -> None:
    request = asked(store)
    delete_version(store, "digits", 2, "ops", "broken")
    with pytest.raises(OutdatedRequestError):
        approve(store, "digits", request.number, BEN)
    with pytest.raises(VersionDeletedError):
        asked(store)
    assert live(store)[0] == 1


def test_a_move_that_is_not_possible_is_not_recorded(store: ModelStore) -> None:
    with pytest.raises(VersionNotFoundError):
        asked(store, promotion(9))
    with pytest.raises(VersionNotFoundError, match="no other version before"):
        asked(store, AskedMove(act="rollback"))
    with pytest.raises(ModelNotFoundError):
        ask(store, "nothing", promotion(), ANN)
    for number in (1, 10**18):
        with pytest.raises(UnknownRequestError):
            approve(store, "digits", number, BEN)
    assert states(store) == []


def test_a_request_records_the_version_that_the_alias_will_name(
    store: ModelStore, folder: Path
) -> None:
    store.promote("digits", 2)
    rollback = AskedMove(act="rollback", alias="production")
    assert asked(store, rollback).target == 1
    publish_in(store, folder)
    assert asked(store, promotion(3)).target == 3
    wanted = RolloutRequest(version=3, steps=(0.1, 1), every_s=60)
    assert asked(store, started(wanted), BEN).target is None
    start_rollout(store, "digits", wanted)
    assert asked(store, AskedMove(act="rollout promote")).target == 3


def test_a_promotion_of_a_rollout_is_asked_for_while_it_is_paused(store: ModelStore) -> None:
    """Each step is a generation, which outdates the request."""
    begun = start_rollout(store, "digits", RolloutRequest(version=2, steps=(0.1, 0.5, 1)))
    assert begun.traffic.rollout is not None
    promoting = AskedMove(act="rollout promote")
    late = asked(store, promoting)
    store.point("digits", transitions.advanced(begun, begun.traffic.rollout.id, "it", "in time"))
    with pytest.raises(OutdatedRequestError, match="pause it first, then ask again"):
        approve(store, "digits", late.number, BEN)
    pause_rollout(store, "digits", "to promote it")
    approve(store, "digits", asked(store, promoting).number, BEN)
    assert live(store)[0] == 2


def test_an_open_request_says_what_its_move_would_end(store: ModelStore) -> None:
    arms = (Arm(version=1, share=0.5), Arm(version=2, share=0.5))
    start_split(store, "digits", SplitRequest(name="ab", arms=arms))
    start_shadow(store, "digits", ShadowRequest(version=2))
    canary = asked(store, promotion(alias="canary"), EVE)
    live_one, other = asked(store, promotion(1)), asked(store, promotion(2))
    shown = [request_store.described(store, "digits", one.number).get("ends")
             for one in (canary, live_one, other)]  # fmt: skip
    assert shown == [None, ["split 'ab'"], ["shadow of version 2", "split 'ab'"]]
    moved = approve(store, "digits", other.number, BEN)
    assert not moved.traffic
    assert "ends" not in request_store.described(store, "digits", other.number)


def test_rollouts_are_asked_for_too(store: ModelStore) -> None:
    wanted = RolloutRequest(version=2, steps=(0.1, 1), every_s=60, why="try it")
    moved = approve(store, "digits", asked(store, started(wanted)).number, BEN)
    rollout = moved.traffic.rollout
    assert rollout is not None
    assert (rollout.candidate, rollout.steps, moved.why) == (2, (0.1, 1.0), "try it")
    assert rollout.started > asked(store, promotion(alias="x")).when - timedelta(minutes=1)
    ended = approve(store, "digits", asked(store, AskedMove(act="rollout promote")).number, BEN)
    assert (live(store), bool(ended.traffic)) == ((2, 3), False)


def test_the_first_move_of_a_model_needs_two_as_well(store: ModelStore, folder: Path) -> None:
    publish_in(store, folder, "fresh")
    request = ask(store, "fresh", promotion(1), ANN)
    assert (request.generation, store.pointers("fresh")) == (0, None)
    moved = approve(store, "fresh", request.number, BEN)
    assert (moved.generation, moved.aliases) == (1, {"production": 1})
    assert approve(store, "fresh", request.number, BEN) == moved


def test_the_same_request_again_is_the_same(store: ModelStore) -> None:
    first = asked(store)
    assert asked(store) == first
    assert asked(store, who=EVE).number == first.number + 1
    assert asked(store, promotion(why="another reason")).number == first.number + 2


def test_open_requests_are_limited(store: ModelStore) -> None:
    for place in range(MAX_OPEN):
        move = promotion(alias=f"a{place}")
        asked(store, move, f"key:k{place // MAX_OPEN_OF_ONE}")
        if place == MAX_OPEN_OF_ONE - 1:
            with pytest.raises(TooManyRequestsError, match="4 of them yours"):
                asked(store, promotion(alias="more"), "jwt:k0")
    with pytest.raises(TooManyRequestsError, match="16 requests"):
        asked(store, promotion(alias="more"), EVE)
    refuse(store, "digits", 1, BEN)
    assert asked(store, promotion(alias="more"), EVE).number == MAX_OPEN + 1


def test_old_decided_requests_go_and_their_numbers_stay_taken(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_store, "KEPT", 2)
    for _ in range(4):
        refuse(store, "digits", asked(store).number, ANN)
    found = request_store.described_all(store, "digits", 100)
    assert [one["number"] for one in found] == [4, 3, 2]
    with pytest.raises(UnknownRequestError):
        approve(store, "digits", 1, BEN)


def test_a_damaged_request_hides_no_other(store: ModelStore) -> None:
    number, other = asked(store).number, asked(store, promotion(alias="canary")).number
    path = request_path("digits", number)
    copied = store.storage.get(request_path("digits", other), 10**5)
    for data in (b"", b"[" * 1000, copied):
        store.storage.replace(path, data)
        with pytest.raises(DocumentError):
            approve(store, "digits", number, BEN)
    [good, bad] = request_store.described_all(store, "digits", 10)
    assert (good["state"], "request 2 of 'digits'" in bad["error"]) == ("open", True)
    assert asked(store, promotion(alias="third")).number == 3


def at_once(*works: "object") -> list["object"]:
    """Runs functions at the same moment; returns what they return, or raise of an approval."""
    barrier = Barrier(len(works))

    def run(work: "object") -> object:
        assert callable(work)
        barrier.wait()
        try:
            return work()
        except ApprovalError as error:
            return error

    with ThreadPoolExecutor(len(works)) as threads:
        return list(threads.map(run, works))


def test_of_decisions_at_the_same_moment_one_counts(store: ModelStore) -> None:
    for version in (2, 1, 2, 1):
        before = live(store)
        number = asked(store, promotion(version)).number
        found = at_once(
            lambda: approve(store, "digits", number, BEN),  # noqa: B023
            lambda: refuse(store, "digits", number, ANN),  # noqa: B023
            lambda: approve(store, "digits", number, EVE),  # noqa: B023
        )
        moved = [one for one in found if isinstance(one, Pointers)]
        is_refused = isinstance(found[1], MoveRequest)
        assert bool(moved) is not is_refused
        assert live(store) == (before if is_refused else (version, before[1] + 1))
        assert len({one.generation for one in moved}) <= 1


def test_requests_at_the_same_moment_get_numbers_of_their_own(store: ModelStore) -> None:
    callers = [f"key:k{n}" for n in range(4)]
    found = at_once(*(lambda who=who: asked(store, who=who) for who in callers))
    numbers = sorted(one.number for one in found if isinstance(one, MoveRequest))
    assert numbers == [1, 2, 3, 4]


def test_an_approval_that_was_cut_off_is_completed(
    store: ModelStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = asked(store).number

    def killed(*_: object) -> Pointers:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(store, "point", killed)
        with pytest.raises(KeyboardInterrupt):
            approve(store, "digits", number, BEN)
    assert (live(store), states(store)) == ((1, 1), ["approved"])
    with pytest.raises(DecidedRequestError, match="any other move of the model outdates it"):
        refuse(store, "digits", number, ANN)
    with pytest.raises(OwnRequestError):
        approve(store, "digits", number, ANN)
    moved = approve(store, "digits", number, EVE)
    assert moved.approval is not None
    assert (live(store), moved.approval.by) == ((2, 2), BEN)
    assert request_of(store.storage, "digits", number).who == ANN
