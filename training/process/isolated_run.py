"""Calls a function in a separate process, with limits: a crash does not affect the caller.

In: a function that can be imported, and arguments that can be pickled. Out: its return value, or an
`IsolationError` with the cause: an exception of its own, a timeout, out of memory, or the death of
the process.

Rules: processes are forked from a server that has imported torch and run nothing, because a process
that has used torch's threads cannot be forked; child processes of the function end with it. Ctrl-C
is for the calling process, which ends the other one: that one does not receive it, and prints
nothing if its caller is gone.
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
from typing import TYPE_CHECKING, Any, TypeVar

from model_store.host.memory_limit import GIB, explained, limit_memory
from training.errors import IsolationError
from training.process.forked_server import ServerFork
from training.process.root_cause import root_cause

if TYPE_CHECKING:
    from training.recipe.recipe import ExportLimits

Result = TypeVar("Result")

PRELOADED = "training.process.preloaded"
LAST_WORDS_BYTES = 4096
SAFE_PATH = "PYTHONSAFEPATH"
"""The variable that is equivalent to the interpreter's option `-P`."""
LONGEST_SOCKET_FOLDER = 70
"""Bytes of a folder's path, below which multiprocessing's `pymp-…/listener-…` fits."""
LEAVING_S = 2.0
"""Seconds for a process to release resources after its answer, such as named semaphores."""
_forks: list[ServerFork] = []
"""The fork that becomes the server, if one was made."""


def run_isolated(
    call: Callable[..., Result], *arguments: Any, time_limit_s: float, memory_limit_bytes: int
) -> Result:
    """Calls the function, and waits for its return value.

    Args:
        call: a function of a module; its exceptions must contain text only.
        arguments: its arguments.
        time_limit_s: seconds that it may take.
        memory_limit_bytes: memory that it may allocate, beyond its initial memory.

    Raises:
        IsolationError: it did not return; the message has the cause, in one line.
    """
    context = process_context()
    ours, theirs = context.Pipe()
    with tempfile.NamedTemporaryFile(prefix="flambeau-", suffix=".log") as log:
        process = context.Process(
            target=_answer, args=(theirs, log.name, memory_limit_bytes, call, arguments)
        )
        try:
            try:
                start_process(process)
            except (OSError, EOFError) as error:  # its exit code is known to the server alone
                raise IsolationError(
                    f"its process ended while it started ({error or 'no answer'}): it crashed, or "
                    "memory was short; close other programs, and try again"
                ) from error
            theirs.close()
            if not ours.poll(time_limit_s):
                raise IsolationError(f"it took longer than {time_limit_s:g} s")
            found, failure = ours.recv()
            process.join(LEAVING_S)
        except (EOFError, ConnectionResetError):
            process.join()
            raise IsolationError(describe_exit(process.exitcode, Path(log.name))) from None
        finally:
            ours.close()
            end_process(process)
    if failure is not None:
        raise IsolationError(failure)
    return found  # type: ignore[no-any-return]


def run_limited(
    call: Callable[..., Result],
    *arguments: Any,
    limits: "ExportLimits",
    time_limit_s: float | None = None,
) -> Result:
    """Calls `run_isolated` with the limits of one artifact.

    Args:
        call: as of `run_isolated`.
        arguments: its arguments.
        limits: time and memory.
        time_limit_s: seconds in place of those of the limits; None for these.

    Raises:
        IsolationError: as from `run_isolated`.
    """
    return run_isolated(
        call,
        *arguments,
        time_limit_s=limits.time_s if time_limit_s is None else time_limit_s,
        memory_limit_bytes=int(limits.memory_gib * GIB),
    )


def process_context() -> "multiprocessing.context.ForkServerContext":
    """Returns a context that starts processes by this module's rules, at once."""
    context = start_process_server()
    _await_server(context)
    return context


def start_process_server() -> "multiprocessing.context.ForkServerContext":
    """Starts the server of processes if there is none, and does not wait for its imports."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOADED])
    resource_tracker.ensure_running()  # the server would start it, and unblock signals
    with _safe_path(), _blocked_interrupt(), _short_paths(), contextlib.ExitStack() as stack:
        for fork in _forks:
            stack.enter_context(fork.used())
        forkserver.ensure_running()
    return context


def fork_process_server() -> None:
    """Forks the later server of processes from this process, which must have run nothing in torch.

    The server then need not import what this process has imported.
    """
    with _blocked_interrupt():
        _forks.append(ServerFork())


@contextlib.contextmanager
def _short_paths() -> Iterator[None]:
    """Has a socket made in the block lie in /tmp, if its path would be too long for the system.

    A socket's path has at most 108 bytes; a folder for temporary files may be longer by itself.
    """
    before = tempfile.tempdir
    if len(os.fsencode(tempfile.gettempdir())) > LONGEST_SOCKET_FOLDER:
        tempfile.tempdir = "/tmp"  # noqa: S108 - the folder in it is this process' alone
    try:
        yield
    finally:
        tempfile.tempdir = before


@functools.cache
def _await_server(context: "multiprocessing.context.ForkServerContext") -> None:
    """Waits until the server has imported all modules and forks at once; Ctrl-C ends the wait.

    The initial data of a process is written when the server forks it, and a partial write makes a
    traceback there: that write cannot be interrupted. This first process gets no data.
    """
    first = context.Process(target=os.getpid)
    first.start()
    first.join()


def start_process(process: "multiprocessing.context.ForkServerProcess") -> None:
    """Starts a process of `process_context`; raises a Ctrl-C only after the start."""
    if threading.current_thread() is not threading.main_thread():  # gets no Ctrl-C
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
    """Blocks Ctrl-C for processes started in the block; this process gets it afterwards."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextlib.contextmanager
def _safe_path() -> Iterator[None]:
    """Keeps a Python started in the block from importing out of the working directory."""
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
    """Runs in the other process: sends the return value, or the cause of the failure."""
    enter_isolation(log, memory_limit_bytes)
    threading.Thread(target=_end_with_caller, args=(connection,), daemon=True).start()
    answer: tuple[Any, str | None]
    try:
        answer = call(*arguments), None
    except Exception as error:  # exporters and runtimes raise any exception
        answer = None, explained(error, root_cause(error), memory_limit_bytes)
    connection.send(answer)


def _end_with_caller(connection: Connection) -> None:
    """Ends this process and its children when the caller has died, which sends nothing here."""
    with contextlib.suppress(OSError, EOFError):
        connection.poll(None)
    os.killpg(0, signal.SIGKILL)


def enter_isolation(log: str, memory_limit_bytes: int) -> None:
    """Sets a new process's limits, and a session so that it can be ended with its children.

    Args:
        log: an existing file; gets both output streams.
        memory_limit_bytes: memory that it may allocate, beyond its initial memory.
    """
    os.setsid()  # its children are ended with it
    try:
        descriptor = os.open(log, os.O_WRONLY)
    except FileNotFoundError:  # the caller is gone, and so is its file
        os._exit(1)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    limit_memory(memory_limit_bytes)


def describe_exit(exit_code: int | None, log: Path) -> str:
    """Describes the exit of a process that sent nothing."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - LAST_WORDS_BYTES, 0))
        lines = file.read().decode(errors="replace").strip().splitlines()
    words = f": {lines[-1][:200]}" if lines else ""
    if exit_code is not None and exit_code < 0:
        return f"its process was ended by {signal.Signals(-exit_code).name}{words}"
    return f"its process ended with status {exit_code}{words}"


def end_process(process: Any) -> None:
    """Ends the process with all its children."""
    if process.pid is None:  # it was never started
        return
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
