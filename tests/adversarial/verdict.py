"""Effects of each attack on the server, and their limits."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tests.adversarial.neighbour import Seen
from tests.adversarial.victim import MIB

MAX_STALL_S = 0.1
MAX_ATTACKED_STALL_S = 1.0
"""Of callers of the model under attack, which wait behind the attack's own requests: eight of 6 MB
for one process of a handler."""
SPARE_BYTES = 100 * MIB
"""Memory allowed beyond the configured budget."""


@dataclass(frozen=True, slots=True)
class Row:
    """One attack, and its effects.

    Attributes:
        name: name of the attack.
        rounds: number of its rounds.
        seen: observations of the healthy client.
        grown_bytes: peak memory of the server, beyond its initial memory.
        major_faults: page faults of the server's processes that reread their files from disk.
        outcomes: responses to the attacker.
        wrong: wrong responses, to the attacker or to the healthy client.
        has_ended: True if the process has ended.
    """

    name: str
    rounds: int
    seen: Seen
    grown_bytes: int
    major_faults: int
    outcomes: Counter[str]
    wrong: tuple[str, ...]
    has_ended: bool

    def complaints(self, budget_bytes: int, max_stall_s: float = MAX_STALL_S) -> list[str]:
        """Describes each broken limit."""
        found = []
        if self.has_ended:
            found.append("the process ended")
        elif self.seen.failed:
            failed = self.seen.failed
            found.append(f"{len(failed)} requests beside it failed, the first: {failed[0]}")
        if self.wrong:
            found.append(f"{len(self.wrong)} wrong answers, the first: {self.wrong[0]}")
        if self.seen.worst_stall_s > max_stall_s:
            found.append(
                f"a stall of {self.seen.worst_stall_s * 1e3:.0f} ms; "
                f"{max_stall_s * 1e3:.0f} ms is the limit"
            )
        if self.seen.attacked_stall_s > MAX_ATTACKED_STALL_S:
            found.append(
                f"a stall of {self.seen.attacked_stall_s * 1e3:.0f} ms of the attacked model; "
                f"{MAX_ATTACKED_STALL_S * 1e3:.0f} ms is the limit"
            )
        if self.grown_bytes > budget_bytes + SPARE_BYTES:
            found.append(
                f"{self.grown_bytes / MIB:.0f} MiB of memory; "
                f"{(budget_bytes + SPARE_BYTES) / MIB:.0f} MiB is the limit"
            )
        return [f"{self.name}: {words}" for words in found]

    def line(self) -> str:
        """Formats the row for printing."""
        answers = " ".join(f"{name} x{count}" for name, count in self.outcomes.most_common(4))
        if self.seen.attacked_stall_s:
            answers += f"; attacked model {self.seen.attacked_stall_s * 1e3:.1f} ms"
        stalls = self.seen.stall_s
        return (
            f"{self.name[:44]:44} {self.rounds:6} {self.seen.worst_stall_s * 1e3:8.1f} "
            f"{max(stalls, key=stalls.__getitem__, default='-'):8} "
            f"{self.seen.machine_s * 1e3:8.1f} {self.grown_bytes / MIB:8.0f} "
            f"{self.major_faults:6} {len(self.seen.failed):6} {len(self.wrong):5}  {answers}"
        )


def combined(rows: Sequence[Row]) -> Row:
    """Combines measurements of one attack: the median stalls, the worst of everything else."""
    median = sorted(rows, key=lambda row: row.seen.worst_stall_s)[len(rows) // 2]
    return replace(
        median,
        seen=replace(
            median.seen,
            failed=[error for row in rows for error in row.seen.failed],
            attacked_stall_s=sorted(row.seen.attacked_stall_s for row in rows)[len(rows) // 2],
        ),
        grown_bytes=max(row.grown_bytes for row in rows),
        wrong=tuple(answer for row in rows for answer in row.wrong),
        has_ended=any(row.has_ended for row in rows),
    )


HEAD = (
    f"{'attack':44} {'rounds':>6} {'stall ms':>8} {'of':8} {'machine':>8} {'MiB':>8} "
    f"{'faults':>6} {'failed':>6} {'wrong':>5}  answers to the attacker"
)
