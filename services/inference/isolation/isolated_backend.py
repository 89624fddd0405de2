"""A backend whose model runs in a worker process, which may crash without affecting the server.

In: an artifact, as `open_backend` takes it. Out: a `Backend`; both processes share the memory of
inputs and outputs, and a small message in each direction starts and ends a run.

Rules:
- when the worker process ends, its current run and all later ones raise `WorkerProcessDiedError`:
  the owner of this backend closes it and opens another;
- nothing is pickled; this isolates faults, it is no sandbox against a hostile model;
- the process is spawned (`fork` of a process with threads may deadlock) and inherits standard
  error, which runtimes and crash reports write to.
"""

import contextlib
import functools
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import numpy as np

from flambeau.protocol.tensors import Array
from model_store.host.own_process import own_command
from services.errors import (
    BackendError,
    DeviceError,
    InputRefusedError,
    WorkerProcessDiedError,
)
from services.inference.backends.backend import AwaitedRuns, Backend
from services.inference.backends.files_folder import FilesFolder
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.isolation.channel import Channel, ChannelClosedError, Message
from services.inference.isolation.forwarded_output import ForwardedOutput
from services.inference.isolation.sent_artifact import packed, send_opening
from services.inference.isolation.shared_tensors import TensorEntry, TensorReader, TensorWriter
from services.inference.isolation.worker_process import OUT_OF_MEMORY
from services.low_priority_thread import run_at_low_priority
from services.resident_memory import resident_bytes

_WORKER = "services.inference.isolation.worker_process"

FEW_OUTPUTS = 8
"""Outputs that the event loop copies, if they are small; a thread copies more."""
OPEN_TIMEOUT_S = 300.0
"""Default timeout of opening an artifact, after which its process is killed."""

END_TIMEOUT_S = 2.0
"""Timeout of a process to end by itself."""
KILLED_TIMEOUT_S = 60.0
"""Timeout of a process to end after it was killed: one of the lowest priority took 10 s on cores
that other processes kept busy."""


