"""A process with pipes for its log and its events, whose process group ends with it.

asyncio's subprocess waits until all holders of the pipes have closed them, and a child of a job may
hold them for ever; here a process has ended when it has exited itself.
"""

import asyncio
import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

CHUNK_BYTES = 64 * 2**10
FINAL_OUTPUT_S = 5.0
"""Timeout of reading the remaining output of a job once it has ended."""
_LINE_ENDS = re.compile(rb"[\r\n]+")
Hear = Callable[[str], Awaitable[None]]


class JobProcess:
    """A process in a new session, whose standard input closes when this process ends.

    Args:
        command: command to run; `{events}` is replaced by the file to write events to.
        folder: working directory of the process.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self, command: Sequence[str], folder: Path) -> None:
        self._pipes: list[asyncio.ReadTransport] = []
        log, their_log = os.pipe()
        events, their_events = os.pipe()
        self._ours = [log, events]
        try:
            self._process = subprocess.Popen(  # noqa: S603
                [word.replace("{events}", f"/dev/fd/{their_events}") for word in command],
                cwd=folder,
                stdin=subprocess.PIPE,
                stdout=their_log,
                stderr=subprocess.STDOUT,
                pass_fds=(their_events,),
                start_new_session=True,
            )
        except BaseException:
            os.close(log)
            os.close(events)
            raise
        finally:
            os.close(their_log)
            os.close(their_events)
        self.ended = asyncio.Event()
        self._handle = os.pidfd_open(self._process.pid)
        asyncio.get_running_loop().add_reader(self._handle, self._on_end)

    @property
    def exit_code(self) -> int:
        """Exit code, negative if a signal ended the process; valid only once it has ended."""
        return self._process.wait()

    def ask_to_stop(self) -> None:
        """Sends SIGTERM to the process, not to its children, which it ends itself."""
        if not self.ended.is_set():
            self._process.send_signal(signal.SIGTERM)

    async def read(self, hear_log: Hear, hear_events: Hear) -> None:
        """Passes on its output, line by line, until all writers have closed the pipes."""
        async with asyncio.TaskGroup() as tasks:
            for descriptor, hear in zip(self._ours, (hear_log, hear_events), strict=True):
                tasks.create_task(self._pump(descriptor, hear))

    async def close(self, reading: "asyncio.Task[None]") -> None:
        """Kills the process with its group, and reads the rest of its output."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self.ended.wait()
        await asyncio.wait({reading}, timeout=FINAL_OUTPUT_S)
        reading.cancel()  # a process that left the group may still hold a pipe
        await asyncio.wait({reading})
        for pipe in self._pipes:
            pipe.close()
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.close()

    async def _pump(self, descriptor: int, hear: Hear) -> None:
        reader = asyncio.StreamReader()
        pipe, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb", 0)
        )
        self._pipes.append(pipe)
        rest = b""
        while chunk := await reader.read(CHUNK_BYTES):
            *lines, rest = _LINE_ENDS.split(rest + chunk)
            rest = rest[:CHUNK_BYTES]  # truncates a line that is too long
            for line in lines:
                if line:
                    await hear(line.decode(errors="replace"))
        if rest:
            await hear(rest.decode(errors="replace"))

    def _on_end(self) -> None:
        asyncio.get_running_loop().remove_reader(self._handle)
        os.close(self._handle)
        self._process.wait()
        self.ended.set()
