"""Calls a function in a process of its own, with limits: what it does to itself harms nobody else.

In: a function that can be imported, and arguments that can be pickled. Out: what it returns, or an
`IsolationError` that says what became of it: an exception of its own, out of time, out of memory,
or dead.

Rules kept here: processes are forked from a server that has imported torch and run nothing, because
a process that has used torch's threads cannot be forked; whatever a function starts ends with it.
"""

import contextlib
import multiprocessing
import os
import resource
import signal
import tempfile
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from training.errors import IsolationError
from training.root_cause import root_cause

Result = TypeVar("Result")

PRELOADED = ("torch", "torch._dynamo", "onnx", "onnxscript", "training.model")
"""What nearly every call needs, and no thread that a fork could break comes with."""
KIB, GIB = 2**10, 2**30
LAST_WORDS_BYTES = 4096


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
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    ours, theirs = context.Pipe()
    with tempfile.NamedTemporaryFile(prefix="flambeau-", suffix=".log") as log:
        process = context.Process(
            target=_answer, args=(theirs, log.name, memory_limit_bytes, call, arguments)
        )
        process.start()
        theirs.close()
        try:
            if not ours.poll(time_limit_s):
                raise IsolationError(f"it took longer than {time_limit_s:g} s")
            found, failure = ours.recv()
        except EOFError:
            process.join()
            raise IsolationError(_obituary(process.exitcode, Path(log.name))) from None
        finally:
            ours.close()
            _end(process)
    if failure is not None:
        raise IsolationError(failure)
    return found  # type: ignore[no-any-return]


def _answer(
    connection: Connection,
    log: str,
    memory_limit_bytes: int,
    call: Callable[..., Any],
    arguments: tuple[Any, ...],
) -> None:
    """The other process: sends what the call gave, or why it gave nothing."""
    os.setsid()  # whatever it starts is ended with it
    descriptor = os.open(log, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    limit = _data_bytes() + memory_limit_bytes
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    if most != resource.RLIM_INFINITY:  # a job of the training service has a limit already
        limit = min(limit, most)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    answer: tuple[Any, str | None]
    try:
        answer = call(*arguments), None
    except MemoryError:
        answer = None, f"it needed more than {memory_limit_bytes / GIB:.1f} GiB of memory"
    except Exception as error:  # exporters and runtimes raise anything
        answer = None, _explain(error, memory_limit_bytes)
    connection.send(answer)


def _explain(error: Exception, memory_limit_bytes: int) -> str:
    text = root_cause(error)
    if "allocate memory" in text or "bad_alloc" in text or "bad allocation" in text:
        return f"it needed more than {memory_limit_bytes / GIB:.1f} GiB of memory ({text})"
    return text


def _data_bytes() -> int:
    """What `RLIMIT_DATA` counts of this process now."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmData:"):
            return int(line.split()[1]) * KIB
    return 0


def _obituary(exit_code: int | None, log: Path) -> str:
    """How a process ended that sent nothing."""
    with log.open("rb") as file:
        file.seek(max(log.stat().st_size - LAST_WORDS_BYTES, 0))
        lines = file.read().decode(errors="replace").strip().splitlines()
    words = f": {lines[-1][:200]}" if lines else ""
    if exit_code is not None and exit_code < 0:
        return f"its process was ended by {signal.Signals(-exit_code).name}{words}"
    return f"its process ended with status {exit_code}{words}"


def _end(process: Any) -> None:
    """Ends the process with all it has started."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.join()
