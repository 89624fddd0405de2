"""Runs our modules in a process of their own, whatever packages the caller's project has.

In: a module of ours and its arguments. Out: its events, one JSON object a line, as they come.

Rules: the interpreter starts isolated (`-I`), so that neither the working directory nor PYTHONPATH
can replace a package of ours; installed packages that this process sees are visible there too; the
process ends with the block, with Ctrl-C, and with this process, whatever ends that.
"""

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self

PACKAGES = Path(__file__).parents[2]
"""Folder of our packages: a checkout, or the environment's `site-packages`."""
_START = (
    "import os, runpy, shutil, signal, sys, threading\n"
    "def end():\n"
    "    while os.read(0, 1): pass\n"  # until the caller's process ends, or closes the pipe
    "    os.kill(os.getpid(), signal.SIGTERM)\n"
    "module, folder, root, *paths = sys.argv.pop(1).splitlines()\n"
    "if folder: signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))\n"
    "try:\n"
    "    try:\n"
    "        threading.Thread(target=end, daemon=True).start()\n"
    "        sys.path.insert(0, root)\n"
    "        sys.path += [path for path in paths if path not in sys.path]\n"
    "        runpy.run_module(module, run_name='__main__', alter_sys=True)\n"
    "    finally:\n"  # a SIGTERM that arrives here leads to the outer one
    "        if folder: signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
    "finally:\n"
    "    if folder: shutil.rmtree(folder, ignore_errors=True)\n"
)
_INSTALLED = ("site-packages", "dist-packages")
_LAST_WORDS_BYTES = 4096
END_TIMEOUT_S = 10.0
"""Seconds for a process to end after SIGTERM."""
_LOOK_EVERY_S = 0.5
"""Longest wait in one call of the system. A Ctrl-C that arrives just before such a call does not
interrupt it, and is raised after it."""
_CHUNK_BYTES = 2**16


class OwnProcessError(Exception):
    """The process died; the message has its last line."""


def own_command(module: str, *arguments: str, folder: str = "") -> list[str]:
    """Returns the command that runs a module of ours.

    Args:
        module: as for `python -m`.
        arguments: its command-line arguments.
        folder: a folder that the process removes when it ends.
    """
    installed = [path for path in sys.path if Path(path).name in _INSTALLED]
    where = "\n".join([module, folder, str(PACKAGES), *installed])
    return [sys.executable, "-I", "-c", _START, where, *arguments]


class OwnProcess:
    """A process that runs a module of ours.

    Args:
        module: as for `python -m`.
        arguments: its command-line arguments.
        descriptors: open files that it inherits, under the same numbers.
        folder: a folder of its temporary files, and of its children's, that it removes when it
            ends, as a killed caller cannot; empty for none.
    """

    def __init__(
        self, module: str, *arguments: str, descriptors: Sequence[int] = (), folder: str = ""
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `close`
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            own_command(module, *arguments, folder=folder),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            start_new_session=True,
            pass_fds=descriptors,
            bufsize=0,
            env=_environment(folder),
        )
        self._unread = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def lines(self) -> Iterator[str]:
        """Yields the lines of its standard output, until it closes that.

        Raises:
            OwnProcessError: it exited with a code other than 0.
        """
        yield from self._lines()
        self._check_exit()

    def _lines(self) -> Iterator[str]:
        stdout = self._process.stdout
        assert stdout is not None, "it is a pipe"
        while True:
            line, end, rest = self._unread.partition(b"\n")
            if end:
                self._unread = rest
                yield (line + end).decode(errors="replace")
            elif _has_input(stdout.fileno()):
                part = stdout.read(_CHUNK_BYTES)
                if not part:
                    break
                self._unread += part
        if self._unread:
            yield self._unread.decode(errors="replace")

    def events(self) -> Iterator[dict[str, Any]]:
        """Yields the JSON objects among its lines; raises as `lines`."""
        for line in self.lines():
            with contextlib.suppress(ValueError):  # a library may print too
                event = json.loads(line)
                if isinstance(event, dict):
                    yield event

    def read_on(self, say: Callable[[str], None] | None = None) -> None:
        """Reads further output in a thread, so that the pipe never fills.

        Args:
            say: receives each line; None discards them.
        """

        def read() -> None:
            with contextlib.suppress(ValueError):  # closed meanwhile
                for line in self._lines():
                    if say is not None:
                        say(line.rstrip("\n"))

        threading.Thread(target=read, daemon=True).start()

    def wait(self) -> None:
        """Waits for the end of the process.

        Raises:
            OwnProcessError: it exited with a code other than 0.
        """
        self._check_exit()

    def close(self, timeout_s: float = END_TIMEOUT_S) -> None:
        """Ends the process by SIGTERM, and after the timeout by SIGKILL, with its children."""
        if self._process.poll() is None:
            self._signal(signal.SIGTERM)
            try:
                self._process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                self._signal(signal.SIGKILL)
                self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._errors):
            if stream is not None:
                stream.close()

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _check_exit(self) -> None:
        code = self._process.wait(threading.TIMEOUT_MAX)  # looks often: see _LOOK_EVERY_S
        if code == 0:
            return
        self._errors.seek(max(self._errors.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES, 0))
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        if lines and lines[-1].startswith("error: "):
            raise OwnProcessError(lines[-1].removeprefix("error: "))
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        # What a killed process leaves are the words of those that depended on it.
        said = f": {lines[-1][:300]}" if lines and code != -signal.SIGKILL else ""
        raise OwnProcessError(f"our process ended with {how}{said}")


def _environment(folder: str) -> dict[str, str]:
    """Returns the environment with temporary files in a folder; torch's cache stays outside."""
    if not folder:
        return dict(os.environ)
    cache = os.path.join(tempfile.gettempdir(), f"torchinductor_{os.getuid()}")
    return {"TORCHINDUCTOR_CACHE_DIR": cache, **os.environ, "TMPDIR": folder}


def _has_input(descriptor: int) -> bool:
    """Waits for input, or the end of it; returns False if there is none yet."""
    waiting = select.poll()
    waiting.register(descriptor, select.POLLIN)
    return bool(waiting.poll(_LOOK_EVERY_S * 1000))
