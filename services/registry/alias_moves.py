"""Moves of aliases in the registry, and requests for those that need two persons.

In: calls of a `Principal`. Out: plain values for JSON; every failure is a `ServingError`. A move
that waits for a second person is `{"request": ...}`, any other one the new pointers, with what it
ended.

Rules: a move or removal of an alias, or the start of what routes its requests, needs `promote` on
the alias; so does each decision about one that was asked for. Each act is audited, with who, why
and from where, and an approval with the caller who asked.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from model_store.approvals import request_store
from model_store.approvals.asked_move import AskedMove, planned
from model_store.approvals.made_move import MadeMove, is_made, make_move, move_of
from model_store.approvals.move_request import request_of
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

        def asked(store: ModelStore, who: str) -> dict[str, Any]:
            number = request_store.ask(store, model, move, who).number
            return {REQUEST: request_store.described(store, model, number)}

        def moved(store: ModelStore, who: str) -> dict[str, Any]:
            if not needs_two:
                if work is not None:
                    return work(store, who).model_dump(mode="json")
                return make_move(store, model, move, who).document()
            current = store.pointers(model)
            if current is not None and is_made(current, move):
                return MadeMove(current, current).document()
            if move.act != "rollback":
                return asked(store, who)
            following = planned(store, model, move, current, who)
            if not self._is_free(current, following, move.alias):
                return asked(store, who)
            return MadeMove(current, store.point(model, following)).document()

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
            if REQUEST in found:
                act.name = f"ask for {move.act}"
        return found

    def _is_free(self, current: Pointers | None, following: Pointers, alias: str) -> bool:
        """Returns True for a rollback that one person makes.

        It goes back to an older version, or leaves the version as it is: the end of a rollout and
        of a split is free, too.
        """
        before, after = current.aliases.get(alias, 0) if current else 0, following.aliases[alias]
        return after == before or (after < before and not self._registry.access.two_person_rollback)

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

        def approve(store: ModelStore, who: str) -> dict[str, Any]:
            made = request_store.approve(store, model, number, who, why)
            return move_of(store, model, made).document()

        return await self._decide(principal, "approve", model, number, why, approve)

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
