"""A live Triton 2.51 beside ours, with the same models behind its Python backend.

Source: the environment of `make bench-peers` (`bench/peers/servers/triton_peer.py`).
"""

import subprocess
import sysconfig
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.environment import FOLDER, Environment
from bench.peers.running_server import free_addresses
from tests.conformance.triton_models import write_models

START_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class LiveTriton:
    """Addresses of a running Triton."""

    http: str
    grpc: str
    process: "subprocess.Popen[bytes]"


def installed() -> Environment | None:
    """Returns its environment if `make bench-peers` has made it; None otherwise."""
    environment = Environment("triton", [])
    stub = FOLDER / "triton" / "backends" / "python" / "triton_python_backend_stub"
    return environment if stub.exists() and Path(environment.python).exists() else None


@contextmanager
def running_triton(
    environment: Environment, write: Callable[[Path], None] = write_models
) -> Iterator[LiveTriton]:
    """Starts it with the models that `write` puts in a folder; ends it with the block."""
    http, grpc = free_addresses(2)
    packages = environment.site_packages
    libraries = (sysconfig.get_config_var("LIBDIR"), packages / "nvidia_pytriton.libs")
    with tempfile.TemporaryDirectory(prefix="triton-") as home:
        (Path(home) / "models").mkdir()
        write(Path(home) / "models")
        options = {
            "model-repository": f"{home}/models",
            "backend-directory": environment.folder / "backends",
            "http-address": "127.0.0.1", "http-port": http.partition(":")[2],
            "grpc-address": "127.0.0.1", "grpc-port": grpc.partition(":")[2],
            "allow-metrics": "false", "model-control-mode": "explicit", "load-model": "*",
        }  # fmt: skip
        with (Path(home) / "log").open("wb") as log:
            process = subprocess.Popen(
                [
                    str(packages / "pytriton" / "tritonserver" / "bin" / "tritonserver"),
                    *(f"--{name}={value}" for name, value in options.items()),
                ],
                env={
                    "PATH": environment.search_path, "HOME": home, "TMPDIR": home,
                    "LANG": "C.UTF-8", "OMP_NUM_THREADS": "1",
                    "LD_LIBRARY_PATH": ":".join(map(str, libraries)),
                },
                stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT,
            )  # fmt: skip
            try:
                _await_ready(http, process, Path(home) / "log")
                yield LiveTriton(http, grpc, process)
            finally:
                process.terminate()
                process.wait(60)


def _await_ready(http: str, process: "subprocess.Popen[bytes]", log: Path) -> None:
    end = time.monotonic() + START_TIMEOUT_S
    while not _is_ready(http):
        said = log.read_text(errors="replace")[-1000:]
        assert process.poll() is None, f"Triton has ended: {said}"
        assert time.monotonic() < end, f"Triton is not ready after {START_TIMEOUT_S} s: {said}"
        time.sleep(0.2)


def _is_ready(http: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://{http}/v2/health/ready", timeout=5):
            return True
    except OSError:
        return False
