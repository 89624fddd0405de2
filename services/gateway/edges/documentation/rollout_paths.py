"""The calls on rollouts, shadows and splits, as paths of an OpenAPI document."""

from typing import Any

from services.gateway.edges.documentation.alias_paths import moved_responses
from services.gateway.edges.documentation.openapi_parts import (
    MODEL,
    json_body,
    object_of,
    operation,
    responses_of,
)

_TEXT: dict[str, Any] = {"type": "string"}
_SHARE: dict[str, Any] = {"type": "number", "minimum": 0, "maximum": 1}
_NUMBER: dict[str, Any] = {"type": "integer", "minimum": 1, "maximum": 999_999_999}
_READ = {
    "403": "The caller may not, or would need a credential",
    "404": "Unknown, or the caller has no scope of the registry on the model",
    "503": "Too many calls, or the store cannot be reached",
}
_ACT = {
    **_READ,
    "400": "The body is not as described",
    "409": "What runs does not allow it, or the version breaks callers of production's",
}
_KINDS = {
    "rollout": ("Rollout", "the rollout, its verdict, or how the last one ended"),
    "shadow": ("Shadow", "the shadow and its figures"),
    "split": ("Split", "the split and the figures of its arms"),
}
_ACTS = {
    "rollout/pause": ("pauseRollout", "Keep the rollout at its step"),
    "rollout/resume": ("resumeRollout", "Let the paused rollout go on"),
    "rollout/abort": ("abortRollout", "End the rollout; production stays"),
    "rollout/promote": ("promoteRollout", "Point production at the candidate now"),
    "shadow/stop": ("stopShadow", "End the shadow"),
    "split/end": ("endSplit", "End the split"),
}


def rollout_paths(base: str) -> dict[str, Any]:
    """Returns the paths of a model's rollout, shadow and split.

    Args:
        base: path of the models of the registry.
    """
    paths: dict[str, Any] = {}
    for path, (name, summary) in _KINDS.items():
        paths[path] = {
            "parameters": [MODEL],
            "get": operation(
                f"registry{name}", f"Show {summary}", responses_of(f"Registry{name}", _READ)
            ),
            "post": operation(
                f"start{name}",
                f"Start a {path}",
                moved_responses(_ACT),
                requestBody=json_body(f"Registry{name}Request"),
            ),
        }
    for path, (name, summary) in _ACTS.items():
        moved = moved_responses(_ACT)
        kind = "RegistryRolloutReason" if path.startswith("rollout/") else "RegistryReason"
        done = operation(name, summary, moved, requestBody=json_body(kind))
        paths[path] = {"parameters": [MODEL], "post": done}
    return {f"{base}{{model}}/{path}": item for path, item in paths.items()}


def rollout_schemas() -> dict[str, Any]:
    """Returns the schemas that the paths refer to."""
    reason = {"why": {**_TEXT, "maxLength": 500}, "allow_breaking": {"type": "boolean"}}
    some = {"type": ["object", "null"]}
    shown = {"model": _TEXT, "production": {"type": ["integer", "null"]}, "note": _TEXT}
    arm = object_of(["version", "share"], version=_NUMBER, share=_SHARE)
    seconds = {"type": "number", "minimum": 0, "maximum": 2_592_000}
    return {
        "RegistryRollout": object_of(
            ["rollout", "verdict", "last"], **shown, rollout=some, verdict=some, last=some
        ),
        "RegistryShadow": object_of(
            ["shadow", "figures", "last"], **shown, shadow=some, figures=some, last=some
        ),
        "RegistrySplit": object_of(
            ["split", "arms", "last"],
            **shown,
            split=some,
            arms={"type": "array", "items": {"type": "object"}},
            last=some,
        ),
        "RegistryRolloutReason": object_of(
            [],
            why=reason["why"],
            rollout_id={
                **_TEXT,
                "pattern": "^([0-9a-f]{16})?$",
                "description": "The rollout that is meant; 409 if another one runs",
            },
        ),
        "RegistryRolloutRequest": object_of(
            ["version"],
            version=_NUMBER,
            steps={"type": "array", "minItems": 1, "maxItems": 32, "items": _SHARE},
            every_s=seconds,
            sticky=_TEXT,
            mirrored=_SHARE,
            risk={"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 0.5},
            guards={"type": "object", "maxProperties": 16, "additionalProperties": some},
            **reason,
        ),
        "RegistryShadowRequest": object_of(
            ["version"],
            version=_NUMBER,
            sample=_SHARE,
            keep={"type": "integer", "minimum": 0, "maximum": 100},
            **reason,
        ),
        "RegistrySplitRequest": object_of(
            ["name", "arms"],
            name=_TEXT,
            arms={"type": "array", "minItems": 2, "maxItems": 8, "items": arm},
            sticky=_TEXT,
            **reason,
        ),
        "RegistryTrafficChange": object_of(
            ["kind", "act", "id", "text"], kind=_TEXT, act=_TEXT, id=_TEXT, text=_TEXT
        ),
    }