class IsolatedBackend(Backend):
    """One artifact, open in one worker process; created by `open_isolated_backend`.

    One thread at a time may call `buffer`, `run` and `close`; any thread may call `kill`.

    Args:
        name: name of the artifact, for messages.
        low_priority: True for a process of permanently low priority.
        module: module of the worker process.
        folder: folder that the process reads; it is removed with this backend.
    """

    owns_outputs = True

    def __init__(
        self,
        name: str,
        *,
        low_priority: bool = False,
        module: str = _WORKER,
        folder: FilesFolder | None = None,
    ) -> None:
        self.platform = ""
        self._name, self._folder = name, folder
        start = functools.partial(_start, module)
        # A process inherits the priority of the thread that starts it, from its first import on.
        started = run_at_low_priority(start) if low_priority else start()
        self._process, self._channel, self._output = started
        self._inputs, self._outputs = TensorWriter(self._channel), TensorReader()
        self._killed = self._closed = False
        self._arrived: Callable[[], Message] | None = None
        """Returns, or raises, what `outputs_at_hand` has received and left to `finish`."""

    def awaited(self) -> AwaitedRuns | None:
        """Returns its runs, unless they give answers in parts; see `Backend.awaited`."""
        return None if self.gives_parts else self

    @property
    def pid(self) -> int:
        """The worker's process id."""
        return self._process.pid

    def open(
        self, how: Mapping[str, Any], files: Sequence[bytes], timeout_s: float = OPEN_TIMEOUT_S
    ) -> None:
        """Sends the artifact and the options to open it with; see `open_isolated_backend`."""
        try:
            self._channel.wait_at_most(timeout_s)
            send_opening(self._channel, how, files)
            self.platform, self.gives_parts = self._receive("opened")[1]
            self._channel.wait_at_most(None)
        except TimeoutError:
            self.kill()
            raise DeviceError(
                f"artifact '{self._name}' did not open within {timeout_s:g} s (open_time_limit_s); "
                "raise the limit, or let it load less"
            ) from None
        except ChannelClosedError:
            raise self._death() from None

    def buffer(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Returns shared memory for one input; see `Backend.buffer`."""
        try:
            return self._inputs.place(name, shape, dtype)
        except ChannelClosedError:
            raise self._death() from None

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch in the worker process; see `Backend.run`.

        Raises:
            BackendError: the model raised; has its error message, and the process continues.
            InputRefusedError: the Python step rejected these inputs.
            DeviceError: the worker process reported a failure of the device.
            WorkerProcessDiedError: the process ended, before or during this run.
        """
        self._begin("run", inputs)
        return self._copied(self._receive("outputs")[1])

    def fileno(self) -> int:
        """Returns the descriptor of the channel; see `AwaitedRuns`."""
        return self._channel.fileno()

    def place(self, name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array:
        """Returns shared memory for one input; see `AwaitedRuns.place`."""
        return self._inputs.place(name, shape, dtype, flags=socket.MSG_DONTWAIT)

    def begin(self, inputs: Mapping[str, Array]) -> None:
        """Begins a run; see `AwaitedRuns.begin`."""
        now = socket.MSG_DONTWAIT
        entries = [self._inputs.write(name, one, flags=now) for name, one in inputs.items()]
        self._channel.send("run", entries, flags=now)

    def outputs_at_hand(self) -> dict[str, Array] | None:
        """Returns the outputs of the run; see `AwaitedRuns.outputs_at_hand`."""
        try:
            kind, entries, descriptor = message = self._channel.receive(flags=socket.MSG_DONTWAIT)
        except BlockingIOError:
            return None
        except Exception as error:
            self._arrived = functools.partial(_raise, error)
            return None
        self._arrived = lambda: message
        with contextlib.suppress(Exception):  # it is raised again for `finish`
            is_usual = kind == "outputs" and descriptor is None and len(entries) <= FEW_OUTPUTS
            if is_usual and all(map(self._outputs.is_small, entries)):
                found = {entry[0]: self._outputs.view(entry).copy() for entry in entries}
                self._arrived = None
                return found
        return None

    def finish(self) -> dict[str, Array]:
        """Waits for the run that was begun; see `AwaitedRuns.finish`."""
        return self._copied(self._receive("outputs")[1])

    def _next_message(self) -> Message:
        arrived, self._arrived = self._arrived, None
        return self._channel.receive() if arrived is None else arrived()

    def run_in_parts(self, inputs: Mapping[str, Array]) -> Generator[dict[str, Array], None, None]:
        """Runs one batch in the worker process, which waits behind each part; see `Backend`.

        Raises:
            BackendError, DeviceError: as `run`.
        """
        self._begin("run_in_parts", inputs)
        while True:
            kind, entries = self._receive("part", "end")
            if kind == "end":
                return
            goes_on = False
            try:
                yield self._copied(entries)
                goes_on = True
            finally:
                self._send("next", goes_on)
                if not goes_on:
                    self._receive("end")

    def _begin(self, how: str, inputs: Mapping[str, Array]) -> None:
        """Has the worker process begin a batch."""
        try:
            entries = [self._inputs.write(name, array) for name, array in inputs.items()]
        except ChannelClosedError:
            raise self._death() from None
        self._send(how, entries)

    def _copied(self, entries: Sequence[TensorEntry]) -> dict[str, Array]:
        """Copies outputs out of the shared memory, which the next ones overwrite.

        Raises:
            WorkerProcessDiedError: the process does not describe its outputs.
        """
        try:
            return {entry[0]: self._outputs.view(entry).copy() for entry in entries}
        except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
            raise self._broken(error) from error

    def _send(self, kind: str, content: Any) -> None:
        try:
            self._channel.send(kind, content)
        except ChannelClosedError:
            raise self._death() from None

    def kill(self) -> None:
        """Kills the process at once; any thread may call it, and a run in progress raises."""
        self._killed = True
        self._end_group()

    def _end_group(self) -> None:
        """Kills the process and those that it started; not once it is closed: ids are reused."""
        if self._closed:
            return
        self._process.kill()  # it may have left its group
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def process_bytes(self) -> int:
        """Returns the resident memory of the worker process in bytes; 0 once it has ended."""
        return resident_bytes(self.pid)

    def cpu_seconds(self) -> float:
        """Returns the CPU time of the worker process so far, in all its threads.

        The clock's number is the one that Linux' clock_getcpuclockid(3) computes.

        Raises:
            OSError: the process has ended.
        """
        return time.clock_gettime((~self.pid << 3) | 2)

    def close(self) -> None:
        """Ends the process and frees its resources; idempotent."""
        self._channel.close()
        self._wait_for_end()
        self._end_group()
        self._output.end()
        self._closed = True
        if self._folder is not None:
            self._folder.remove()

    def _receive(self, *wanted: str) -> tuple[str, Any]:
        """Returns the next message of some kinds; attaches announced memory before.

        Raises:
            BackendError: the model raised.
            WorkerProcessDiedError: the process ended, or was ended: it sent another message.
        """
        try:
            while True:
                kind, content, descriptor = self._next_message()
                if descriptor is None:
                    break
                self._attach(kind, content, descriptor)
            if kind not in (*wanted, "error"):
                raise ValueError(f"it sent '{kind[:40]}' in place of '{wanted[0]}'")
            raised = _error_of(content) if kind == "error" else None
        except ChannelClosedError:
            raise self._death() from None
        except TimeoutError:
            raise
        except (AttributeError, KeyError, TypeError, ValueError, OSError) as error:
            raise self._broken(error) from error
        if raised is not None:
            raise raised
        return kind, content

    def _attach(self, kind: str, name: str, descriptor: int) -> None:
        """Maps announced memory; closes a descriptor that came with another message."""
        if kind != "memory":
            os.close(descriptor)
            raise ValueError(f"it sent a descriptor with '{kind[:40]}'")
        self._outputs.attach(name, descriptor)

    def _broken(self, error: Exception) -> WorkerProcessDiedError:
        """Ends a process that broke the protocol: its next answer could be that to this batch."""
        self.kill()
        self._wait_for_end()
        return WorkerProcessDiedError(
            f"the worker process of artifact '{self._name}' (pid {self.pid}) was ended by this "
            f"server: the model writes to the server's channel, or left it in disorder ({error!r})",
            "SIGKILL",
        )

    def _death(self) -> WorkerProcessDiedError:
        how = _how_it_ended(self._wait_for_end(), self._killed)
        return WorkerProcessDiedError(
            f"the worker process of artifact '{self._name}' (pid {self.pid}) {how}; what it wrote "
            "to standard error says more",
            how.removeprefix("ended with ").removeprefix("was ended by "),
        )

    def _wait_for_end(self) -> int | None:
        """Waits until the process ends, kills it after a timeout, and returns its exit code.

        Returns None for a process that still does not end, such as one blocked in a device driver.
        """
        for timeout_s in (END_TIMEOUT_S, KILLED_TIMEOUT_S):
            try:
                return self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self.kill()
        return None


def open_isolated_backend(
    artifact: VerifiedArtifact,
    options: OpenOptions,
    *,
    low_priority: bool = False,
    memory_limit_bytes: int = 0,
    timeout_s: float = OPEN_TIMEOUT_S,
) -> IsolatedBackend:
    """Starts a worker process and opens an artifact in it, as `open_backend` does.

    It has the same arguments; `low_priority`: True for a process of permanently low priority, see
    `low_priority_thread.py`; `memory_limit_bytes`: the most that it may allocate, 0 for no limit;
    `timeout_s`: seconds that opening may take.

    Raises:
        BackendError: the artifact does not open; the message is the runtime's.
        DeviceError: the device is missing, or opening took longer than the timeout.
        WorkerProcessDiedError: the process ended while it opened the artifact.
    """
    backend = IsolatedBackend(
        artifact.entry.name, low_priority=low_priority, folder=artifact.folder
    )
    described, files = packed(artifact)
    try:
        backend.open(
            {
                "artifact": described,
                "low_priority": low_priority,
                "memory_limit_bytes": memory_limit_bytes,
                "options": options,
            },
            files,
            timeout_s,
        )
    except BaseException:
        backend.close()
        raise
    return backend


def _start(module: str) -> tuple[subprocess.Popen[bytes], Channel, ForwardedOutput]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, ForwardedOutput(module) as output:
        process = subprocess.Popen(  # noqa: S603
            own_command(module, str(theirs.fileno())),
            stdin=subprocess.DEVNULL,
            stdout=output.sink,  # a model's output must not mix with the server's
            pass_fds=[theirs.fileno()],
            process_group=0,  # processes that the model starts end with it
        )
    return process, Channel(ours), output


def _error_of(content: Mapping[str, Any]) -> BackendError:
    """Returns the error that the worker process raised, as one of three classes."""
    if content["refused"]:
        return InputRefusedError(content["text"])
    error = (DeviceError if content["device"] else BackendError)(content["text"])
    if content["trace"]:
        error.add_note(f"In the worker process:\n{content['trace']}")
    return error


def _raise(error: Exception) -> Message:
    raise error


def _how_it_ended(code: int | None, killed: bool) -> str:
    if code is None:
        return "hung up and does not end, not even by SIGKILL"
    if code == OUT_OF_MEMORY:
        return "needed more memory than it may allocate, and ended"
    if code >= 0:
        return f"ended with exit code {code}"
    name = next((s.name for s in signal.Signals if s == -code), f"signal {-code}")
    if killed:
        return f"was ended by this server ({name})"
    if name == "SIGKILL":
        return f"was ended by {name}, which the kernel sends when memory runs out"
    return f"was ended by {name}"
