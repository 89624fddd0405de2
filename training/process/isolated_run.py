"""Calls a function in a process of its own, with limits: what it does to itself harms nobody else.

In: a function that can be imported, and arguments that can be pickled. Out: what it returns, or an
`IsolationError` that says what became of it: an exception of its own, out of time, out of memory,
or dead.

Rules kept here: processes are forked from a server that has imported torch and run nothing, because
a process that has used torch's threads cannot be forked; whatever a function starts ends with it.
Ctrl-C is for the process that calls, which ends the other one: that one does not hear of it, and is
silent if its caller has gone.
"""

import contextlib
import functools
import multiprocessing
import os
import signal
import tempfile
import threading
from collections.abc import Callable, Iterator
from multiprocessing import forkserver, resource_tracker
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from model_store.host.memory_limit import explained, limit_memory
from training.errors import IsolationError
from training.process.root_cause import root_cause

Result = TypeVar("Result")

PRELOADED = ("torch", "torch._dynamo", "onnx", "onnxscript", "training.network.model")
"""What nearly every call needs, and no thread that a fork could break comes with."""
LAST_WORDS_BYTES = 4096
SAFE_PATH = "PYTHONSAFEPATH"
"""The variable that stands for the interpreter's option `-P`."""
LEAVING_S = 2.0
"""In which a process that has answered gives back what outlives it, such as named semaphores."""


def run_isolated(
    call: Callable[..., Result], *arguments: Any, time_limit_s: float, memory_limit_bytes: int
) -> Result:
    """Calls the function, and waits for what it returns.

    Args:
        call: of a module; what it raises must be made of text.
        arguments: its arguments.
        time_limit_s: seconds it may take.
        memory_limit_bytes: memory it may ask for, beyond what it begins with.

    Raises:
        IsolationError: it did not return; the message says why, in one line.
    """
    context = process_context()
    ours, theirs = context.Pipe()
    with tempfile.NamedTemporaryFile(prefix="flambeau-", suffix=".log") as log:
        process = context.Process(
            target=_answer, args=(theirs, log.name, memory_limit_bytes, call, arguments)
        )
        try:
            start_process(process)
            theirs.close()
            if not ours.poll(time_limit_s):
                raise IsolationError(f"it took longer than {time_limit_s:g} s")
            found, failure = ours.recv()
            process.join(LEAVING_S)
        except EOFError:
            process.join()
            raise IsolationError(describe_exit(process.exitcode, Path(log.name))) from None
        finally:
            ours.close()
            end_process(process)
    if failure is not None:
        raise IsolationError(failure)
    return found  # type: ignore[no-any-return]


def process_context() -> "multiprocessing.context.ForkServerContext":
    """Starts processes as this module's head says."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    resource_tracker.ensure_running()  # which the server would start, and unblock signals
    with _safe_path(), _blocked_interrupt():
        forkserver.ensure_running()
    _await_server(context)
    return context


@functools.cache
def _await_server(context: "multiprocessing.context.ForkServerContext") -> None:
    """Waits until the server has imported everything and forks at once; Ctrl-C ends the wait.

    What a process begins with is written when the server forks it, and half of it makes a traceback
    there: that wait cannot be interrupted. This first one is given nothing that could be halved.
    """
    first = context.Process(target=os.getpid)
    first.start()
    first.join()


def start_process(process: "multiprocessing.context.ForkServerProcess") -> None:
    """Starts a process of `process_context`; a Ctrl-C meanwhile is raised when it is started."""
    if threading.current_thread() is not threading.main_thread():  # where no Ctrl-C is raised
        process.start()
        return
    asked: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _: asked.append(number))
    try:
        process.start()
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        signal.raise_signal(signal.SIGINT)


@contextlib.contextmanager
def _blocked_interrupt() -> Iterator[None]:
    """Processes that are started in the block never hear of Ctrl-C; this one hears behind it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """A Python that is started in the block looks for no module in the working directory."""
    before = os.environ.get(SAFE_PATH)
    os.environ[SAFE_PATH] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ[SAFE_PATH]
        else:
            os.environ[SAFE_PATH] = before


def _answer(
    connection: Connection,
    log: str,
    memory_limit_bytes: int,
    call: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    """The other process: sends what the call gave, or why it gave nothing."""
    enter_isolation(log, memory_limit_bytes)
    answer: tuple[Any, str | None]
    try:
        answer = call(*arguments), None
    except Exception as error:  # exporters and runtimes raise anything
        answer = None, explained(error, root_cause(error), memory_limit_bytes)
    connection.send(answer)


def enter_isolation(log: str, memory_limit_bytes: int) -> None:
    """Makes a new process one that is limited and can be ended with all it has started.

    Args:
        log: a file that is there; gets both outputs.
        memory_limit_bytes: memory it may ask for, beyond what it begins with.
    """
    os.setsid()  # whatever it starts is ended with it
    try:
        descriptor = os.open(log, os.O_WRONLY)
    except FileNotFoundError:  # the caller has gone with its file
        os._exit(1)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    limit_memory(memory_limit_bytes)


def describe_exit(exit_code: int | None, log: Path) -> str:
    """How a process ended that sent nothing."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - LAST_WORDS_BYTES, 0))
        lines = file.read().decode(errors="replace").strip().splitlines()
    words = f": {lines[-1][:200]}" if lines else ""
    if exit_code is not None and exit_code < 0:
        return f"its process was ended by {signal.Signals(-exit_code).name}{words}"
    return f"its process ended with status {exit_code}{words}"


def end_process(process: Any) -> None:
    """Ends the process with all it has started."""
    if process.pid is None:  # it was never started
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
