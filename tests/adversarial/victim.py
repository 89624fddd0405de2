"""The server under attack: a process as users run it, its memory, and whether it still lives."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from typer.testing import CliRunner

from flambeau.commands.access import access_app
from services.settings import checked
from services.standalone.config import ServerConfig
from tests.adversarial.attack import VictimName
from tests.adversarial.text_model import publish_texts
from tests.fixtures import onnx_models
from tests.fixtures.peak_memory import forget_peak, peak_bytes
from tests.fixtures.servers import ServerProcess, running_server

MIB = 2**20
TYPED = ("INT8", "UINT8", "INT16", "UINT16", "INT32", "UINT32", "INT64", "UINT64", "FP64")
"""Datatypes of the model `typed`: `in_INT8` to `out_INT8`, and so on."""


class Victim:
    """A running server, with its store and a credential for it."""

    def __init__(self, server: ServerProcess, store: Path, key: str) -> None:
        self.server, self.store, self.key = server, store, key
        self.first_bytes = self._peak_bytes()

    @property
    def has_ended(self) -> bool:
        """Whether the process is gone."""
        return self.server.process.poll() is not None

    def grown_bytes(self) -> int:
        """The most memory that the process and its children held, beyond what they began with."""
        return self._peak_bytes() - self.first_bytes

    def forget_peak(self) -> None:
        """Starts a new measurement of the peak."""
        for pid in _family(self.server.pid):
            with contextlib.suppress(OSError):
                forget_peak(pid)

    def _peak_bytes(self) -> int:
        return sum(_peak_bytes(pid) for pid in _family(self.server.pid))


def budget_bytes() -> int:
    """Bytes of callers that the server may hold, by its own default."""
    return checked(ServerConfig, {"store": "."}).buffer_limit_bytes


def make_store(store: Path) -> None:
    """A store of `linear`, y = 2 * x; `typed`, its own inputs; and `texts`, their sizes."""
    onnx_models.publish(str(store), "linear", onnx_models.linear(2.0))
    onnx_models.publish(str(store), "typed", onnx_models.echo(*TYPED))
    publish_texts(str(store))


@contextlib.contextmanager
def running_victim(name: VictimName, store: Path, folder: Path) -> Iterator[Victim]:
    """A server until the block ends, whatever has become of it.

    Args:
        name: which of the two.
        store: served.
        folder: for the file with keys.
    """
    settings: dict[str, object] = {}
    key = ""
    if name == "keyed":
        keys = folder / "keys.yaml"
        asked = ["add", "neighbour", "--grant", "infer", "--file", str(keys)]
        if keys.exists():
            keys.unlink()
        found = CliRunner().invoke(access_app, asked)
        assert found.exit_code == 0, found.output
        key = found.stdout.strip()
        settings["api_keys_file"] = str(keys)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_ending_anyhow(store, settings))
        yield Victim(server, store, key)


@contextlib.contextmanager
def _ending_anyhow(store: Path, settings: dict[str, object]) -> Iterator[ServerProcess]:
    with running_server(store, **settings) as server:
        yield server
        if server.process.poll() is not None:
            server.expected_code = server.process.wait(0)


def _family(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += _family(int(child))
    return found


def _peak_bytes(pid: int) -> int:
    with contextlib.suppress(OSError):
        return peak_bytes(pid)
    return 0
