"""One interpreter: the wheel with its extra `serve` in an environment, a server, and answers.

In: an interpreter, a wheel, and a store that another environment made. Out: seconds and megabytes
of the installation, or why it does not serve.
"""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from tests.e2e.rest_calls import infer, tensor
from tests.fixtures.servers import FREE_PORTS, ServerProcess

ROW = [1.0, 2.0, 3.0, 4.0]
WANTED = [2.0, 4.0, 6.0, 8.0]
NOT_NEEDED = ("torch", "tritonclient", "openvino")
"""Nothing of these may come with the small installation."""
OWN = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
"""Or a checkout on that path would stand for the wheel."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Result of one interpreter; `fault` is empty if it serves."""

    seconds: float
    megabytes: float
    fault: str


def try_installation(program: Path, wheel: Path, store: Path, folder: Path) -> Installation:
    """Makes an environment in the folder, installs, serves and asks.

    Args:
        program: the interpreter.
        wheel: of flambeau.
        store: with the model `linear`, y = 2 x.
        folder: is emptied first.
    """
    shutil.rmtree(folder, ignore_errors=True)
    environment = folder / "venv"
    began = time.monotonic()
    fault = _installed(program, environment, wheel)
    seconds = time.monotonic() - began
    size = sum(path.lstat().st_size for path in environment.rglob("*") if path.is_file())
    if not fault:
        fault = _serves(environment / "bin/flambeau", store, folder)
    return Installation(seconds, size / 1e6, fault)


def _installed(program: Path, environment: Path, wheel: Path) -> str:
    pip: list[str | Path] = [environment / "bin/pip", "--disable-pip-version-check"]
    commands: list[list[str | Path]] = [
        [program, "-m", "venv", environment],
        [*pip, "install", "--quiet", f"flambeau[serve] @ {wheel.as_uri()}"],
        [*pip, "check"],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, env=OWN)
        if done.returncode:
            return (done.stderr or done.stdout).strip().splitlines()[-1]
    packages = environment / "lib"
    found = [name for name in NOT_NEEDED if [*packages.glob(f"python*/site-packages/{name}")]]
    return f"{', '.join(found)} came with it" if found else ""


def _serves(flambeau: Path, store: Path, folder: Path) -> str:
    """Serves the store and asks over both protocols; returns what was wrong."""
    command: list[str | Path] = [flambeau, "serve", f"--store={store}", *FREE_PORTS]
    server = ServerProcess(
        subprocess.Popen(
            command,
            cwd=folder,
            env=OWN,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
    )
    try:
        server.await_ports()
        over_rest = infer(server, "linear", tensor("x", "FP32", [1, 4], [ROW])).outputs()["y"]
        asked = ["infer", "linear", "--server", server.grpc, f"--input=x={[ROW]}", "--json"]
        done = subprocess.run(
            [flambeau, *asked], cwd=folder, env=OWN, capture_output=True, text=True, timeout=120
        )
        if done.returncode:
            return f"gRPC: {done.stderr.strip()}"
        over_grpc = json.loads(done.stdout)["y"]
        server.ask_to_stop()
        code = server.wait()
    except AssertionError as error:
        return str(error).strip()
    finally:
        server.process.kill()
        server.wait()
    if (over_rest, over_grpc, code) != (WANTED, [WANTED], 0):
        return f"REST {over_rest}, gRPC {over_grpc}, exit code {code}"
    return ""
