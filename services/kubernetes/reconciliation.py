"""One look at one `ModelRollout`: starts and steers its rollout, and tells the state of it.

In: the object's name. Out: calls of the registry, the object's status; and the time of the next
look. It blocks.

Rules:
- the registry's servers judge and move rollouts; nothing here decides about a step;
- a look reads everything anew, and may end after any of its calls: the next one, by whichever
  controller, finds what was done. A run is written into the status before its rollout is started,
  and the start is recognised at the registry by the run's mark;
- writes to the object fail if another writer was faster, and are then decided again;
- a rollout that another run or a person has started is never touched: acts name its id;
- a run that is over is not begun again, whatever production or a wrong `spec` says later;
- a rollout whose run has left its object meanwhile is aborted; see `open_starts`.
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
from services.kubernetes.object_api import KubernetesError, Object, ObjectApi
from services.kubernetes.open_starts import OpenStarts
from services.kubernetes.registry_rollouts import (
    AwaitedPersonError,
    RegistryRollouts,
    Running,
    Shown,
    Verdict,
)

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
    def name(self) -> str:
        return str(self.found["metadata"]["name"])

    @property
    def mark(self) -> str:
        return mark_of(self.found, self.status.run_generation)


class Reconciliation:
    """The looks at all objects of a namespace.

    Args:
        objects: the API of the objects.
        registry: the registry.
        every_s: seconds between two looks at a rollout that runs.
        starts: its starts of rollouts; None for new ones.
    """

    def __init__(
        self,
        objects: ObjectApi,
        registry: RegistryRollouts,
        every_s: float,
        starts: OpenStarts | None = None,
    ) -> None:
        self._objects, self._registry, self._every_s = objects, registry, every_s
        self._starts = starts or OpenStarts(registry)
        self._others: dict[str, tuple[str, str]] = {}
        """By name, the mark of a run and a rollout that it has not started."""

    def look(self, name: str) -> float | None:
        """Looks at an object; returns the seconds until the next look, None for no more.

        Raises:
            KubernetesError: the API refused a call (409: another writer was faster), or is away.
            RegistryError: the registry is away or overloaded.
        """
        found = self._objects.read(name)
        if wait_s := self._starts.abort_lost(name, _mark_in(found)):
            return wait_s
        if found is None:
            self._others.pop(name, None)
            return None
        if "deletionTimestamp" in found["metadata"]:
            return self._finish(found)
        try:
            spec = spec_of(found)
        except InvalidSpecError as error:
            status = status_of(found)
            is_over = status.phase in OVER
            phase, reason = (
                (status.phase, status.reason) if is_over else ("Refused", f"spec: {error}")
            )
            self._write(found, status, phase, reason)
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
        if wait_s := self._abort_own(found, "its ModelRollout was deleted"):
            return wait_s
        self._objects.set_finalizers(found, [one for one in finalizers if one != FINALIZER])
        return None

    def _begin(self, run: _Run) -> float:
        """Writes a new run into the status; one that runs until now is aborted before."""
        if wait_s := self._abort_own(run.found, "its ModelRollout asks for another rollout"):
            return wait_s
        begun = Status(
            spec_digest=run.spec.digest,
            run_generation=run.found["metadata"]["generation"],
            conditions=run.status.conditions,
        )
        self._write(run.found, begun, "Pending", "about to start")
        return AT_ONCE_S

    def _abort_own(self, found: Object, why: str) -> float:
        """Aborts the rollout that an object's run has started, if it runs.

        Returns:
            Seconds after which to look again: its start may still be carried out. 0 for no need.
        """
        status = status_of(found)
        if not status.spec_digest or status.phase in OVER:
            return 0.0
        name, model = found["metadata"]["name"], self._model_of_run(found)
        mark = mark_of(found, status.run_generation)
        try:
            running = self._registry.show(model).rollout
            own = status.rollout_id or (running and self._registry.started_by(model, mark))
            if running and running.id == own:
                self._registry.act(model, "abort", f"{why} {mark}", own)
            elif wait_s := self._starts.wait_s(name):
                return wait_s
        except RegistryConflictError:
            pass  # it has just ended
        except RegistryError as error:
            if error.status not in (400, 404):
                raise  # a model that the registry does not know has no rollout
        self._starts.close(name)
        return 0.0

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
        except AwaitedPersonError as error:
            self._write(run.found, run.status, "Pending", str(error))
            return REFUSED_AGAIN_S
        except RegistryError as error:
            if isinstance(error, RegistryBusyError) or not error.status:
                raise
            return self._refused(run, error)

    def _start(self, run: _Run, shown: Shown) -> float | None:
        """Starts the rollout of a run, unless it was started before."""
        model, running = run.spec.model, shown.rollout
        rollout_id = self._started(run, running)
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
            rollout_id = self._starts.start(run.name, model, run.mark, run.spec.request(why))
            logger.info("rollout started", extra={"model": model, "rollout": rollout_id})
        changed = run.status.model_copy(update={"rollout_id": rollout_id})
        try:
            self._write(run.found, changed, "Running", "started")
        except KubernetesError:
            self._starts.abort_lost(run.name, _mark_in(self._objects.read(run.name)))
            raise
        self._starts.close(run.name)
        return AT_ONCE_S

    def _started(self, run: _Run, running: Running | None) -> str:
        """Returns the id of the rollout that a run has started; empty for none.

        The history is read once for each rollout of others that runs meanwhile.
        """
        beside = (run.mark, running.id) if running else None
        if beside and self._others.get(run.name) == beside:
            return ""
        rollout_id = self._registry.started_by(run.spec.model, run.mark)
        if beside and not rollout_id:
            self._others[run.name] = beside
        return rollout_id

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
            self._registry.act(run.spec.model, act, why, running.id)
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


def _mark_in(found: Object | None) -> str:
    """Returns the mark of the run that an object has; empty without an object."""
    return mark_of(found, status_of(found).run_generation) if found else ""
