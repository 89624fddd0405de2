"""Publishing that is cut off: nothing is half published, no process and no folder is left."""

import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from pathlib import Path

import pytest
import torch
from torch import nn

import flambeau
from flambeau.publishing.errors import PublishError

PROGRAM = """
import os, signal, sys, threading, time
import torch
from torch import nn
import flambeau

store, step = sys.argv[1:3]
def interrupt():
    time.sleep(0.2)  # by now the main thread waits in the system
    signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # which this does not interrupt
def progress(text):
    if text.startswith(step):
        print(text, flush=True)
        if "itself" in sys.argv:
            threading.Thread(target=interrupt).start()
net = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3)).eval()
try:
    rows = torch.randn(8, 64)
    flambeau.publish(net, rows, name="mine", to=store, artifacts=["onnx"], progress=progress)
except (flambeau.PublishError, KeyboardInterrupt) as error:
    print(f"{type(error).__name__}: {error}", flush=True)
"""
IMPORTER = "training.importing.run"
END_TIMEOUT_S = 60.0
OF_TORCH = "torchinductor_"
"""The folder of torch's own cache."""


class Run:
    """A program that publishes, and all its processes, known by a mark in their environment."""

    def __init__(self, folder: Path, step: str, *options: str) -> None:
        self.store, self.temporary = folder / "store", folder / "tmp"
        self.temporary.mkdir()
        self.mark = f"FLAMBEAU_TEST_MARK={uuid.uuid4()}"
        name, _, value = self.mark.partition("=")
        self.program = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(self.store), step, *options],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, name: value, "TMPDIR": str(self.temporary)},
        )

    def line(self) -> str:
        """Returns the next line of the program."""
        assert self.program.stdout is not None
        return self.program.stdout.readline().strip()

    def processes(self) -> list[int]:
        """Returns the running processes."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:  # it has ended
                continue
        return found

    def importer(self) -> int:
        """Returns the process that imports: the program's own child, which has forked others."""
        children = Path(f"/proc/{self.program.pid}/task/{self.program.pid}/children").read_text()
        named = [
            pid
            for pid in map(int, children.split())
            if IMPORTER.encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
        ]
        assert len(named) == 1
        return named[0]

    def end(self) -> None:
        """Waits for the program and for all its processes."""
        self.program.communicate(timeout=60)
        deadline = time.monotonic() + END_TIMEOUT_S
        while (left := self.processes()) and time.monotonic() < deadline:
            threading.Event().wait(0.05)
        assert left == []

    def check_nothing_is_left(self) -> None:
        """Waits for the end of all processes; then neither a version nor a folder is there."""
        self.end()
        assert list(self.store.glob("mine/*")) == []
        assert self.left_files() == []

    def left_files(self) -> list[str]:
        """Returns the temporary files and folders that are left, torch's cache excepted."""
        names = [path.name for path in self.temporary.iterdir()]
        return [name for name in names if not name.startswith(OF_TORCH)]


@pytest.mark.parametrize(
    "step", ["capturing", pytest.param("making", marks=pytest.mark.long), "verifying"]
)
def test_ctrl_c_leaves_nothing(step: str, tmp_path: Path) -> None:
    run = Run(tmp_path, step)
    assert run.line().startswith(step)

    run.program.send_signal(signal.SIGINT)

    assert run.line().startswith("KeyboardInterrupt")
    run.check_nothing_is_left()


@pytest.mark.parametrize("step", ["making", pytest.param("verifying", marks=pytest.mark.long)])
def test_ctrl_c_within_a_step_leaves_no_file(step: str, tmp_path: Path) -> None:
    run = Run(tmp_path, step, "itself")
    assert run.line().startswith(step)

    assert run.line().startswith("KeyboardInterrupt")
    run.end()
    assert run.left_files() == []


def test_a_killed_importer_is_told_and_leaves_no_process(tmp_path: Path) -> None:
    run = Run(tmp_path, "making")
    assert run.line() == "making onnx"

    os.kill(run.importer(), signal.SIGKILL)

    assert run.line() == "RefusedError: nothing was published: our process ended with SIGKILL"
    run.end()
    assert list(run.store.glob("mine/*")) == []
    assert list(run.temporary.glob("flambeau-publish-*")) == []  # what it held open stays


@pytest.mark.parametrize(
    ("step", "number"), [("capturing", signal.SIGTERM), ("making", signal.SIGKILL)]
)
def test_a_killed_caller_leaves_nothing(step: str, number: signal.Signals, tmp_path: Path) -> None:
    run = Run(tmp_path, step)
    assert run.line().startswith(step)

    run.program.send_signal(number)

    run.check_nothing_is_left()


def test_two_publishes_at_once_get_two_numbers(tmp_path: Path) -> None:
    found: list[int] = []

    def publish(seed: int) -> None:
        torch.manual_seed(seed)
        net = nn.Linear(4, 3).eval()
        version = flambeau.publish(
            net, torch.randn(4, 4), name="mine", to=tmp_path, artifacts=["onnx"], progress=False
        )
        found.append(version.version)

    threads = [threading.Thread(target=publish, args=(seed,)) for seed in (1, 2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(200)

    assert sorted(found) == [1, 2]


def test_a_store_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")

    with pytest.raises(PublishError) as refused:
        flambeau.publish(
            nn.Linear(4, 3).eval(),
            torch.randn(4, 4),
            name="mine",
            to=tmp_path / "file" / "store",
            progress=False,
        )

    assert "nothing was published" in str(refused.value)
    assert str(tmp_path / "file") in str(refused.value)
    assert "\n" not in str(refused.value)
