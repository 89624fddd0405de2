"""A process with pipes to its log and its events, and a group that ends with it.

asyncio's own waits until nobody holds the pipes any more, which something that a job has started
may do for ever; here the end of a process is its own.
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
LAST_WORDS_S = 5.0
"""How long what a job has written may take to be read once it has ended."""
_LINE_ENDS = re.compile(rb"[\r\n]+")
Hear = Callable[[str], Awaitable[None]]


class JobProcess:
    """A process in a session of its own, whose standard input ends when we do.

    Args:
        command: what to run; `{events}` stands for the file to write events to.
        folder: its working directory.

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
        """Negative if a signal has ended it; only once it has ended."""
        return self._process.wait()

    def ask_to_stop(self) -> None:
        """Sends SIGTERM to the process, not to what it has started: that is its own affair."""
        if not self.ended.is_set():
            self._process.send_signal(signal.SIGTERM)

    async def read(self, hear_log: Hear, hear_events: Hear) -> None:
        """Passes on, line by line, what it writes, until nobody can write more."""
        async with asyncio.TaskGroup() as tasks:
            for descriptor, hear in zip(self._ours, (hear_log, hear_events), strict=True):
                tasks.create_task(self._pump(descriptor, hear))

    async def close(self, reading: "asyncio.Task[None]") -> None:
        """Ends it with all it has started, and has the last of its words read."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        await self.ended.wait()
        await asyncio.wait({reading}, timeout=LAST_WORDS_S)
        reading.cancel()  # something that left the group still holds a pipe
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
            rest = rest[:CHUNK_BYTES]  # of a line that is too long, the beginning
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
