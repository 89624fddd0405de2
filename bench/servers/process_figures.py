"""Memory and descriptors of each process of a server, and steal time, from /proc; see proc(5).

`bench/peers/process_tree.py` has the figures of a whole tree.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.process_tree import tree_of

EDGE, RUNS_MODELS, SUPERVISOR, ONE = "edge", "model process", "supervisor", "server"
MODULES = {
    "services.standalone.edge_process": EDGE,
    "services.standalone.model_process": RUNS_MODELS,
}
_MEBIBYTES = 1024
"""KiB of /proc in one."""


@dataclass(frozen=True, slots=True)
class ProcessFigures:
    """One process at one moment."""

    name: str
    """Its kind; of an edge with its number."""
    pid: int
    memory_mib: float
    """Its memory in RAM (RSS), without what it shares with other processes of the server."""
    shared_mib: float
    descriptors: int
    links: int
    """Mappings of memory that an edge and the model process share."""


def process_name(command: Sequence[str], *, is_root: bool, is_alone: bool) -> str:
    """Returns the name of a process of a server.

    Args:
        command: its words.
        is_root: True of the process that was started as the server.
        is_alone: True if that serves itself.
    """
    for module, kind in MODULES.items():
        if module in command:
            slot = command[command.index(module) + 3] if kind == EDGE else ""
            return f"{kind} {slot}".strip()
    if is_root:
        return ONE if is_alone else SUPERVISOR
    return "other"


def processes_of(root: int) -> list[ProcessFigures]:
    """Returns the processes of a server, by their names."""
    commands = {}
    for state in tree_of(root):
        try:
            commands[state.pid] = Path(f"/proc/{state.pid}/cmdline").read_text().split("\0")
        except (FileNotFoundError, ProcessLookupError):
            continue  # It ended meanwhile.
    is_alone = not any(module in words for words in commands.values() for module in MODULES)
    found = []
    for pid, words in commands.items():
        name = process_name(words, is_root=pid == root, is_alone=is_alone)
        try:
            found.append(_figures(name, pid))
        except (FileNotFoundError, ProcessLookupError, KeyError):
            continue  # It ended meanwhile: a zombie has no memory.
    return sorted(found, key=lambda one: (one.name, one.pid))


def _figures(name: str, pid: int) -> ProcessFigures:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kibibytes = {words[0]: int(words[1]) for line in lines if (words := line.split())[-1] == "kB"}
    shared = kibibytes["RssShmem:"]
    return ProcessFigures(
        name=name,
        pid=pid,
        memory_mib=(kibibytes["VmRSS:"] - shared) / _MEBIBYTES,
        shared_mib=shared / _MEBIBYTES,
        descriptors=len(os.listdir(f"/proc/{pid}/fd")),
        links=Path(f"/proc/{pid}/maps").read_text().count("/memfd:flambeau-link"),
    )


def resident_mebibytes(pid: int) -> float:
    """Returns its current memory in RAM, including pages shared with other processes (RSS)."""
    one = _figures("", pid)
    return one.memory_mib + one.shared_mib


def stolen_seconds() -> float:
    """Returns the steal time of all cores since boot: the host ran others while they were due."""
    return int(Path("/proc/stat").read_text().split()[8]) / os.sysconf("SC_CLK_TCK")
