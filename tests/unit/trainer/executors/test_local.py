"""Start, output and end of a job's process; a small program replaces torch."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from services.trainer.executors.executor import Failed, Outcome, Stopped, Succeeded
from services.trainer.executors.local import LocalExecutor, job_arguments
from services.trainer.training_job_service import CODE
from tests.fixtures.redis_servers import until
from tests.fixtures.training_jobs import config, job

PROLOGUE = """
import json, os, signal, subprocess, sys, time
events = open(sys.argv[sys.argv.index("--events") + 1], "a")
def tell(**fields):
    print(json.dumps(fields), file=events, flush=True)
"""


class Heard:
    """Remembers what a run tells."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.folder = ""
        self.metrics: list[tuple[int, dict[str, float]]] = []
        self.said = asyncio.Event()

    async def begun(self, folder: str) -> None:
        self.folder = folder

    async def metric(self, epoch: int, metrics: dict[str, float]) -> None:
        self.metrics.append((epoch, metrics))

    async def log(self, line: str) -> None:
        self.lines.append(line)
        self.said.set()


class Runs:
    """Runs programs as jobs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.heard, self.stopping = Heard(), asyncio.Event()

    async def run(self, program: str, epoch: int = 0, **settings: Any) -> Outcome:
        found = config(self._folder, **settings)
        (found.runs_folder / job().id / CODE).mkdir(parents=True, exist_ok=True)
        executor = LocalExecutor(found, PROLOGUE + program)
        return await executor.run(job(epoch=epoch), self.heard, self.stopping)

    @asynccontextmanager
    async def running(
        self, program: str, **settings: Any
    ) -> AsyncIterator["asyncio.Task[Outcome]"]:
        """The same, while the block lasts; the program prints once it is ready."""
        task = asyncio.create_task(self.run(program, **settings))
        await asyncio.wait_for(self.heard.said.wait(), 30)
        yield task
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def runs(tmp_path: Path) -> Runs:
    return Runs(tmp_path)


def is_alive(pid: int) -> bool:
    """Returns True if a process runs; False for a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


async def test_what_a_run_tells_is_heard(runs: Runs, tmp_path: Path) -> None:
    outcome = await runs.run(
        """
print("one\\n\\ntwo\\rthree"); print("x" * 200_000, file=sys.stderr); print(os.getcwd())
tell(kind="begun", folder="/runs/tiny")
tell(kind="metric", epoch=1, metrics={"val/loss": 0.5})
tell(kind="metric", epoch=2, metrics={"val/loss": 0.25})
tell(kind="unheard of")
tell(kind="published", model="tiny", version=4)
""",
        epoch=1,
    )
    assert outcome == Succeeded(4)
    heard = runs.heard
    assert heard.folder == "/runs/tiny"
    assert heard.metrics == [(2, {"val/loss": 0.25})], "the first was told by an attempt before"
    assert heard.lines[0] in ("one", '{"kind": "unheard of"}') or heard.lines[0].startswith("xx")
    assert {"one", "two", "three", '{"kind": "unheard of"}'} <= set(heard.lines)
    assert str(tmp_path / "runs" / job().id / CODE) in heard.lines
    assert max(map(len, heard.lines)) <= 200_000


@pytest.mark.parametrize(
    ("program", "outcome"),
    [
        ('tell(kind="failed", text="no data"); sys.exit(1)', Failed("no data")),
        ('tell(kind="stopped", text="after epoch 1"); sys.exit(75)', Stopped()),
        (
            'print("Bus is late"); sys.exit(3)',
            Failed(
                "its process exited with status 3 and published nothing; its last line: Bus is late"
            ),
        ),
        ("os.kill(os.getpid(), 9)", Failed("its process was ended by SIGKILL (out of memory?)")),
        ("pass", Failed("its process exited with status 0 and published nothing")),
    ],
    ids=["failed", "stopped", "status", "killed", "silent"],
)
async def test_how_a_run_ends_is_said(runs: Runs, program: str, outcome: Outcome) -> None:
    assert await runs.run(program) == outcome


