"""Runs a server from start to end: own session, the server's cores, every process ended."""

import os
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.peer import Launch, PeerError
from bench.peers.process_tree import end_tree
from bench.servers.pinning import SERVER_CORE, pinned_to

START_TIMEOUT_S = 180.0
POLL_S = 0.01
LOG = "server.log"
LONGEST_LINE = 200


@dataclass(frozen=True, slots=True)
class RunningServer:
    """A server that has returned a correct response."""

    pid: int
    launch: Launch
    cold_start_s: float
    """Seconds from the start of the process to the end of the first correct response."""


@contextmanager
def running(launch: Launch, why_no_answer: Callable[[], str]) -> Iterator[RunningServer]:
    """Starts a server, and ends it with all its processes at the end of the block.

    Args:
        launch: configuration of the start.
        why_no_answer: sends one request; returns "" for a correct response, raises for a wrong one.

    Raises:
        PeerError: the server ended or timed out (`START_TIMEOUT_S`); with its last log lines.
    """
    with ExitStack() as stack:
        # Short: sockets are created in it, and their paths are limited to 107 characters.
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="peer-"))
        log = stack.enter_context((launch.folder / LOG).open("wb"))
        started = time.perf_counter()
        process = subprocess.Popen(
            launch.argv,
            cwd=launch.folder,
            env=_environment(launch, home),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=pinned_to(SERVER_CORE),
        )
        stack.callback(process.wait)
        stack.callback(end_tree, process.pid)
        while why := why_no_answer():
            if process.poll() is not None:
                raise PeerError(f"it ended with {process.returncode}: {_last_lines(launch.folder)}")
            if time.perf_counter() - started > START_TIMEOUT_S:
                said = _last_lines(launch.folder)
                raise PeerError(f"no answer within {START_TIMEOUT_S:.0f} s: {why}; its log: {said}")
            time.sleep(POLL_S)
        yield RunningServer(process.pid, launch, time.perf_counter() - started)


def free_addresses(count: int) -> list[str]:
    """Returns so many host:port pairs of this machine without a listener."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]


def _environment(launch: Launch, home: str) -> dict[str, str]:
    """Returns a minimal environment: the caller's search path, one thread, no usage reports."""
    return {
        "PATH": os.environ["PATH"],
        "LANG": "C.UTF-8",
        "HOME": home,
        "TMPDIR": home,
        "TEMP": home,
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "DO_NOT_TRACK": "1",
        **launch.environment,
    }


def _last_lines(folder: Path) -> str:
    """Returns the last log lines that mention an error, or else the last lines."""
    lines = (folder / LOG).read_text(errors="replace").strip().splitlines()
    errors = [line for line in lines if "error" in line.lower()]
    said = " / ".join(line.strip()[:LONGEST_LINE] for line in (errors or lines)[-3:])
    return said or "it said nothing"
