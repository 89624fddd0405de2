"""One look at one `ModelRollout`: starts and steers its rollout, and tells the state of it.

In: the object's name. Out: calls of the registry, the object's status; and the time of the next
look. It blocks.

Rules:
- the registry's servers judge and move rollouts; nothing here decides about a step;
- a look reads everything anew, and may end after any of its calls: the next one, by whichever
  controller, finds what was done. A run is written into the status before its rollout is started,
  and the start is recognised at the registry by the run's mark;
- writes to the object fail if another writer was faster, and are then decided again;
- a rollout that another run or a person has started is never touched;
- a run that is over is not begun again, whatever production names later.
"""

import logging
from dataclasses import dataclass

from flambeau.registry.errors import RegistryBusyError, RegistryConflictError, RegistryError
from model_store.rollouts.amounts import share_text
from services.kubernetes.conditions import with_conditions
from services.kubernetes.model_rollout import (
    FINALIZER,
    OVER,
    InvalidSpecError,
    Phase,
    Spec,
    Status,
    mark_of,
    spec_of,
    status_of,
)
from services.kubernetes.object_api import Object, ObjectApi
from services.kubernetes.registry_rollouts import RegistryRollouts, Running, Shown, Verdict

logger = logging.getLogger("flambeau.model_rollouts")

AT_ONCE_S = 0.0
REFUSED_AGAIN_S = 30.0
"""Seconds after which what the registry refused is asked again: the version may have arrived."""
MAX_REASON = 1000
"""Characters of a reason."""
OUTCOMES: dict[str, Phase] = {
    "promoted": "Promoted",
    "rolled back": "RolledBack",
    "aborted": "Aborted",
    "ended": "Ended",
}


@dataclass(frozen=True, slots=True)
class _Run:
    """An object, what it asks for, and its status as it was read."""

    found: Object
    spec: Spec
    status: Status

    @property
    def mark(self) -> str:
        return mark_of(self.found, self.status.run_generation)


