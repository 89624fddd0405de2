"""Calls on rollouts, shadows and splits: their names, requests and documents. Every one blocks.

In: a store, a model and plain values. Out: pointers, or documents for JSON. The registry and the
command line offer the same calls.
"""

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from flambeau.protocol.strict import explain
from model_store.errors import InvalidRolloutError
from model_store.pointers import Pointers
from model_store.rollouts import rollout_store, status
from model_store.rollouts.requests import (
    Reason,
    RolloutReason,
    RolloutRequest,
    ShadowRequest,
    SplitRequest,
)
from model_store.store import ModelStore


def _shadow(store: ModelStore, model: str) -> dict[str, Any]:
    from services.rollouts.reports import shadow_report  # the evidence, unused by most servers

    return shadow_report(store, model)


def _split(store: ModelStore, model: str) -> dict[str, Any]:
    from services.rollouts.reports import split_report

    return split_report(store, model)


TrafficRequest = RolloutRequest | ShadowRequest | SplitRequest
REQUESTS: Mapping[str, type[RolloutRequest] | type[ShadowRequest] | type[SplitRequest]] = {
    "rollout": RolloutRequest,
    "shadow": ShadowRequest,
    "split": SplitRequest,
}
STATUS: Mapping[str, Callable[[ModelStore, str], dict[str, Any]]] = {
    "rollout": status.rollout_status,
    "shadow": _shadow,
    "split": _split,
}
"""Documents of each kind."""
_ROLLOUT_ACTS: Mapping[str, Callable[[ModelStore, str, str, str, str], Pointers]] = {
    "rollout pause": rollout_store.pause_rollout,
    "rollout resume": rollout_store.resume_rollout,
    "rollout abort": rollout_store.abort_rollout,
    "rollout promote": rollout_store.promote_rollout,
}
_OTHER_ACTS: Mapping[str, Callable[[ModelStore, str, str, str], Pointers]] = {
    "shadow stop": rollout_store.stop_shadow,
    "split end": rollout_store.end_split,
}
ACTS: Mapping[str, type[Reason]] = {
    **dict.fromkeys(_ROLLOUT_ACTS, RolloutReason),
    **dict.fromkeys(_OTHER_ACTS, Reason),
}
"""Requests of the acts on what runs."""


def without_values(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a document of `STATUS` without values of requests; shapes and differences remain."""
    figures = document.get("figures")
    if figures is None:
        return document
    worst = [_without_values(pair) for pair in figures["worst"]]
    return {**document, "figures": {**figures, "worst": worst}}


def _without_values(pair: Mapping[str, Any]) -> dict[str, Any]:
    bare = {
        name: [{**tensor, "values": None} for tensor in pair[name]]
        for name in ("inputs", "live", "candidate")
    }
    kind, _, _ = pair["error"].partition(":")  # its text may quote an input
    return {**pair, **bare, "error": kind}


def read_request(kind: str, document: Mapping[str, Any]) -> TrafficRequest:
    """Reads what a person asks for.

    Raises:
        InvalidRolloutError: a value is missing or cannot be.
    """
    try:
        return REQUESTS[kind].model_validate(document)
    except ValidationError as error:
        raise InvalidRolloutError(explain(error, REQUESTS[kind])) from error


def start(store: ModelStore, model: str, wanted: TrafficRequest, who: str = "") -> Pointers:
    """Starts what was asked for; see `rollout_store` for the errors."""
    match wanted:
        case RolloutRequest():
            return rollout_store.start_rollout(store, model, wanted, who)
        case ShadowRequest():
            return rollout_store.start_shadow(store, model, wanted, who)
        case SplitRequest():
            return rollout_store.start_split(store, model, wanted, who)


def act_on(store: ModelStore, model: str, act: str, wanted: Reason, who: str = "") -> Pointers:
    """Does one of `ACTS`; see `rollout_store` for the errors."""
    if isinstance(wanted, RolloutReason):
        return _ROLLOUT_ACTS[act](store, model, wanted.why, who, wanted.rollout_id)
    return _OTHER_ACTS[act](store, model, wanted.why, who)
