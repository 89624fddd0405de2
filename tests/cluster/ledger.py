"""The ledger: every call, the phase in which it began, and its outcome.

Pure. In: calls as they end. Out: a table, and violations.
"""

import threading
from collections import Counter
from dataclasses import dataclass, field

KINDS = ("rest", "grpc", "direct")
"""REST and gRPC through Envoy; gRPC directly to the pods of a headless Service."""


@dataclass(slots=True)
class Phase:
    """Events between two steps.

    Attributes:
        name: name of the phase.
        calls: number of successful calls, by kind.
        retried: number of retries by a client (`client`) or Envoy (`envoy`).
        failed: final errors seen by clients, one line each.
        wrong: wrong responses, one line each.
        latencies_s: latencies of all calls.
    """

    name: str
    calls: Counter[str] = field(default_factory=Counter)
    retried: Counter[str] = field(default_factory=Counter)
    failed: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    latencies_s: list[float] = field(default_factory=list)

    @property
    def p99_s(self) -> float:
        """99th percentile of the latencies, by the nearest rank; 0 if there are none."""
        ranked = sorted(self.latencies_s)
        return ranked[-(len(ranked) // 100) - 1] if ranked else 0.0


class Ledger:
    """All calls of one run; thread-safe."""

    def __init__(self) -> None:
        self.phases: list[Phase] = [Phase("before")]
        self._changed = threading.Condition()

    @property
    def phase(self) -> Phase:
        """The current phase."""
        return self.phases[-1]

    def begin(self, name: str) -> Phase:
        """Begins a phase; calls in flight still belong to the previous one."""
        self.phases.append(Phase(name))
        return self.phase

    def answered(
        self, phase: Phase, kind: str, latency_s: float, *, retried: int = 0, wrong: str = ""
    ) -> None:
        """Records a response; `wrong` describes its error."""
        with self._changed:
            phase.calls[kind] += 1
            phase.retried["client"] += retried
            phase.latencies_s.append(latency_s)
            if wrong:
                phase.wrong.append(f"{kind}: {wrong}")
            self._changed.notify_all()

    def failed(self, phase: Phase, kind: str, what: str) -> None:
        """Records the final failure of a call."""
        with self._changed:
            phase.calls[kind] += 1
            phase.failed.append(f"{kind}: {what}")
            self._changed.notify_all()

    def wait_for(self, phase: Phase, calls: int, timeout_s: float) -> bool:
        """Waits until every kind had so many calls in a phase. Returns False after the timeout."""
        with self._changed:
            return self._changed.wait_for(
                lambda: all(phase.calls[kind] >= calls for kind in KINDS), timeout_s
            )

    def broken(self) -> list[str]:
        """Returns every failed or wrongly answered call, one line each."""
        return [
            f"{phase.name}: {line}"
            for phase in self.phases
            for line in (*phase.failed, *phase.wrong)
        ]

    def table(self) -> str:
        """Renders a row for each phase."""
        rows = [
            f"{'phase':<18}{'calls':>7}"
            + "".join(f"{kind:>8}" for kind in KINDS)
            + f"{'envoy':>8}{'client':>8}{'wrong':>7}{'failed':>8}{'p99 ms':>9}"
        ]
        rows += [
            f"{phase.name:<18}{phase.calls.total():>7}"
            + "".join(f"{phase.calls[kind]:>8}" for kind in KINDS)
            + f"{phase.retried['envoy']:>8}{phase.retried['client']:>8}"
            + f"{len(phase.wrong):>7}{len(phase.failed):>8}{1000 * phase.p99_s:>9.0f}"
            for phase in self.phases
        ]
        return "\n".join(rows)
