"""Starts of rollouts whose ids no status names yet, as this process asked for them. It blocks.

In: the object's name, and the mark of its run. Out: calls of the registry.

Rules:
- a rollout whose run has left its object before its id was written is aborted: nobody else would;
- a start without an answer may still be carried out; until `TIMEOUT_S` later, its run counts as one
  that may run.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from flambeau.registry.errors import RegistryBusyError, RegistryConflictError, RegistryError
from services.kubernetes.registry_rollouts import TIMEOUT_S, Document, RegistryRollouts


@dataclass(frozen=True, slots=True)
class _OpenStart:
    """A start.

    Attributes:
        model: the model.
        mark: mark of the run.
        rollout_id: its rollout; empty without an answer.
        until: time until which it may be carried out without an answer.
    """

    model: str
    mark: str
    rollout_id: str
    until: float


class OpenStarts:
    """The starts, by the names of their objects.

    Args:
        registry: the registry.
        clock: monotonic time in seconds.
    """

    def __init__(
        self, registry: RegistryRollouts, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._registry, self._clock = registry, clock
        self._open: dict[str, _OpenStart] = {}

    def start(self, name: str, model: str, mark: str, request: Document) -> str:
        """Starts the rollout of a run; returns its id. Errors are those of `RegistryRollouts`."""
        try:
            rollout_id = self._registry.start(model, request)
        except RegistryError as error:
            is_answered = error.status == 202 or 400 <= error.status < 500
            if not (is_answered or isinstance(error, RegistryBusyError)):
                self._open[name] = _OpenStart(model, mark, "", self._clock() + TIMEOUT_S)
            raise
        self._open[name] = _OpenStart(model, mark, rollout_id, 0.0)
        return rollout_id

    def close(self, name: str) -> None:
        """Forgets the start of an object: its id is written, or its rollout is over."""
        self._open.pop(name, None)

    def wait_s(self, name: str) -> float:
        """Returns the seconds for which the start of an object may still be carried out."""
        start = self._open.get(name)
        return max(0.0, start.until - self._clock()) if start else 0.0

    def abort_lost(self, name: str, mark: str) -> float:
        """Aborts the rollout of a start whose run an object no longer has.

        Args:
            name: the object's name.
            mark: mark of the run that it has; empty if there is no object.

        Returns:
            Seconds after which to look again: the start may still be carried out. 0 for no need.

        Raises:
            RegistryError: the registry is away or overloaded.
        """
        start = self._open.get(name)
        if start is None or start.mark == mark:
            return 0.0
        try:
            own = start.rollout_id or self._registry.started_by(start.model, start.mark)
            if own:
                why = f"its ModelRollout was gone when it started {start.mark}"
                self._registry.act(start.model, "abort", why, own)
            elif wait_s := self.wait_s(name):
                return wait_s
        except RegistryConflictError:
            pass  # it has ended
        except RegistryError as error:
            if error.status not in (400, 404):
                raise  # a model that the registry does not know has no rollout
        self.close(name)
        return 0.0
