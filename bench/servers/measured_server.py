"""Our server with default settings, on the benchmark's cores; ends with the benchmark in all cases.

Server logs go to `var/bench/server.log`, truncated for every run of a benchmark.
"""

import contextlib
import ctypes
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

from bench.peers.servers.flambeau_peer import ROOT
from bench.servers.pinning import SERVER_CORE, pinned_to
from flambeau.server_process import ServerProcess, server_process

LOG = ROOT / "var" / "bench" / "server.log"
PR_SET_PDEATHSIG = 1
"""See prctl(2): the signal a process gets when its parent dies."""


@contextlib.contextmanager
def measured_server(
    store: str,
    models: Sequence[str],
    artifact: str = "",
    *settings: str,
    module: str = "flambeau",
) -> Iterator[ServerProcess]:
    """Runs `flambeau serve` until the block ends.

    Args:
        store: URL of the model store.
        models: names of the served models.
        artifact: artifact of each model; empty for the fastest.
        settings: non-default settings, `NAME=VALUE`.
        module: the command line module, or its replacement.

    Raises:
        ServerProcessError: the server did not start, or did not exit cleanly.
    """
    options = ["--store", store, *(part for model in models for part in ("--model", model))]
    options += ["--artifact", artifact] if artifact else []
    # The manifest decides which artifact is measured, not a measurement of this start.
    settings = ("choose_artifact_budget_s=0", *settings)
    options += [part for setting in settings for part in ("--set", setting)]
    with server_process(options, before_exec(), module) as server:
        yield server


def end_with_exception() -> None:
    """Makes SIGTERM end this process as Ctrl-C does, so that no child outlives it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@functools.cache
def _log() -> int:
    LOG.parent.mkdir(parents=True, exist_ok=True)
    return os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)


def server_child() -> Callable[[], None]:
    """Returns a `preexec_fn` that ends a child with its parent, and gives it the server's cores."""
    pin, libc = pinned_to(SERVER_CORE), ctypes.CDLL(None)

    def prepare() -> None:
        pin()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return prepare


def before_exec() -> Callable[[], None]:
    """Returns the same, which also keeps Ctrl-C from the child and redirects its log to ours."""
    pin, log = server_child(), _log()

    def prepare() -> None:
        pin()
        os.dup2(log, 2)
        os.setsid()

    return prepare
