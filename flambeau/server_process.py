"""Runs a server as a child process: on free ports, until ready, and drained at the end."""

import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from model_store.host.own_process import PACKAGES, own_command

STOP_TIMEOUT_S = 60


class ServerProcessError(Exception):
    """The server did not start, or did not exit with code 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProcess:
    """A running server and its addresses, each host:port."""

    pid: int
    http: str
    grpc: str
    metrics: str


@contextmanager
def server_process(
    arguments: Sequence[str],
    before_exec: Callable[[], None] | None = None,
    module: str = "flambeau",
    python: str = sys.executable,
    folder: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[ServerProcess]:
    """Runs `flambeau serve` with the given arguments until the block ends.

    Args:
        arguments: arguments of `flambeau serve`, without ports.
        before_exec: callback in the child before it starts, to pin it to a core for example.
        module: module that is run with `serve`, instead of the command line.
        python: path of the interpreter.
        folder: working directory, from which project modules are imported; None for the current.
        environment: environment variables; None for the current ones.

    Raises:
        ServerProcessError: the server exited before it was ready, or with a code other than 0 after
            SIGTERM.
    """
    ports = ["--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"]
    packages = PACKAGES if folder is None else Path(folder)
    command = own_command(module, "serve", *arguments, *ports, python=python, packages=packages)
    with subprocess.Popen(  # noqa: S603
        command,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=before_exec,
        cwd=folder,
        env=environment,
    ) as process:
        assert process.stdout is not None
        try:
            ready = _when_ready(process, process.stdout)
            # Later output is read and discarded, so that the pipe never fills.
            reader = threading.Thread(target=process.stdout.read)
            reader.start()
            yield ready
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(STOP_TIMEOUT_S)
        reader.join()
    if code != 0:
        raise ServerProcessError(f"the server exited with {code} instead of 0 after SIGTERM")


def _when_ready(process: "subprocess.Popen[str]", lines: IO[str]) -> ServerProcess:
    """Parses the addresses that the server prints once it is ready."""
    found: dict[str, str] = {}
    for line in lines:
        match line.split():
            case [("REST" | "gRPC" | "metrics") as name, address]:
                found[name] = address.removeprefix("http://").partition("/")[0]
        if len(found) == 3:
            return ServerProcess(
                pid=process.pid, http=found["REST"], grpc=found["gRPC"], metrics=found["metrics"]
            )
    raise ServerProcessError(f"the server exited with {process.wait()} before it was ready")
