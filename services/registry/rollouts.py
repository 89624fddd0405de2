"""Rollouts, shadows and splits in the registry: who may start and end them, and what is shown.

In: calls of a `Principal`. Out: plain values for JSON; every failure is a `ServingError`.

Rules: reading needs the scope `read`, and every act `promote` on the alias `production`, whose
requests it routes. Values of callers' inputs and of answers are shown only to those who may do such
acts: `read` is no right to see what others send. Each act is audited, with who, why and from where.
"""

from typing import Any

from model_store.approvals.asked_move import AskedMove, started
from model_store.pointers import PRODUCTION, Pointers
from model_store.rollouts.requests import Reason, RolloutReason
from model_store.store import ModelStore
from services.access.audit import audited
from services.access.caller import Principal
from services.registry.alias_moves import AliasMoves
from services.registry.encoding import encoded
from services.registry.registry import Registry
from services.rollouts.calls import STATUS, TrafficRequest, act_on, start, without_values


class RolloutRegistry:
    """The calls on rollouts, shadows and splits of a registry.

    Args:
        registry: the registry, whose threads and permissions they use.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def show(self, principal: Principal, model: str, kind: str) -> bytes:
        """Describes the rollout, shadow or split of a model, in JSON; see `STATUS`."""
        sees_values = self._registry.may(principal, "promote", model, PRODUCTION)

        def described(store: ModelStore, _: str) -> bytes:
            document = STATUS[kind](store, model)
            return encoded(document if sees_values else without_values(document))

        return await self._registry.on_store(principal, "read", model, "", described)

    async def start(
        self, principal: Principal, model: str, wanted: TrafficRequest
    ) -> dict[str, Any]:
        """Starts a rollout, a shadow or a split; see `AliasMoves.move`."""
        return await AliasMoves(self._registry).move(
            principal, model, started(wanted), lambda store, who: start(store, model, wanted, who)
        )

    async def act(
        self, principal: Principal, model: str, act: str, wanted: Reason
    ) -> dict[str, Any]:
        """Does one of `ACTS`; returns the new generation of the pointers."""

        def work(store: ModelStore, who: str) -> Pointers:
            return act_on(store, model, act, wanted, who)

        if act == "rollout promote":
            assert isinstance(wanted, RolloutReason), "it is an act on a rollout"
            move = AskedMove(act="rollout promote", why=wanted.why, rollout_id=wanted.rollout_id)
            return await AliasMoves(self._registry).move(principal, model, move, work)
        with audited(act, model, principal.name, principal.peer, wanted.why):
            pointers = await self._registry.on_store(principal, "promote", model, PRODUCTION, work)
        return pointers.model_dump(mode="json")
