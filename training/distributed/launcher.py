"""Runs a recipe in several processes of this machine: torchrun starts and restarts them.

    launcher ── torchrun ── python -m training.job, rank 0
                         └── python -m training.job, rank 1 …

In: a recipe, and arguments of `training.job`. Out: events, as if one process had written them, and
the last of them as a value or an error.

Rules: the first final event of any rank is that of the run, and ends all ranks; a rank that exits
without one is lost, and torchrun restarts all ranks from the last checkpoint, at most `RESTARTS`
times; all ranks exit with this process (`training.distributed.lifeline`).
"""

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import training
from training import errors
from training.distributed.lifeline import hold_lifeline
from training.distributed.signal_files import STOP
from training.errors import StoppedError, TrainingError
from training.recipe.file import resolved_yaml
from training.recipe.recipe import Recipe

RESTARTS = 3
"""Maximum number of restarts of lost ranks."""
GRACE_S = 20.0
"""Seconds for ranks to exit once the run is over."""
TERMINAL_EVENTS = ("published", "stopped", "failed")
_START = "import sys; sys.path.insert(0, sys.argv.pop(1)); "
"""Imports our package first, from any working directory, as the training service does."""
AGENT = f"{_START} from training.distributed.launcher import torchrun; torchrun(sys.argv[1:])"
RANK = f"{_START} from training.job import main; sys.exit(main(sys.argv[1:]))"


class Events(Protocol):
    """Receives events."""

    def write(self, kind: str, **fields: Any) -> None:
        """Receives one event."""


def run_together(
    recipe: Recipe,
    arguments: Sequence[str],
    events: Events,
    *,
    agent: str = AGENT,
    rank: str = RANK,
) -> None:
    """Runs the recipe, and returns once it has published.

    On SIGTERM the run writes a checkpoint and stops.

    Args:
        recipe: the run, with the number of processes.
        arguments: arguments of each process; see `training.job`.
        events: receives the events of the ranks.
        agent: Python source of the process that starts the ranks.
        rank: Python source of a rank.

    Raises:
        TrainingError: the error of the run; `StoppedError` if it was asked to stop.
        OSError: the run failed with one, or cannot be started.
    """
    with _Group(recipe, arguments, agent, rank) as group, _stopping_by(group):
        last, crash = None, ""
        for event in group.events():
            if event["kind"] == "crashed":
                crash = f": {event['text']}"
            elif event["kind"] in TERMINAL_EVENTS:
                last = event
                break
            else:
                events.write(**event)
        else:
            raise TrainingError(
                f"{recipe.train.processes} processes were lost {RESTARTS + 1} times{crash}; the "
                "last checkpoint is kept: resume to continue"
            )
        if last["kind"] == "published":
            group.let_end()
    if last["kind"] == "published":
        events.write(**last)
        return
    raise _error(last)


def train_together(
    recipe: Recipe,
    store: str,
    runs_dir: Path,
    *,
    resume: bool,
    private_key: Path | None,
    into: str = "",
) -> None:
    """Runs the recipe in several processes, as `training.pipeline.run` does in one.

    Args:
        recipe: the run.
        store: the model store's URL.
        runs_dir: the folder of all runs.
        resume: True to resume from the newest checkpoint.
        private_key: the key that signs the version.
        into: the store that gets the version; empty for `store`.

    Raises:
        TrainingError: see `run_together`.
    """
    with tempfile.TemporaryDirectory(prefix="flambeau-") as folder:
        path = Path(folder, "recipe.yaml")
        path.write_text(resolved_yaml(recipe), encoding="utf-8")
        arguments = ["--recipe", str(path), "--store", store, "--runs-dir", str(runs_dir)]
        arguments += ["--into", into] if into else []
        arguments += [] if resume else ["--anew"]
        arguments += [] if private_key is None else ["--sign-with", str(private_key)]
        run_together(recipe, arguments, _NullWatcher())


class _NullWatcher:
    """Discards events: the user sees the output of rank 0."""

    def write(self, kind: str, **fields: Any) -> None:
        """Ignores the event."""


class _Group:
    """torchrun and its ranks; they end with the block."""

    def __init__(self, recipe: Recipe, arguments: Sequence[str], agent: str, rank: str) -> None:
        self._stack = contextlib.ExitStack()
        folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="flambeau-"))
        self.folder = Path(folder)
        pipe = self.folder / "events"
        os.mkfifo(pipe)
        self._events = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
        self._stack.callback(os.close, self._events)
        # While this process holds it open, a missing rank does not close the pipe.
        self._held_open = os.open(pipe, os.O_WRONLY)
        root, processes = str(Path(training.__file__).parents[1]), recipe.train.processes
        python = (sys.executable, "-P", "-c")
        command = [
            *python, agent, root, "--standalone", "--nproc-per-node", str(processes),
            "--max-restarts", str(RESTARTS), "--no-python",
            *python, rank, root, *arguments,
            "--events", str(pipe), "--together", str(folder), "--lifeline",
        ]  # fmt: skip
        self._process = subprocess.Popen(  # noqa: S603
            command, stdin=subprocess.PIPE, start_new_session=True
        )

    def __enter__(self) -> "_Group":
        return self

    def __exit__(self, *exception: object) -> None:
        """Closes the lifeline; returns once all processes have closed the event pipe."""
        with self._stack:
            assert self._process.stdin is not None, "it is a pipe"
            self._process.stdin.close()
            os.close(self._held_open)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            deadline = time.monotonic() + GRACE_S
            with selectors.DefaultSelector() as selector:
                selector.register(self._events, selectors.EVENT_READ)
                while (left := deadline - time.monotonic()) > 0 and selector.select(left):
                    if not os.read(self._events, 2**16):
                        return

    def ask_to_stop(self, number: int = 0, frame: FrameType | None = None) -> None:
        """Asks the ranks to stop after their step, with a checkpoint; a signal handler."""
        (self.folder / STOP).touch()

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the events of the ranks, until torchrun exits."""
        rest = b""
        handle = os.pidfd_open(self._process.pid)
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(self._events, selectors.EVENT_READ)
                selector.register(handle, selectors.EVENT_READ)
                while True:
                    ready = {key.fd for key, _ in selector.select()}
                    if self._events in ready:
                        *lines, rest = (rest + os.read(self._events, 2**16)).split(b"\n")
                        yield from (json.loads(line) for line in lines)
                    elif ready:
                        return
        finally:
            os.close(handle)

    def let_end(self) -> None:
        """Waits for up to `GRACE_S` until all have exited."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_S)


@contextlib.contextmanager
def _stopping_by(group: _Group) -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, group.ask_to_stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _error(last: dict[str, Any]) -> Exception:
    """Returns the error of a rank's final event."""
    if last["kind"] == "stopped":
        return StoppedError(last["text"])
    kind = getattr(errors, last["error"], None)
    if isinstance(kind, type) and issubclass(kind, TrainingError):
        return kind(last["text"])
    return TrainingError(last["text"])


def torchrun(arguments: Sequence[str]) -> None:
    """Runs `python -m torch.distributed.run`, and exits with the parent process.

    Args:
        arguments: arguments of torchrun.
    """
    hold_lifeline()
    # With a shared store, restarted ranks find the entries of their predecessors, and hang.
    os.environ.setdefault("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")  # all ranks are on this machine
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # hides torch's slowness warnings
    processes = int(arguments[arguments.index("--nproc-per-node") + 1])
    cores = len(os.sched_getaffinity(0))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores // processes, 1)))
    from torch.distributed.run import main

    main(list(arguments))
