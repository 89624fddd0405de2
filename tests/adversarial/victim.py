"""The server under attack: a process as users run it, its memory, and its state."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from typer.testing import CliRunner

from flambeau.commands.access import access_app
from services.settings import checked
from services.standalone.config import ServerConfig
from services.trainer.edges.rest_port import LEAST_BUFFERED_BYTES
from tests.adversarial.attack import VictimName
from tests.adversarial.text_model import publish_parts, publish_texts, publish_verbose
from tests.adversarial.torchserve_models import write_archives
from tests.fixtures import onnx_models, pipelines, shaped_models
from tests.fixtures.capture_command import CaptureCommand, capturing
from tests.fixtures.certificates import Authority
from tests.fixtures.peak_memory import forget_peak, major_faults, peak_bytes
from tests.fixtures.redis_servers import RedisProcess
from tests.fixtures.servers import ServerProcess, running_processes, running_server
from tests.fixtures.split_servers import (
    SplitServer,
    running_registry,
    running_split,
    running_worker,
)
from tests.fixtures.stateful_models import publish_running_sum
from tests.fixtures.torchserve_server import TorchServeProcess, running_torchserve
from tests.fixtures.trainer_processes import TrainerProcess, running_trainer

MIB = 2**20
ATTACKED_OBJECTS = "flambeau-attack-"
"""Beginning of the names of shared memory objects that the servers take from attacks."""
EDGES = 2
TYPED = ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "FP64")
"""Datatypes of the model `typed`: `in_INT8` to `out_INT8`, and so on."""


class Victim:
    """A running server, with its store, a credential for it, and a certificate to verify it."""

    def __init__(
        self,
        server: ServerProcess | TrainerProcess,
        store: Path,
        key: str,
        certificate: str,
        is_supervised: bool,
        proxy: CaptureCommand | None,
        persons: tuple[str, ...] = (),
    ) -> None:
        self.server, self.store, self.key, self.certificate = server, store, key, certificate
        self.persons = persons
        worker = server.worker if isinstance(server, SplitServer) else None
        self._parts: list[ServerProcess | TrainerProcess | CaptureCommand] = [server]
        self._parts += [part for part in (worker, proxy) if part is not None]
        self._children = set(_family(server.pid)[1:]) if is_supervised else set()
        self._first = self._peaks()

    @property
    def has_ended(self) -> bool:
        """True if one of the processes has ended, or one that a supervisor replaces."""
        return not self._children <= set(_family(self.server.pid)) or any(
            part.process.poll() is not None for part in self._parts
        )

    def grown_bytes(self) -> int:
        """Peak memory of a process and its children, beyond its memory at first."""
        return max(now - first for now, first in zip(self._peaks(), self._first, strict=True))

    def rebase_memory(self) -> None:
        """Makes `grown_bytes` count from the memory of now."""
        self.forget_peak()
        self._first = self._peaks()

    def major_faults(self) -> int:
        """Page faults of all its processes that read from a disk, since they began."""
        return sum(_of_family(part.pid, major_faults) for part in self._parts)

    def forget_peak(self) -> None:
        """Starts a new measurement of the peak."""
        for part in self._parts:
            for pid in _family(part.pid):
                with contextlib.suppress(OSError):
                    forget_peak(pid)

    def _peaks(self) -> list[int]:
        """Returns the peak of each serving process, with its children."""
        return [_of_family(part.pid, peak_bytes) for part in self._parts]

    def expect_its_end(self) -> None:
        """Makes the runner accept any exit code."""
        for part in self._parts:
            if part.process.poll() is not None and isinstance(part, ServerProcess):
                part.expected_code = part.process.wait(0)


def budget_bytes(name: VictimName) -> int:
    """Returns the default limit of the bytes that a kind of server holds for clients.

    Of several processes, an edge holds bodies, and the arenas of its link, one each way, are in its
    memory and in that of the model process.
    """
    if name == "trainer":
        return LEAST_BUFFERED_BYTES
    if name == "processes":
        edge = checked(ServerConfig, {"store": ".", "processes": EDGES}).of_edge({})
        return EDGES * (1 + 2 * 2) * edge.buffer_limit_bytes
    return checked(ServerConfig, {"store": "."}).buffer_limit_bytes


def make_store(store: Path) -> None:
    """Creates a store of `linear`, y = 2 * x; `typed`, its own inputs; `texts`, their sizes; and
    models of unusual shapes; the pipelines `reader` and `each`; and
    `verbose`, a Python model of long answers; and `few`, a running sum over a sequence."""
    onnx_models.publish(str(store), "linear", onnx_models.linear(2.0))
    onnx_models.publish(str(store), "typed", onnx_models.echo(*TYPED))
    publish_texts(str(store))
    pipelines.publish_parts(str(store))
    pipelines.publish_graph(str(store))
    pipelines.publish_each(str(store))
    publish_verbose(str(store))
    publish_running_sum(str(store), "few", max_idle_s=5)
    publish_parts(str(store))
    for name in ("scaled", "shared", "shouting"):
        shaped_models.publish(str(store), name)


@contextlib.contextmanager
def running_victim(name: VictimName, store: Path, folder: Path) -> Iterator[Victim]:
    """Runs a server until the block ends, whatever its state by then.

    Args:
        name: kind of the server.
        store: store to serve.
        folder: folder for the key file, and certificates.
    """
    settings: dict[str, object] = {"shared_memory_objects": f"{ATTACKED_OBJECTS}*"}
    key = certificate = ""
    persons: tuple[str, ...] = ()
    if name in ("keyed", "two persons"):
        keys = folder / "keys.yaml"
        keys.unlink(missing_ok=True)
        key = _new_key(keys, "neighbour", "infer")
        settings["api_keys_file"] = str(keys)
    if name == "two persons":
        persons = tuple(_new_key(keys, one, "read", "promote", "push") for one in ("ann", "ben"))
        settings["registry_two_person"] = ["linear"]
    if name == "registry":
        settings["registry"] = "open"
    if name == "tls":
        authority = Authority(folder)
        pair, certificate = authority.issue("victim"), str(authority.file)
        settings["tls_certificate_file"] = str(pair.certificate)
        settings["tls_key_file"] = str(pair.key)
    running: contextlib.AbstractContextManager[ServerProcess | TrainerProcess]
    if name == "trainer":
        running = running_trainer(folder, "--no-worker", f"--jobs={folder / 'jobs.sqlite'}")
    elif name == "torchserve":
        running = running_attacked_torchserve(folder)
    elif name == "processes":
        running = running_processes(store, **settings)
    elif name == "registry process":
        running = running_registry_process(store)
    elif name == "split":
        running = running_split(store, "valkey", **settings)
    else:
        running = running_server(store, **settings)
    with running as server, contextlib.ExitStack() as stack:
        proxy = None
        if name == "captured":
            assert isinstance(server, ServerProcess)
            path, options = folder / "capture.jsonl", ("--answers", "--max-file-mb=64")
            proxy = stack.enter_context(capturing(f"http://{server.http}", path, *options))
            server.http_port = int(proxy.url.rpartition(":")[2])
        victim = Victim(server, store, key, certificate, name == "processes", proxy, persons)
        yield victim
        victim.expect_its_end()


def _new_key(file: Path, name: str, *grants: str) -> str:
    """Adds a key to a file; returns it."""
    options = [word for grant in grants for word in ("--grant", grant)]
    found = CliRunner().invoke(access_app, ["add", name, *options, "--file", str(file)])
    assert found.exit_code == 0, found.output
    return found.stdout.strip()


@contextlib.contextmanager
def running_registry_process(store: Path) -> Iterator[ServerProcess]:
    """Runs the registry of a split server, open to this machine, with a worker and Redis."""
    with tempfile.TemporaryDirectory(prefix="flambeau-") as folder, contextlib.ExitStack() as stack:
        redis = RedisProcess("valkey", Path(folder))
        stack.callback(redis.kill)
        redis.start()
        stack.enter_context(running_worker(store, redis.url))
        yield stack.enter_context(running_registry(str(store), redis.url, registry="open"))


def running_attacked_torchserve(
    folder: Path,
) -> contextlib.AbstractContextManager[TorchServeProcess]:
    """Runs a server with TorchServe's API and the archives of `torchserve_models.py`."""
    write_archives(folder / "archives")
    options = ("--disable-token-auth", "--enable-model-api")
    models = "calm.mar,doubling.mar,echo.mar,stream.mar"
    return running_torchserve(folder, *options, load_models=models)


def _family(pid: int) -> list[int]:
    """Returns a process and all its descendants."""
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _family(int(child))
    return found


def _of_family(pid: int, measure: Callable[[int], int]) -> int:
    """Sums a figure of a process and its descendants; skips those that end meanwhile."""
    total = 0
    for one in _family(pid):
        with contextlib.suppress(OSError):
            total += measure(one)
    return total
