"""A `ModelRollout`: the object that users apply, and the rollout that it asks for. Pure.

In: an object of the API, as JSON values. Out: records; the request of the registry.

Rules: the schema of the API server (k8s/components/model-rollouts/crd.yaml) refuses most wrong
values; what it cannot know is refused here, with the same words as the registry's. A *run* is one
rollout of one state of `spec`: a change of anything but `state` and `why` begins the next run.
"""

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, ValidationError
from pydantic.alias_generators import to_camel

from flambeau.protocol.strict import StrictModel, explain
from model_store.rollouts.amounts import parse_duration, parse_share
from services.kubernetes.object_api import Object

GROUP_VERSION, PLURAL, KIND = "flambeau.dev/v1alpha1", "modelrollouts", "ModelRollout"
FINALIZER = "flambeau.dev/rollout"
"""Keeps a deleted object until its rollout has been aborted."""
MAX_OWN_WHY = 250
"""Characters of `why` in an object; the registry's `why` names the object, too."""
MAX_CONDITIONS = 8

Phase = Literal[
    "Pending", "Running", "Paused", "Promoted", "RolledBack", "Aborted", "Ended", "Refused"
]
OVER = ("Promoted", "RolledBack", "Aborted", "Ended")
"""Phases that a run does not leave."""
Guard = Literal["errors", "disagreement", "latency", "nan", "outputs"]


class _OfObject(StrictModel):
    model_config = ConfigDict(alias_generator=to_camel)


class Spec(_OfObject):
    """The rollout that a user asks for."""

    model: str = Field(max_length=128)
    version: int = Field(ge=1, le=999_999_999)
    steps: tuple[str, ...] = Field(default=("1%", "10%", "50%", "100%"), max_length=32)
    every: str = "5m"
    sticky: str = ""
    mirror: str = "10%"
    risk: str = "1%"
    guards: dict[str, dict[str, JsonValue]] = Field(default={})
    disabled_guards: tuple[Guard, ...] = ()
    allow_breaking: bool = False
    attempt: int = Field(default=1, ge=1)
    """Raised to repeat a rollout that is over."""
    state: Literal["Running", "Paused", "Aborted"] = "Running"
    why: str = Field(default="", max_length=MAX_OWN_WHY)

    @property
    def digest(self) -> str:
        """Digest of all that makes a run."""
        run = self.model_dump(mode="json", exclude={"state", "why"})
        return hashlib.sha256(json.dumps(run, sort_keys=True).encode()).hexdigest()[:16]

    def request(self, why: str) -> dict[str, Any]:
        """Returns the registry's request for the rollout.

        Raises:
            ValueError: a share or a duration is none.
        """
        return {
            "version": self.version,
            "steps": [parse_share(step) for step in self.steps],
            "every_s": parse_duration(self.every),
            "sticky": self.sticky,
            "mirrored": parse_share(self.mirror),
            "risk": parse_share(self.risk),
            "guards": {**self.guards, **dict.fromkeys(self.disabled_guards)},
            "allow_breaking": self.allow_breaking,
            "why": why,
        }


class _Written(BaseModel):
    """Parts of a status; those of another version of the controller are dropped."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="ignore")


class Condition(_Written):
    """A condition, as `metav1.Condition`."""

    type: Literal["Ready", "Reconciling", "Stalled"]
    status: Literal["True", "False"]
    reason: str
    message: str = ""
    observed_generation: int = 0
    last_transition_time: str


class Status(_Written):
    """The state as the controller tells it, and all that it has to remember."""

    observed_generation: int = 0
    phase: Phase = "Pending"
    share: str = ""
    """The candidate's share of the requests, such as `10%`."""
    reason: str = ""
    """Why it is in this phase, in words."""
    next_step_at: str | None = None
    production: int | None = None
    """The version in production."""
    spec_digest: str = ""
    """`Spec.digest` of the run."""
    run_generation: int = 0
    """`metadata.generation` when the run began; names it."""
    rollout_id: str = ""
    """Id of the run's rollout at the registry, once it is known."""
    conditions: list[Condition] = Field(default=[], max_length=MAX_CONDITIONS)

    def document(self) -> Object:
        """Returns the status for the API."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class InvalidSpecError(Exception):
    """The object asks for no rollout; the message says why."""


def spec_of(found: Object) -> Spec:
    """Reads what an object asks for.

    Raises:
        InvalidSpecError: a field is wrong.
    """
    try:
        spec = Spec.model_validate(found.get("spec"))
        spec.request("")
    except ValidationError as error:
        raise InvalidSpecError(explain(error, Spec)) from error
    except ValueError as error:
        raise InvalidSpecError(str(error)) from error
    return spec


def status_of(found: Object) -> Status:
    """Reads the status of an object; one that cannot be read counts as none."""
    try:
        return Status.model_validate(found.get("status") or {})
    except ValidationError:
        return Status()


def mark_of(found: Object, run_generation: int) -> str:
    """Returns the text by which a run is recognised in the history of a model."""
    metadata = found["metadata"]
    name = f"{metadata['namespace']}/{metadata['name']}"
    return f"[{KIND} {name} {metadata['uid']}/{run_generation}]"
