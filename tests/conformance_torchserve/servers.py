"""A live TorchServe 0.12 and ours, each with the same `config.properties` and the same archives.

Source: the environment of `make bench-peers` (`bench/peers/servers/torchserve_peer.py`).
"""

import importlib
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode

from bench.peers.environment import Environment
from bench.peers.process_tree import end_tree
from bench.peers.running_server import free_addresses
from tests.conformance_torchserve.archives import NAMES

START_TIMEOUT_S = 900
SLOW = "slow"
NO_WORKERS = "Failed to start workers"
REGISTRATIONS = 3
"""Most registrations of one archive: on a busy machine, workers may not start in their time."""
QUIET = """<Configuration><Appenders><Console name="console"/></Appenders><Loggers>
<Root level="warn"><AppenderRef ref="console"/></Root></Loggers></Configuration>
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """Addresses of a running server, each host:port."""

    inference: str
    management: str
    metrics: str
    grpc_inference: str
    grpc_management: str


def installed() -> Environment | None:
    """Returns TorchServe's environment if `make bench-peers` has made it; None otherwise."""
    environment = Environment("torchserve", [])
    return environment if Path(environment.script("torchserve")).exists() else None


@contextmanager
def running_real(
    environment: Environment,
    store: Path,
    home: Path,
    names: Sequence[str] = (),
    *,
    packages: Sequence[str] = (),
    **settings: str,
) -> Iterator[Server]:
    """Runs TorchServe until the block ends.

    Args:
        environment: has it installed.
        store: folder of the archives.
        home: an empty folder for its files.
        names: models that it has from the start.
        packages: packages of this environment that its models find, too.
        settings: further keys of `config.properties`.
    """
    (home / "packages").mkdir()
    for package in packages:
        (found,) = importlib.import_module(package).__path__
        (home / "packages" / package).symlink_to(found)
    (home / "log4j2.xml").write_text(QUIET)
    argv = (environment.script("torchserve"), "--foreground", "--start", "--ts-config",
            "config.properties", "--log-config", "log4j2.xml")  # fmt: skip
    variables = {"PATH": environment.search_path, "PYTHONPATH": str(home / "packages")}
    with _running(argv, store, home, variables, settings, names) as server:
        yield server


@contextmanager
def running_ours(
    store: Path, home: Path, names: Sequence[str] = (), **settings: str
) -> Iterator[Server]:
    """Runs our server until the block ends; the arguments are as for `running_real`."""
    command = str(Path(sys.executable).with_name("flambeau"))
    argv = (command, "serve", "--torchserve", "--ts-config", "config.properties")
    environment = {"PATH": os.environ["PATH"]}
    with _running(argv, store, home, environment, settings, names) as server:
        yield server


@contextmanager
def _running(
    argv: Sequence[str],
    store: Path,
    home: Path,
    environment: Mapping[str, str],
    settings: Mapping[str, str],
    names: Sequence[str],
) -> Iterator[Server]:
    addresses = free_addresses(5)
    server = Server(
        inference=addresses[0],
        management=addresses[1],
        metrics=addresses[2],
        grpc_inference=addresses[3],
        grpc_management=addresses[4],
    )
    (home / "config.properties").write_text(_properties(server, store, names, settings))
    with (home / "log").open("wb") as log:
        process = subprocess.Popen(
            argv,
            cwd=home,
            env={"HOME": str(home), "TMPDIR": str(home), "LANG": "C.UTF-8",
                 "OMP_NUM_THREADS": "1", **environment},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
    try:
        _await_ready(server, names, process, home / "log")
        yield server
    finally:
        end_tree(process.pid)
        process.wait(60)


def _properties(
    server: Server, store: Path, names: Sequence[str], settings: Mapping[str, str]
) -> str:
    lines = {
        "inference_address": f"http://{server.inference}",
        "management_address": f"http://{server.management}",
        "metrics_address": f"http://{server.metrics}",
        "grpc_inference_address": "127.0.0.1",
        "grpc_inference_port": server.grpc_inference.partition(":")[2],
        "grpc_management_address": "127.0.0.1",
        "grpc_management_port": server.grpc_management.partition(":")[2],
        "model_store": str(store),
        "load_models": ",".join(f"{name}={name}.mar" for name in names),
        "default_workers_per_model": "1",
        "default_startup_timeout": str(START_TIMEOUT_S),
        "disable_token_authorization": "true",
        "enable_model_api": "true",
        "metrics_mode": "prometheus",
        **settings,
    }
    return "".join(f"{name}={value}\n" for name, value in lines.items())


def _await_ready(
    server: Server, names: Sequence[str], process: "subprocess.Popen[bytes]", log: Path
) -> None:
    """Waits until it answers, and every model has its worker: servers say so only when asked."""
    end = time.monotonic() + START_TIMEOUT_S
    keys = log.with_name("key_file.json")
    while not (_answers(server) and all(_is_ready(server, name, keys) for name in names)):
        said = log.read_text(errors="replace")[-2000:]
        assert process.poll() is None, f"the server has ended: {said}"
        assert time.monotonic() < end, f"it is not ready after {START_TIMEOUT_S} s: {said}"
        time.sleep(0.2)


def _answers(server: Server) -> bool:
    try:
        with urllib.request.urlopen(f"http://{server.inference}/ping", timeout=10):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


def register_all(server: Server, names: Sequence[str] = NAMES) -> None:
    """Registers archives one after the other: TorchServe gives a worker 2 minutes.

    Args:
        server: the server.
        names: names of the archives.

    Raises:
        RuntimeError: the server refuses one, or its worker does not start on a busy machine.
    """
    for name in names:
        batch = {"batch_size": 8, "max_batch_delay": 20} if name == SLOW else {}
        asked = {"url": f"{name}.mar", "initial_workers": 1, "synchronous": "true", **batch}
        for _ in range(REGISTRATIONS):
            said = _manage(server, "POST", f"/models?{urlencode(asked)}")
            if not said or NO_WORKERS not in said:
                break
            _manage(server, "DELETE", f"/models/{name}")  # TorchServe keeps it registered
        if said:
            raise RuntimeError(f"{server.management} does not register {name}.mar: {said}")


def _manage(server: Server, method: str, path: str) -> str:
    """Makes a call of management. Returns its error; empty for none."""
    request = urllib.request.Request(f"http://{server.management}{path}", method=method)
    try:
        with urllib.request.urlopen(request, timeout=START_TIMEOUT_S):
            return ""
    except urllib.error.HTTPError as error:
        return f"{error.code} {error.read().decode(errors='replace')[:500]}"


def _is_ready(server: Server, name: str, keys: Path) -> bool:
    try:
        asked = urllib.request.Request(f"http://{server.management}/models/{name}")
        if keys.exists():
            key = json.loads(keys.read_bytes())["management"]["key"]
            asked.add_header("Authorization", f"Bearer {key}")
        with urllib.request.urlopen(asked, timeout=10) as reply:
            (model,) = json.load(reply)
    except (OSError, ValueError):
        return False
    return [worker["status"] for worker in model["workers"]] == ["READY"]
