"""A server with all its processes: CPU time, memory, and a shutdown that leaves none behind.

Figures come from /proc, see proc(5). A process belongs to the tree of the started one if it is
its descendant or belongs to its session: servers start workers that start workers, and some of
these lose their parent.
"""

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class ProcessState:
    """Fields of /proc/PID/stat; times in clock ticks."""

    pid: int
    parent: int
    session: int
    ticks: int
    """User and system time of the process and of its ended children."""
    started: int
    """Clock ticks since boot; with the pid, identifies a process even if the pid is reused."""
    ended: bool
    """True for a zombie: its parent has not reaped it yet."""


def parse_stat(text: str) -> ProcessState:
    """Parses one line of /proc/PID/stat; the name in parentheses may hold any characters."""
    pid, _, rest = text.partition(" (")
    fields = rest.rpartition(")")[2].split()
    return ProcessState(
        pid=int(pid),
        parent=int(fields[1]),
        session=int(fields[3]),
        ticks=sum(int(field) for field in fields[11:15]),
        started=int(fields[19]),
        ended=fields[0] in "ZX",
    )


def tree_of(root: int) -> list[ProcessState]:
    """Returns the process, if it is alive, its descendants, and the members of its session."""
    states = {state.pid: state for state in _all_processes()}
    members = {pid for pid, state in states.items() if root in (pid, state.session)}
    while True:
        found = {pid for pid, state in states.items() if state.parent in members} - members
        if not found:
            return [states[pid] for pid in members]
        members |= found


def cpu_seconds(root: int) -> float:
    """Returns user and system time of the whole tree so far, ended children included."""
    return sum(map(ticks_s, tree_of(root)))


def ticks_s(state: ProcessState) -> float:
    """Returns user and system time of one process in seconds."""
    return state.ticks / os.sysconf("SC_CLK_TCK")


def resident_mebibytes(root: int) -> float:
    """Returns the tree's memory in RAM: PSS, so that a page shared by n processes counts once."""
    total = 0
    for state in tree_of(root):
        try:
            rollup = Path(f"/proc/{state.pid}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # It ended meanwhile.
        pss = [line.split()[1] for line in rollup.splitlines() if line.startswith("Pss:")]
        total += int(pss[0]) if pss else 0
    return total / 1024


def end_tree(root: int, patience_s: float = 10.0) -> None:
    """Terminates the process, then kills the rest of its tree; returns after all have ended."""
    members = {(state.pid, state.started) for state in tree_of(root)}
    if any(pid == root for pid, _ in members):
        _signal(root, signal.SIGTERM)
    _wait_for_end(root, members, patience_s)
    while left := _alive(root, members):
        for pid in left:
            _signal(pid, signal.SIGKILL)
        _wait_for_end(root, members, 1.0)


def _all_processes() -> Iterator[ProcessState]:
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                yield parse_stat((folder / "stat").read_text())
            except (FileNotFoundError, ProcessLookupError):
                continue  # It ended meanwhile.


def _alive(root: int, members: set[tuple[int, int]]) -> list[int]:
    """Returns the pids of members, including processes that joined since, that still run."""
    now = {(s.pid, s.started): s for s in _all_processes()}
    members |= {(s.pid, s.started) for s in tree_of(root)}
    return [pid for pid, started in members if (s := now.get((pid, started))) and not s.ended]


def _wait_for_end(root: int, members: set[tuple[int, int]], patience_s: float) -> None:
    until = time.monotonic() + patience_s
    while _alive(root, members) and time.monotonic() < until:
        time.sleep(POLL_S)


def _signal(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return  # It ended meanwhile.
