"""Requests for moves on a store: asks, approves, refuses and lists.

In: a store, a model and a move, or the number of a request. Out: requests, or new pointers.

Rules:
- a request is for one generation of the pointers: after any other move it is outdated;
- a decision is created before the move is made, so an approval and a refusal exclude each other;
- the move is the next generation, created only if absent, and names its request: however often it
  is approved, it is made once. An approval that was cut off is completed by approving again.
"""

import re
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

from model_store.approvals.asked_move import AskedMove, planned
from model_store.approvals.move_request import (
    Decision,
    MoveRequest,
    Outcome,
    State,
    decision_of,
    decision_path,
    folder_of,
    is_same_person,
    request_of,
    request_path,
)
from model_store.document import SMALL, parse_as
from model_store.errors import (
    ConflictError,
    DecidedRequestError,
    DocumentError,
    ExpiredRequestError,
    OutdatedRequestError,
    OwnRequestError,
    TooManyRequestsError,
    UnknownRequestError,
)
from model_store.manifest import check_name
from model_store.pointers import PRODUCTION, Approval, Pointers
from model_store.storage.storage import MissingFileError
from model_store.store import ModelStore

REQUEST_LIVES = timedelta(hours=24)
"""Time in which a request is approved, or expires: a working day at both ends of the earth."""
MAX_OPEN = 16
"""Open requests of a model."""
MAX_OPEN_OF_ONE = 4
"""Open requests of a model by one person, so that nobody takes all places."""
KEPT = 100
"""Newest requests of a model that are kept as a record; older ones go once they are decided."""
MOST_ATTEMPTS = 10
"""Attempts to take a number while others ask too."""
_FILE = re.compile(r"([0-9]{8})(\.decision)?\.json")


class _Numbers(NamedTuple):
    all: tuple[int, ...]
    """Numbers of requests, ascending."""
    decided: frozenset[int]


def ask(
    store: ModelStore,
    model: str,
    move: AskedMove,
    who: str,
    lives: timedelta = REQUEST_LIVES,
) -> MoveRequest:
    """Records a request for a move that is possible now.

    The same move, asked for again by the same caller, is the same request while it is open.

    Args:
        store: the store.
        model: the model's name.
        move: the move.
        who: name of the caller.
        lives: time until it expires.

    Raises:
        StoreError: the move is not possible; see `planned`.
        TooManyRequestsError: too many requests are open.
        ConflictError: others asked at the same moment, again and again.
    """
    check_name(model)
    for _ in range(MOST_ATTEMPTS):
        current = store.pointers(model)
        following = planned(store, model, move, current, who)
        target = None if move.starts else following.aliases.get(move.alias)
        numbers = _numbers(store, model)
        generation = current.generation if current else 0
        undecided = [*_swept(store, model, numbers, generation)]
        for one in undecided:
            if (one.who, one.move) == (who, move):
                return one
        _check_room(model, undecided, who)
        now = datetime.now(UTC)
        number = numbers.all[-1] + 1 if numbers.all else 1
        request = MoveRequest(
            number=number, model=model, move=move, who=who, when=now, until=now + lives,
            generation=generation, target=target,
        )  # fmt: skip
        data, path = request.to_json(), request_path(model, number)
        parse_as(MoveRequest, data, path, SMALL)  # it will be readable
        try:
            store.storage.create(path, data)
        except ConflictError:
            continue
        _forget_old(store, model, numbers)
        return request
    raise ConflictError(
        f"{MOST_ATTEMPTS} others asked for moves of '{model}' at the same moment; ask again"
    )


