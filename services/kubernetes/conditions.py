"""Conditions of a `ModelRollout`, by its phase: tools that deploy read them. Pure.

| phase | Ready | Reconciling | Stalled |
|---|---|---|---|
| Pending, Running, Paused | False | True | False |
| Promoted | True | False | False |
| RolledBack, Aborted, Ended, Refused | False | False | True |

Source: kstatus (`sigs.k8s.io/cli-utils/pkg/kstatus`), which Flux and others follow: an object is
current if `observedGeneration` is its generation and none of `Reconciling` and `Stalled` is True.
"""

from datetime import UTC, datetime
from typing import Literal

from services.kubernetes.model_rollout import Condition, Phase, Status

_MOVING: tuple[Phase, ...] = ("Pending", "Running", "Paused")
Kind = Literal["Ready", "Reconciling", "Stalled"]


def with_conditions(status: Status) -> Status:
    """Returns a status with the conditions of its phase; one that stays keeps its time."""
    before = {one.type: one for one in status.conditions}
    now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    holds: dict[Kind, bool] = {
        "Ready": status.phase == "Promoted",
        "Reconciling": status.phase in _MOVING,
        "Stalled": status.phase != "Promoted" and status.phase not in _MOVING,
    }
    conditions = []
    for kind, is_true in holds.items():
        value: Literal["True", "False"] = "True" if is_true else "False"
        old = before.get(kind)
        conditions.append(
            Condition(
                type=kind,
                status=value,
                reason=status.phase,
                message=status.reason,
                observed_generation=status.observed_generation,
                last_transition_time=(
                    old.last_transition_time if old and old.status == value else now
                ),
            )
        )
    return status.model_copy(update={"conditions": conditions})
