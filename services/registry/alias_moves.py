"""Moves of aliases in the registry, and requests for those that need two persons.

In: calls of a `Principal`. Out: plain values for JSON; every failure is a `ServingError`. A move
that waits for a second person is `{"request": ...}`, any other one the new pointers.

Rules: a move or removal of an alias, or the start of what routes its requests, needs `promote` on
the alias; so does each decision about one that was asked for. Each act is audited, with who, why
and from where, and an approval with the caller who asked.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from model_store.approvals import request_store
from model_store.approvals.asked_move import AskedMove, planned
from model_store.approvals.move_request import MoveRequest, request_of
from model_store.pointers import Pointers
from model_store.store import ModelStore
from services.access.audit import audited, refusals_audited
from services.access.caller import Principal
from services.errors import ForbiddenError
from services.registry.call_arguments import check_why
from services.registry.encoding import encoded
from services.registry.registry import Encode, Registry

REQUEST = "request"
"""Key of the document of a move that waits for a second person."""
T = TypeVar("T")
Work = Callable[[ModelStore, str], Pointers]
"""Makes a move; takes the store and who moves it."""


class AliasMoves:
    """The calls on aliases of a registry.

    Args:
        registry: the registry, whose threads and permissions they use.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def move(
        self, principal: Principal, model: str, move: AskedMove, work: Work | None = None
    ) -> dict[str, Any]:
        """Makes a move, or records the request for it where it needs two persons.

        Args:
            principal: the caller.
            model: the model's name.
            move: the move.
            work: makes it without a second person; None for what `planned` says.
        """
        needs_two = self._registry.access.needs_two(model, move.alias)
        is_free = move.act == "rollback" and not self._registry.access.two_person_rollback

        def moved(store: ModelStore, who: str) -> Pointers | MoveRequest:
            if needs_two and not is_free:
                return request_store.ask(store, model, move, who)
            if not needs_two and work is not None:
                return work(store, who)
            current = store.pointers(model)
            following = planned(store, model, move, current, who)
            if needs_two and not _is_back(current, following, move.alias):
                return request_store.ask(store, model, move, who)
            return store.point(model, following)

        target = f"{model}{move.target}"
        with audited(move.act, target, principal.name, principal.peer, move.why) as act:
            self._registry.require(principal, "promote", model, move.alias)
            check_why(move.why)
            if needs_two and not principal.name:
                raise ForbiddenError(
                    f"a move of '{move.alias}' of '{model}' needs two persons, and this call has "
                    "no credential; send one"
                )
            found = await self._registry.on_store(principal, "promote", model, move.alias, moved)
            if isinstance(found, MoveRequest):
                act.name = f"ask for {move.act}"
                return {REQUEST: found.document("open", None)}
        return found.model_dump(mode="json")

    async def requests(
        self, principal: Principal, model: str, limit: int, encode: Encode = encoded
    ) -> bytes:
        """Lists the newest requests of a model; see `request_store.described_all`."""

        def read(store: ModelStore, _: str) -> bytes:
            return encode({"requests": request_store.described_all(store, model, limit)})

        return await self._registry.on_store(principal, "read", model, "", read)

    async def approve(
        self, principal: Principal, model: str, number: int, why: str
    ) -> dict[str, Any]:
        """Makes the move of a request; see `request_store.approve`."""

        def approve(store: ModelStore, who: str) -> Pointers:
            return request_store.approve(store, model, number, who, why)

        found = await self._decide(principal, "approve", model, number, why, approve)
        return found.model_dump(mode="json")

    async def refuse(
        self, principal: Principal, model: str, number: int, why: str
    ) -> dict[str, Any]:
        """Refuses a request; its own caller withdraws it."""

        def refuse(store: ModelStore, who: str) -> dict[str, Any]:
            request_store.refuse(store, model, number, who, why)
            return request_store.described(store, model, number)

        return {REQUEST: await self._decide(principal, "refuse", model, number, why, refuse)}

    async def _decide(
        self,
        principal: Principal,
        verb: str,
        model: str,
        number: int,
        why: str,
        work: Callable[[ModelStore, str], T],
    ) -> T:
        named = f"{model}/requests/{number}"
        who, peer = principal.name, principal.peer
        with refusals_audited(f"{verb} request", named, who, peer, why):
            check_why(why)
            request = await self._registry.on_store(
                principal,
                "promote",
                model,
                "",
                lambda store, _: request_of(store.storage, model, number),
            )
            if not who:
                raise ForbiddenError(
                    f"request {number} is decided by a second person, and this call has no "
                    "credential; send one"
                )
        move = request.move
        with audited(f"{verb} {move.act}", f"{model}{move.target}", who, peer, why) as act:
            act.asked_by = request.who
            return await self._registry.on_store(principal, "promote", model, move.alias, work)


def _is_back(current: Pointers | None, following: Pointers, alias: str) -> bool:
    """Returns True if an alias goes back to an older version than its present one."""
    before = current.aliases.get(alias, 0) if current else 0
    return following.aliases.get(alias, before) < before