def approve(store: ModelStore, model: str, number: int, who: str, why: str = "") -> Pointers:
    """Makes the move that a request asks for.

    Args:
        store: the store.
        model: the model's name.
        number: number of the request.
        who: name of the caller, another person than the one who asked.
        why: reason, for the history.

    Returns:
        The new generation; the same for a second call by the same caller.

    Raises:
        OwnRequestError: the caller asked for it.
        DecidedRequestError, ExpiredRequestError, OutdatedRequestError: it is no longer open.
        UnknownRequestError: there is none of this number.
        StoreError: the move is no longer possible.
    """
    request = request_of(store.storage, check_name(model), number)
    if is_same_person(request.who, who):
        raise OwnRequestError(
            f"request {number} was asked for by {request.who}, and must be approved by another "
            f"person; you are {who}"
        )
    decision = decision_of(store.storage, model, number)
    if (made := _made(store, request)) is not None:
        return _told_again(request, made, who)
    _refuse_decided(request, decision)
    if request.until <= datetime.now(UTC):
        raise ExpiredRequestError(
            f"request {number} of {request.who} expired at {request.until:%Y-%m-%d %H:%M} UTC; "
            "ask again"
        )
    current = store.pointers(model)
    if (current.generation if current else 0) != request.generation:
        raise _outdated(request)
    following = planned(store, model, request.move, current, request.who)
    if decision is None:
        decision = _decide(store, request, "approved", who, why)
    approval = Approval(request=number, by=decision.who, why=decision.why)
    try:
        return store.point(model, following.model_copy(update={"approval": approval}))
    except ConflictError:
        if (made := _made(store, request)) is not None:
            return _told_again(request, made, who)
        raise _outdated(request) from None


def refuse(store: ModelStore, model: str, number: int, who: str, why: str = "") -> MoveRequest:
    """Refuses a request; its own caller withdraws it.

    Raises:
        DecidedRequestError: it was decided before.
        UnknownRequestError: there is none of this number.
        StoreError: the store failed.
    """
    request = request_of(store.storage, check_name(model), number)
    decision = decision_of(store.storage, model, number)
    if decision is not None:
        if _state(store, request, decision) == "approved":
            raise _cut_off(request, decision)
        raise _decided(request, decision)
    _decide(store, request, "withdrawn" if who == request.who else "refused", who, why)
    return request


def described(store: ModelStore, model: str, number: int) -> dict[str, Any]:
    """Describes a request, its state and its decision, for JSON.

    Of an open one, `ends` is what its move would end now, such as `["split 'ab'"]`.

    Raises:
        UnknownRequestError: there is none of this number.
        StoreError: the store failed, or a file is damaged.
    """
    request = request_of(store.storage, check_name(model), number)
    decision = decision_of(store.storage, model, number)
    state = _state(store, request, decision)
    document = request.document(state, decision)
    ends = _ends(store, request) if state == "open" else ()
    return {**document, "ends": list(ends)} if ends else document


def described_all(store: ModelStore, model: str, limit: int) -> list[dict[str, Any]]:
    """Describes the newest requests of a model, the newest first.

    Raises:
        ModelNotFoundError: it has no version.
        StoreError: the store failed.
    """
    store.versions(model)
    found = []
    for number in reversed(_numbers(store, model).all[-limit:]):
        try:
            found.append(described(store, model, number))
        except UnknownRequestError:  # it was removed as an old one meanwhile
            continue
        except DocumentError as error:  # a damaged one hides no other
            found.append({"number": number, "error": str(error)})
    return found


def _numbers(store: ModelStore, model: str) -> _Numbers:
    folder = folder_of(model)
    if store.storage.is_local:
        names = iter(store.storage.names(folder))
    else:
        names = (path.rpartition("/")[2] for path in store.storage.list(folder))
    found = [match for match in map(_FILE.fullmatch, names) if match is not None]
    decided = frozenset(int(match[1]) for match in found if match[2])
    return _Numbers(tuple(sorted({int(match[1]) for match in found})), decided)


def _swept(
    store: ModelStore, model: str, numbers: _Numbers, generation: int
) -> Iterator[MoveRequest]:
    """Yields the open requests, and closes those that have expired or are outdated."""
    for number in numbers.all:
        if number in numbers.decided:
            continue
        try:
            request = request_of(store.storage, model, number)
        except (DocumentError, UnknownRequestError):  # nobody can approve it
            continue
        outcome: Outcome | None = None
        if request.until <= datetime.now(UTC):
            outcome = "expired"
        elif request.generation != generation:
            outcome = "outdated"
        if outcome is None:
            yield request
            continue
        try:
            _decide(store, request, outcome)
        except DecidedRequestError:
            continue