GRANDCHILD = """
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print(os.getpid(), child.pid, flush=True)
"""
FOREVER = GRANDCHILD + "time.sleep(600)"


async def test_time_has_a_limit_and_all_that_was_started_ends(runs: Runs) -> None:
    outcome = await runs.run(FOREVER, time_limit_s=1.0)
    assert isinstance(outcome, Failed)
    assert outcome.error.startswith("it took longer than 1 s (time_limit_s")
    for pid in map(int, runs.heard.lines[0].split()):
        await until(lambda pid=pid: not is_alive(pid))  # type: ignore[misc]


async def test_a_run_that_is_done_leaves_nothing_behind(runs: Runs) -> None:
    await runs.run(GRANDCHILD)
    child = int(runs.heard.lines[0].split()[1])
    await until(lambda: not is_alive(child))


async def test_a_cancelled_run_ends_at_once(runs: Runs) -> None:
    async with runs.running(FOREVER) as task:
        task.cancel()
        await asyncio.wait([task])
        assert task.cancelled()
    pid = int(runs.heard.lines[0].split()[0])
    assert not is_alive(pid)


async def test_a_stop_lets_a_run_write_its_checkpoint(runs: Runs) -> None:
    program = """
def stop(*_):
    tell(kind="stopped", text="saved"); os._exit(75)
signal.signal(signal.SIGTERM, stop)
print("ready", flush=True); time.sleep(600)
"""
    async with runs.running(program) as task:
        runs.stopping.set()
        assert await asyncio.wait_for(task, 30) == Stopped()


async def test_a_run_that_does_not_stop_is_ended(runs: Runs) -> None:
    program = "signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(600)"
    async with runs.running(program, drain_timeout_s=0.2) as task:
        runs.stopping.set()
        assert await asyncio.wait_for(task, 30) == Stopped()


def test_a_run_ends_with_who_started_it() -> None:
    """Standard input is the lifeline: its end is the end of the whole group."""
    wait = "print(1, flush=True); lifeline._end_with_parent()"
    program = f"from training.distributed import lifeline; {wait}"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdin is not None
        process.stdout.readline()
        assert process.poll() is None
        process.stdin.close()
        assert process.wait(30) == -signal.SIGKILL


def test_memory_files_and_descriptors_have_limits(tmp_path: Path) -> None:
    program = """
import sys
from training.job import set_limits
set_limits(memory_bytes=200 << 20, file_bytes=1000, open_files=64)
def says(call):
    try:
        call()
    except (MemoryError, OSError) as error:
        print(type(error).__name__, getattr(error, "errno", ""))
def write():
    with open(sys.argv[1], "wb") as file:
        file.write(bytes(2000))
says(lambda: bytearray(300 << 20))
says(write)
says(lambda: [open("/dev/null") for _ in range(100)])
"""
    found = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "file")],
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    assert found.stdout.split("\n") == ["MemoryError ", "OSError 27", "OSError 24", ""]
    assert os.path.getsize(tmp_path / "file") <= 1000


def test_a_job_is_told_what_data_it_may_read(tmp_path: Path) -> None:
    lent = config(tmp_path, data_folders=("/lent", "sets"))
    told = [word for word in job_arguments(job(), lent) if word.startswith("--data-folder")]
    assert told == ["--data-folder=/lent", f"--data-folder={Path('sets').absolute()}"]


def test_no_job_starts_while_the_store_is_not_mounted(tmp_path: Path) -> None:
    found = config(tmp_path)
    store, volume = Path(found.store_url), tmp_path / "volume"
    (store / "digits").mkdir(parents=True)
    (found.runs_folder / job().id / CODE).mkdir(parents=True)
    executor = LocalExecutor(found, PROLOGUE + "tell(kind='published', model='m', version=1)")
    store.rename(volume)
    store.mkdir()
    outcome = asyncio.run(executor.run(job(), Heard(), asyncio.Event()))
    assert isinstance(outcome, Failed)
    assert "its volume is not mounted" in outcome.error
    store.rmdir()
    volume.rename(store)
    assert isinstance(asyncio.run(executor.run(job(), Heard(), asyncio.Event())), Succeeded)
