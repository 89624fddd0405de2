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
from model_store.rollouts.requests import RolloutRequest, ShadowRequest, SplitRequest
from model_store.store import ModelStore
from services.rollouts.reports import shadow_report, split_report

TrafficRequest = RolloutRequest | ShadowRequest | SplitRequest
REQUESTS: Mapping[str, type[RolloutRequest] | type[ShadowRequest] | type[SplitRequest]] = {
    "rollout": RolloutRequest,
    "shadow": ShadowRequest,
    "split": SplitRequest,
}
STATUS: Mapping[str, Callable[[ModelStore, str], dict[str, Any]]] = {
    "rollout": status.rollout_status,
    "shadow": shadow_report,
    "split": split_report,
}
"""Documents of each kind."""
ACTS: Mapping[str, Callable[[ModelStore, str, str, str], Pointers]] = {
    "rollout pause": rollout_store.pause_rollout,
    "rollout resume": rollout_store.resume_rollout,
    "rollout abort": rollout_store.abort_rollout,
    "rollout promote": rollout_store.promote_rollout,
    "shadow stop": rollout_store.stop_shadow,
    "split end": rollout_store.end_split,
}
"""Acts on what runs; each takes store, model, why and who."""


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
