"""Runs our modules in a process of their own, whatever packages the caller's project has.

In: a module of ours and its arguments. Out: its events, one JSON object a line, as they come.

Rules: the interpreter starts isolated (`-I`), so that neither the working directory nor PYTHONPATH
can replace a package of ours; installed packages that this process sees are visible there too;
Ctrl-C here ends the process and its children.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PACKAGES = Path(__file__).parents[2]
"""Folder of our packages: a checkout, or the environment's `site-packages`."""
_START = (
    "import runpy, sys; module, root, *paths = sys.argv[1].splitlines(); "
    "sys.path.insert(0, root); sys.path += [p for p in paths if p not in sys.path]; "
    "del sys.argv[1]; runpy.run_module(module, run_name='__main__', alter_sys=True)"
)
_INSTALLED = ("site-packages", "dist-packages")
_LAST_WORDS_BYTES = 4096
_END_TIMEOUT_S = 10.0


class OwnProcessError(Exception):
    """The process died; the message has its last line."""


def own_command(module: str, *arguments: str) -> list[str]:
    """Returns the command that runs a module of ours.

    Args:
        module: as for `python -m`.
        arguments: its command-line arguments.
    """
    installed = [path for path in sys.path if Path(path).name in _INSTALLED]
    where = "\n".join([module, str(PACKAGES), *installed])
    return [sys.executable, "-I", "-c", _START, where, *arguments]


@contextmanager
def own_process(
    module: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> Iterator[Iterator[dict[str, Any]]]:
    """Runs a module, and yields its events; ends it with the block.

    Args:
        module: as for `python -m`.
        arguments: its command-line arguments.
        environment: environment variables; None for those of this process.

    Raises:
        OwnProcessError: it exited with a code other than 0, without an event that says why.
    """
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(  # noqa: S603 - our own module
            own_command(module, *arguments),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=None if environment is None else dict(environment),
            start_new_session=True,
        )
        try:
            yield _events(process, errors)
        finally:
            _end(process)


def _events(process: "subprocess.Popen[bytes]", errors: Any) -> Iterator[dict[str, Any]]:
    assert process.stdout is not None, "it is a pipe"
    for line in process.stdout:
        with contextlib.suppress(ValueError):  # a library may print too
            event = json.loads(line)
            if isinstance(event, dict):
                yield event
    code = process.wait()
    if code != 0:
        errors.seek(max(errors.seek(0, os.SEEK_END) - _LAST_WORDS_BYTES, 0))
        lines = errors.read().decode(errors="replace").strip().splitlines()
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        raise OwnProcessError(
            f"our process ended with {how}{f': {lines[-1][:300]}' if lines else ''}"
        )


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Ends the process with its children, and frees the pipe."""
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    if process.stdout is not None:
        process.stdout.close()
