"""Rollouts, shadows and splits over REST: paths below a model, and their JSON.

GET    rollout                                the rollout, its verdict, or how the last one ended
POST   rollout                                starts one; see `model_store.rollouts.requests`
POST   rollout/{pause,resume,abort,promote}   {"why": "...", "rollout_id": "..."}
GET    shadow                                 the shadow, and its figures
POST   shadow                                 starts one
POST   shadow/stop                            {"why": "..."}
GET    split                                  the split, and its arms
POST   split                                  starts one
POST   split/end                              {"why": "..."}
"""

from collections.abc import Awaitable, Callable

from starlette.requests import Request
from starlette.responses import Response

from services.access.caller import Principal
from services.registry.alias_routes import moved
from services.registry.bodies import document, parsed
from services.registry.registry import Registry
from services.registry.rollouts import RolloutRegistry
from services.rollouts.calls import ACTS, REQUESTS

Call = Callable[[Registry, Request, Principal], Awaitable[Response]]


def rollout_calls() -> dict[str, dict[str, Call]]:
    """Returns the calls by path below a model, and by method."""
    started: dict[str, dict[str, Call]] = {
        kind: {"GET": _show(kind), "POST": _start(kind)} for kind in REQUESTS
    }
    return started | {act.replace(" ", "/"): {"POST": _act(act)} for act in ACTS}


def _show(kind: str) -> Call:
    async def show(registry: Registry, request: Request, principal: Principal) -> Response:
        rollouts, model = RolloutRegistry(registry), request.path_params["model"]
        return document(request, await rollouts.show(principal, model, kind))

    return show


def _start(kind: str) -> Call:
    async def start(registry: Registry, request: Request, principal: Principal) -> Response:
        rollouts, model = RolloutRegistry(registry), request.path_params["model"]
        wanted = await parsed(REQUESTS[kind], request)
        return moved(await rollouts.start(principal, model, wanted))

    return start


def _act(act: str) -> Call:
    async def do(registry: Registry, request: Request, principal: Principal) -> Response:
        rollouts, model = RolloutRegistry(registry), request.path_params["model"]
        wanted = await parsed(ACTS[act], request)
        return moved(await rollouts.act(principal, model, act, wanted))

    return do
