"""One rollout as one process controls it: lease, evidence, verdict, and the next generation.

In: this process's own counts. Out: files of the rollout in the model store, and its moves. Every
method blocks, and is called from one thread at a time.

Rules: only the holder of the lease judges. A move is decided on freshly read pointers and written
as the generation after them, which fails if another writer was faster; then it is decided again.
So nothing moves twice, with or without a lease. The highest e-values are stored before a move.
"""

import contextlib
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from model_store.pointers import Pointers
from model_store.rollouts import transitions
from model_store.rollouts.repeated_move import move_repeatedly
from model_store.rollouts.traffic import Rollout
from model_store.store import ModelStore
from services.rollouts.decision import Decision, counts_by_share, decide
from services.rollouts.evidence.evidence import Evidence
from services.rollouts.evidence.verdict import Verdict
from services.rollouts.evidence_files import EvidenceFiles, FoundEvidence
from services.rollouts.lease import Lease

TURN_S = 0.0005
"""Time for which the judging thread may keep the interpreter lock while the event loop waits. With
the usual 5 ms, the loop was late by more than 2 ms 15 times in 0.5 s of judging, and so 4 times."""
SHOWN_FILES = 10
"""Files left out that a verdict names."""

Result = Literal["advanced", "promoted", "rolled_back", "refused"]


@dataclass(frozen=True, slots=True)
class Moved:
    """A move that this process has written."""

    model: str
    rollout: Rollout
    """As it was before."""
    result: Result
    why: str
    generation: int


@dataclass(frozen=True, slots=True)
class Looked:
    """The result of a look."""

    moved: Moved | None
    left_out: dict[str, str]
    """Files of evidence that were not read, with the reasons."""


class ControlledRollout:
    """A rollout of one model.

    Args:
        store: the model store.
        model: its name.
        rollout_id: id of the rollout.
        process: name of this process.
        interval_s: seconds between two looks.
        now: time of the day, with a time zone.
    """

    def __init__(
        self,
        store: ModelStore,
        model: str,
        rollout_id: str,
        process: str,
        interval_s: float,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._store = store
        self._model = model
        self._id = rollout_id
        self._process = process
        self._now = now
        self._files = EvidenceFiles(store.storage, model, rollout_id)
        self._lease = Lease(store.storage, self._files.folder, process, interval_s)
        self._own = Evidence()
        self._own_name = process
        self._stored: dict[str, Evidence] = {}
        """Counts and peaks as this process has written them, by process."""

    def write_own(self, counts: Evidence, name: str = "") -> None:
        """Writes this process's counts if they have changed.

        Args:
            counts: all that were counted under a name.
            name: another one than this process's own, see `TrafficCounts.name_of`.

        Raises:
            StorageError: the store failed.
        """
        self._own_name = name or self._process
        self._own = Evidence(counts.counts, {**self._own.peaks})
        self.write_other(self._own_name, self._own)

    def write_other(self, process: str, counts: Evidence) -> None:
        """Writes the counts of a process that has no store, if they have changed.

        Raises:
            InvalidEvidenceError: the name of the process cannot be that of a file.
            StorageError: the store failed.
        """
        if counts != self._stored.get(process):
            self._files.write(process, counts)
            self._stored[process] = Evidence({**counts.counts}, {**counts.peaks})

    def look(self) -> Looked | None:
        """Judges the rollout and moves it, if this process holds the lease; None if not.

        Raises:
            StoreError: the store failed, or has pointers that cannot be read.
        """
        if not self._lease.look():
            return None
        pointers, found = self._store.pointers(self._model), self._files.read()
        if pointers is None or (rollout := _rollout(pointers, self._id)) is None:
            return None
        verdict = self._judged(rollout, found)
        self._write_verdict(rollout, verdict, found)

        def act(pointers: Pointers, rollout: Rollout) -> tuple[Pointers, Result, str] | None:
            decision = decide(rollout, verdict, found.total, self._now())
            return self._following(pointers, decision, verdict, found.total)

        return Looked(self._moved(act), {**found.left_out})

    def end_refused(self, reason: str) -> Moved | None:
        """Ends the rollout because the candidate could not be loaded here; needs no lease.

        Returns:
            The move; None if the rollout was over.

        Raises:
            StoreError: the store failed.
        """

        def act(pointers: Pointers, rollout: Rollout) -> tuple[Pointers, Result, str]:
            host = socket.gethostname()
            why = f"version {rollout.candidate} failed to load on {host}: {reason}"[:1_000]
            return transitions.ended(pointers, self._id, self._who(), why), "refused", why

        return self._moved(act)

    def _judged(self, rollout: Rollout, found: FoundEvidence) -> Verdict:
        """Judges the evidence, and stores its highest e-values in the own file."""
        from services.rollouts.evidence.judge import judge, remembered  # NumPy

        with _short_turns():
            verdict = judge(found.total, rollout.guards)
        self._own.peaks.update(remembered(found.total, verdict).peaks)
        self.write_other(self._own_name, self._own)
        return verdict

    def _write_verdict(self, rollout: Rollout, verdict: Verdict, found: FoundEvidence) -> None:
        now = self._now()
        decision = decide(rollout, verdict, found.total, now)
        self._files.write_verdict(
            {
                **verdict.as_plain(),
                "when": now.isoformat(),
                "process": self._process,
                "step": rollout.step,
                "next": decision.move,
                "next_why": decision.why,
                "counts": counts_by_share(found.total),
                "processes": found.processes,
                "left_out": dict(list(found.left_out.items())[:SHOWN_FILES]),
            }
        )

    def _following(
        self, pointers: Pointers, decision: Decision, verdict: Verdict, total: Evidence
    ) -> tuple[Pointers, Result, str] | None:
        """Returns the next generation by a decision; None if there is no move."""
        why, who = decision.why, self._who()
        evidence: dict[str, Any] = {**verdict.as_plain(), "counts": counts_by_share(total)}
        match decision.move:
            case "rolled_back":
                following = transitions.ended(pointers, self._id, who, why, evidence)
            case "promoted":
                following = transitions.promoted(pointers, self._id, who, why, evidence)
            case "advanced":
                following = transitions.advanced(pointers, self._id, who, why)
            case None:
                return None
        return following, decision.move, why

    def _moved(
        self, act: Callable[[Pointers, Rollout], tuple[Pointers, Result, str] | None]
    ) -> Moved | None:
        """Writes what an act makes of the newest pointers; repeats it after other writers.

        Raises:
            ConflictError: others were faster, again and again.
        """
        decided: tuple[Rollout, Result, str] | None = None

        def following(pointers: Pointers | None) -> Pointers | None:
            nonlocal decided
            if pointers is None or (rollout := _rollout(pointers, self._id)) is None:
                return None
            if (found := act(pointers, rollout)) is None:
                return None
            decided = rollout, *found[1:]
            return found[0]

        written = move_repeatedly(self._store, self._model, following)
        if written is None or decided is None:
            return None
        return Moved(self._model, *decided, written.generation)

    def _who(self) -> str:
        return f"rollout controller {self._process}"


@contextlib.contextmanager
def _short_turns() -> Iterator[None]:
    """Has the interpreter lock change hands within `TURN_S` in all threads of this process."""
    usual_s = sys.getswitchinterval()
    sys.setswitchinterval(TURN_S)
    try:
        yield
    finally:
        sys.setswitchinterval(usual_s)


def _rollout(pointers: Pointers, rollout_id: str) -> Rollout | None:
    """Returns the rollout of an id; None if it is over."""
    rollout = pointers.traffic.rollout
    return rollout if rollout is not None and rollout.id == rollout_id else None
