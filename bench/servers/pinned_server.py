"""Our server on its own core, with its default settings, ended whatever happens to the benchmark.

What servers log goes to `var/bench/server.log`, anew for every run of a benchmark.
"""

import contextlib
import ctypes
import functools
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence

from bench.peers.flambeau_peer import ROOT
from bench.servers.pinning import SERVER_CORE, pinned_to
from flambeau.server_process import ServerProcess, server_process

LOG = ROOT / "var" / "bench" / "server.log"
PR_SET_PDEATHSIG = 1
"""See prctl(2): the signal a process gets when its parent dies."""


@contextlib.contextmanager
def pinned_server(
    store: str,
    models: Sequence[str],
    artifact: str = "",
    *settings: str,
    module: str = "flambeau",
) -> Iterator[ServerProcess]:
    """Runs `flambeau serve` on the server's core until the block ends.

    Args:
        store: URL of the model store.
        models: which to serve.
        artifact: which to serve of each; empty for the fastest.
        settings: other than the defaults, `NAME=VALUE`.
        module: the command line, or what stands in for it.

    Raises:
        ServerProcessError: it did not start, or did not end well.
    """
    options = ["--store", store, *(part for model in models for part in ("--model", model))]
    options += ["--artifact", artifact] if artifact else []
    # Which artifact is measured is what the manifest says, not what this start found out.
    settings = ("choose_artifact_budget_s=0", *settings)
    options += [part for setting in settings for part in ("--set", setting)]
    with server_process(options, before_exec(), module) as server:
        yield server


def end_with_exception() -> None:
    """Lets SIGTERM end this process as Ctrl-C does, so that no child outlives it."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@functools.cache
def _log() -> int:
    LOG.parent.mkdir(parents=True, exist_ok=True)
    return os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, 0o644)


def pinned_child(*, pinned: bool = True) -> Callable[[], None]:
    """A `preexec_fn` that pins a child to the server's core, perhaps, and ties it to our life."""
    pin, libc = pinned_to(SERVER_CORE), ctypes.CDLL(None)

    def prepare() -> None:
        if pinned:
            pin()
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)

    return prepare


def before_exec(*, pinned: bool = True) -> Callable[[], None]:
    """The same, keeps Ctrl-C from the child, which is ours to act on, and gives it our log.

    Args:
        pinned: whether the child gets a core of its own.
    """
    pin, log = pinned_child(pinned=pinned), _log()

    def prepare() -> None:
        pin()
        os.dup2(log, 2)
        os.setsid()

    return prepare
