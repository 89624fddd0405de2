"""Rollouts, shadows and splits in the registry: who may start and end them, and what is shown.

In: calls of a `Principal`. Out: plain values for JSON; every failure is a `ServingError`.

Rules: reading needs the scope `read`, and every act `promote` on the alias `production`, whose
requests it routes. Values of callers' inputs and of answers are shown only to those who may do such
acts: `read` is no right to see what others send. Each act is audited, with who, why and from where.
"""

from collections.abc import Callable
from typing import Any

from model_store.pointers import PRODUCTION, Pointers
from model_store.rollouts.amounts import share_text
from model_store.rollouts.requests import RolloutRequest, ShadowRequest, SplitRequest
from model_store.store import ModelStore
from services.access.audit import audited
from services.access.caller import Principal
from services.registry.encoding import encoded
from services.registry.registry import Registry
from services.rollouts.calls import ACTS, STATUS, TrafficRequest, start, without_values


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
        """Starts a rollout, a shadow or a split; returns the new generation of the pointers."""
        match wanted:
            case RolloutRequest():
                act, target = "rollout start", f"{model}/{wanted.version}"
            case ShadowRequest():
                act, target = "shadow start", f"{model}/{wanted.version}"
            case SplitRequest():
                arms = ",".join(f"{arm.version}={share_text(arm.share)}" for arm in wanted.arms)
                act, target = "split start", f"{model} {wanted.name} {arms}"
        return await self._act(
            principal,
            act,
            model,
            target,
            wanted.why,
            lambda store, who: start(store, model, wanted, who),
        )

    async def act(self, principal: Principal, model: str, act: str, why: str) -> dict[str, Any]:
        """Does one of `ACTS`; returns the new generation of the pointers."""
        return await self._act(
            principal, act, model, model, why, lambda store, who: ACTS[act](store, model, why, who)
        )

    async def _act(
        self,
        principal: Principal,
        act: str,
        model: str,
        target: str,
        why: str,
        work: Callable[[ModelStore, str], Pointers],
    ) -> dict[str, Any]:
        with audited(act, target, principal.name, principal.peer, why):
            pointers = await self._registry.on_store(principal, "promote", model, PRODUCTION, work)
        return pointers.model_dump(mode="json")