def _check_room(model: str, undecided: list[MoveRequest], who: str) -> None:
    own = sum(is_same_person(one.who, who) for one in undecided)
    if len(undecided) >= MAX_OPEN or own >= MAX_OPEN_OF_ONE:
        raise TooManyRequestsError(
            f"{len(undecided)} requests for moves of '{model}' are open, {own} of them yours; at "
            f"most {MAX_OPEN} are, and {MAX_OPEN_OF_ONE} of one person: approve, refuse or "
            "withdraw some"
        )


def _forget_old(store: ModelStore, model: str, numbers: _Numbers) -> None:
    for number in numbers.all[:-KEPT]:
        if number in numbers.decided:
            store.storage.delete(request_path(model, number))
            store.storage.delete(decision_path(model, number))


def _decide(
    store: ModelStore, request: MoveRequest, outcome: Outcome, who: str = "", why: str = ""
) -> Decision:
    """Creates the decision; for `approved`, a person who approved first keeps the approval.

    Raises:
        DecidedRequestError: another decision was made first.
    """
    decision = Decision(outcome=outcome, who=who, when=datetime.now(UTC), why=why)
    path = decision_path(request.model, request.number)
    try:
        store.storage.create(path, decision.to_json())
    except ConflictError:
        first = decision_of(store.storage, request.model, request.number)
        if first is not None and first.outcome == outcome == "approved":
            return first
        raise _decided(request, first) from None
    return decision


def _ends(store: ModelStore, request: MoveRequest) -> tuple[str, ...]:
    """Returns what the move of an open request would end."""
    current = store.pointers(request.model)
    if current is None or request.target is None or request.move.alias != PRODUCTION:
        return ()
    return current.traffic.ended_in(current.traffic.after_move_to(request.target))


def _made(store: ModelStore, request: MoveRequest) -> Pointers | None:
    """Returns the generation that a request made; None if it made none."""
    try:
        found = store.pointers_at(request.model, request.generation + 1)
    except MissingFileError:
        return None
    approval = found.approval
    return found if approval is not None and approval.request == request.number else None


def _told_again(request: MoveRequest, made: Pointers, who: str) -> Pointers:
    """Returns the generation to the person who approved it.

    Raises:
        DecidedRequestError: another person did.
    """
    assert made.approval is not None, "a request made it"
    if made.approval.by == who:
        return made
    raise DecidedRequestError(
        f"request {request.number} of {request.who} was approved by {made.approval.by}, and made "
        f"generation {made.generation}"
    )


def _refuse_decided(request: MoveRequest, decision: Decision | None) -> None:
    if decision is not None and decision.outcome != "approved":
        if decision.outcome == "outdated":
            raise _outdated(request)
        raise _decided(request, decision)


def _decided(request: MoveRequest, decision: Decision | None) -> DecidedRequestError:
    if decision is None:
        return DecidedRequestError(f"request {request.number} was decided by another call; look")
    by = f" by {decision.who}" if decision.who else ""
    why = f": {decision.why}" if decision.why else ""
    return DecidedRequestError(
        f"request {request.number} of {request.who} was {decision.outcome}{by} at "
        f"{decision.when:%Y-%m-%d %H:%M} UTC{why}; ask again for what you need"
    )


def _cut_off(request: MoveRequest, decision: Decision) -> DecidedRequestError:
    return DecidedRequestError(
        f"request {request.number} of {request.who} was approved by {decision.who}, and its move "
        "was cut off before it was made: approve it again to make it; any other move of the model "
        "outdates it, and it expires"
    )


def _outdated(request: MoveRequest) -> OutdatedRequestError:
    what_to_do = "look at the history, and ask again"
    if request.move.act == "rollout promote":
        what_to_do = "each step of a rollout moves them: pause it first, then ask again"
    return OutdatedRequestError(
        f"request {request.number} of {request.who} was for generation {request.generation} of "
        f"'{request.model}', and its pointers have moved since; {what_to_do}"
    )


def _state(store: ModelStore, request: MoveRequest, decision: Decision | None) -> State:
    if decision is not None and decision.outcome != "approved":
        return decision.outcome
    if decision is not None and _made(store, request) is not None:
        return "executed"
    current = store.pointers(request.model)
    if (current.generation if current else 0) != request.generation:
        return "outdated"
    if request.until <= datetime.now(UTC):
        return "expired"
    return "open" if decision is None else "approved"