class Reconciliation:
    """The looks at all objects of a namespace.

    Args:
        objects: the API of the objects.
        registry: the registry.
        every_s: seconds between two looks at a rollout that runs.
    """

    def __init__(self, objects: ObjectApi, registry: RegistryRollouts, every_s: float) -> None:
        self._objects, self._registry, self._every_s = objects, registry, every_s

    def look(self, name: str) -> float | None:
        """Looks at an object; returns the seconds until the next look, None for no more.

        Raises:
            KubernetesError: the API refused a call (409: another writer was faster), or is away.
            RegistryError: the registry is away or overloaded.
        """
        found = self._objects.read(name)
        if found is None:
            return None
        if "deletionTimestamp" in found["metadata"]:
            return self._finish(found)
        try:
            spec = spec_of(found)
        except InvalidSpecError as error:
            self._write(found, status_of(found), "Refused", f"spec: {error}")
            return None
        if FINALIZER not in (finalizers := found["metadata"].get("finalizers", [])):
            found = self._objects.set_finalizers(found, [*finalizers, FINALIZER])
        run = _Run(found, spec, status_of(found))
        if run.status.spec_digest != spec.digest:
            return self._begin(run)
        if run.status.phase in OVER:
            self._write(found, run.status, run.status.phase, run.status.reason)
            return None
        return self._follow(run)

    def _finish(self, found: Object) -> float | None:
        """Aborts the rollout of a deleted object, if it runs, and lets the object go."""
        finalizers = list(found["metadata"].get("finalizers", []))
        if FINALIZER not in finalizers:
            return None
        self._abort_own(found, "its ModelRollout was deleted")
        self._objects.set_finalizers(found, [one for one in finalizers if one != FINALIZER])
        return None

    def _begin(self, run: _Run) -> float:
        """Writes a new run into the status; one that runs until now is aborted before."""
        self._abort_own(run.found, "its ModelRollout asks for another rollout")
        begun = Status(
            spec_digest=run.spec.digest,
            run_generation=run.found["metadata"]["generation"],
            conditions=run.status.conditions,
        )
        self._write(run.found, begun, "Pending", "about to start")
        return AT_ONCE_S

    def _abort_own(self, found: Object, why: str) -> None:
        """Aborts the rollout that an object's run has started, if it runs."""
        status = status_of(found)
        if not status.spec_digest or status.phase in OVER:
            return
        model, mark = self._model_of_run(found), mark_of(found, status.run_generation)
        try:
            running = self._registry.show(model).rollout
            own = status.rollout_id or (running and self._registry.started_by(model, mark))
            if running and running.id == own:
                self._registry.act(model, "abort", f"{why} {mark}")
        except RegistryConflictError:
            return  # it has just ended
        except RegistryError as error:
            if error.status not in (400, 404):
                raise  # a model that the registry does not know has no rollout

    @staticmethod
    def _model_of_run(found: Object) -> str:
        return str(found.get("spec", {}).get("model", ""))  # which never changes

    def _follow(self, run: _Run) -> float | None:
        try:
            shown = self._registry.show(run.spec.model)
            if not run.status.rollout_id:
                return self._start(run, shown)
            running = shown.rollout
            if running and running.id == run.status.rollout_id:
                return self._steer(run, shown, running)
            return self._conclude(run, shown)
        except RegistryConflictError as error:
            return self._refused(run, error)
        except RegistryError as error:
            if isinstance(error, RegistryBusyError) or not error.status:
                raise
            return self._refused(run, error)

    def _start(self, run: _Run, shown: Shown) -> float | None:
        """Starts the rollout of a run, unless it was started before."""
        model, running = run.spec.model, shown.rollout
        rollout_id = self._registry.started_by(model, run.mark)
        if not rollout_id:
            if run.spec.state == "Aborted":
                self._write(run.found, run.status, "Aborted", "spec.state is Aborted")
                return None
            if running:
                said = f"version {running.candidate} is being rolled out by others"
                self._write(run.found, run.status, "Pending", f"{said}; it starts after that")
                return self._every_s
            if shown.production == run.spec.version:
                said = f"production names version {run.spec.version} already"
                changed = run.status.model_copy(update={"production": run.spec.version})
                self._write(run.found, changed, "Promoted", said)
                return None
            why = f"{run.spec.why} {run.mark}".strip()
            rollout_id = self._registry.start(model, run.spec.request(why))
            logger.info("rollout started", extra={"model": model, "rollout": rollout_id})
        changed = run.status.model_copy(update={"rollout_id": rollout_id})
        self._write(run.found, changed, "Running", "started")
        return AT_ONCE_S

    def _steer(self, run: _Run, shown: Shown, running: Running) -> float:
        """Does what `state` asks of a rollout that runs, and tells its state."""
        act, paused = "", running.paused
        if run.spec.state == "Aborted":
            act = "abort"
        elif run.spec.state == "Paused" and not paused:
            act = "pause"
        elif run.spec.state == "Running" and run.mark in paused:  # not one by a person
            act = "resume"
        if act:
            why = f"spec.state is {run.spec.state} {run.mark}"
            self._registry.act(run.spec.model, act, why)
            return AT_ONCE_S
        verdict = shown.verdict or Verdict(reason=shown.note)
        said = verdict.next_why or verdict.reason
        changed = run.status.model_copy(
            update={
                "share": share_text(running.share),
                "next_step_at": running.next_step_at,
                "production": shown.production,
            }
        )
        self._write(run.found, changed, "Paused" if paused else "Running", paused or said)
        return self._every_s

    def _conclude(self, run: _Run, shown: Shown) -> float | None:
        """Tells how the rollout of a run ended."""
        if shown.last and shown.last.id == run.status.rollout_id:
            outcome, why = shown.last.outcome, shown.last.why
        else:
            outcome, why = self._registry.ended(run.spec.model, run.status.rollout_id)
        phase = OUTCOMES.get(outcome, "Ended")
        changed = run.status.model_copy(
            update={"share": "", "next_step_at": None, "production": shown.production}
        )
        self._write(run.found, changed, phase, why or outcome)
        logger.info("rollout over", extra={"model": run.spec.model, "phase": phase})
        return None

    def _refused(self, run: _Run, error: RegistryError) -> float:
        """Tells what the registry refused: a start, an act that came too late, or every call."""
        is_conflict = isinstance(error, RegistryConflictError)
        if run.status.rollout_id:
            self._write(run.found, run.status, run.status.phase, str(error))
            return self._every_s if is_conflict else REFUSED_AGAIN_S
        if is_conflict and self._registry.started_by(run.spec.model, run.mark):
            return AT_ONCE_S  # another controller was faster
        self._write(run.found, run.status, "Refused", str(error))
        return REFUSED_AGAIN_S

    def tell(self, name: str, trouble: str) -> None:
        """Tells in the conditions of an object why nothing is known of its rollout now.

        Raises:
            KubernetesError: as `look`.
        """
        found = self._objects.read(name)
        if found is None or "deletionTimestamp" in found["metadata"]:
            return
        status = status_of(found)
        if status.phase not in OVER:
            self._write(found, status, status.phase, trouble)

    def _write(self, found: Object, status: Status, phase: Phase, reason: str) -> None:
        """Writes a status, unless it says the same already."""
        own = reason.replace(mark_of(found, status.run_generation), "").strip()
        changed = status.model_copy(
            update={
                "phase": phase,
                "reason": own[:MAX_REASON],
                "observed_generation": found["metadata"]["generation"],
            }
        )
        document = with_conditions(changed).document()
        if document != found.get("status"):
            self._objects.set_status(found, document)
