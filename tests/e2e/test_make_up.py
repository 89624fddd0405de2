"""`make up`, `flambeau up` and `up-split` as processes: those left while serving, and the end."""

import os
import re
import select
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
import yaml

from services.resident_memory import resident_bytes
from tests.e2e.rest_calls import infer, tensor
from tests.fixtures.fresh_clone import link_clone
from tests.fixtures.onnx_models import publish, slow_lookup
from tests.fixtures.servers import COMMAND, ROOT, START_TIMEOUT_S, ServerProcess

FREE_PORTS = "--set http_port=0 --set grpc_port=0 --set metrics_port=0"
DIGITS = ROOT / "training/recipes/digits_cnn.yaml"
TRAINED_S = 240.0
MOST_BYTES = 200 * 2**20
"""Limit for a server with one small model: it uses 115 MB, and would use 400 more with torch."""
SOON_S = 20.0
"""Limit in seconds; a start that waits for a missing part takes a minute."""
WORK = 100_000
"""Matrix products: about a second of a model's time."""


def processes() -> dict[int, tuple[int, int]]:
    """Returns parent and session of every process that has not ended."""
    found = {}
    for folder in Path("/proc").iterdir():
        try:
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
        except (OSError, NotADirectoryError):  # it has ended, or is no process
            continue
        if folder.name.isdigit() and fields[0] != "Z":
            found[int(folder.name)] = (int(fields[1]), int(fields[3]))
    return found


def of_session(session: int) -> set[int]:
    """Returns every process of a session."""
    return {pid for pid, (_, own) in processes().items() if own == session}


def descendants(ancestor: int) -> dict[int, str]:
    """Returns every descendant of a process, with its command line."""
    parents = {pid: parent for pid, (parent, _) in processes().items()}
    below: dict[int, str] = {}
    for pid in sorted(parents):
        above = pid
        while above in parents and above != ancestor:
            above = parents[above]
        if above == ancestor and pid != ancestor:
            below[pid] = Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    return below


def await_end(pid: int) -> None:
    """Waits for the end of a process that is not a child of this one."""
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            ready, _, _ = select.select([descriptor], [], [], START_TIMEOUT_S)
        finally:
            os.close(descriptor)
        assert ready, f"{pid} goes on"


def start(command: list[str], folder: Path) -> "subprocess.Popen[str]":
    """Starts a command in a session of its own."""
    return subprocess.Popen(
        command,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


@contextmanager
def running(command: list[str], folder: Path) -> Iterator[ServerProcess]:
    """Runs a command that becomes a server, in a session of its own."""
    process = start(command, folder)
    server = ServerProcess(process)
    try:
        server.output.wait_for(lambda line: line.startswith("  metrics"), TRAINED_S)
        server.await_ports()
        yield server
    finally:
        for pid in of_session(process.pid):
            os.kill(pid, signal.SIGKILL)
        server.wait()


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Creates a clone with a model in its store, so that nothing is trained."""
    folder = tmp_path / "clone"
    folder.mkdir()
    publish(str(link_clone(folder) / "var/model_store"), "lookup", slow_lookup())
    return folder


def ask(server: ServerProcess) -> int:
    """Returns the status of a request that takes about a second."""
    index = tensor("index", "INT64", [1], [1])
    return infer(server, "lookup", tensor("work", "INT64", [1], [WORK]), index).status


def test_sigterm_to_make_drains_the_server_and_ends_both(clone: Path) -> None:
    with (
        running(["make", "up", f"ARGS={FREE_PORTS}"], clone) as make,
        ThreadPoolExecutor(1) as threads,
    ):
        accepted = threads.submit(ask, make)
        make.wait_for_metric(1, "flambeau_in_flight_requests")
        make.ask_to_stop(signal.SIGTERM)
        assert make.wait() == -signal.SIGTERM
        assert of_session(make.pid) == set()
        assert accepted.result() == 200


@pytest.mark.long
def test_two_up_splits_run_side_by_side_on_free_ports_and_leave_nothing(tmp_path: Path) -> None:
    """Each in a folder of its own, as two checkouts on one machine."""
    with ExitStack() as stack:
        splits = [stack.enter_context(running_split(tmp_path / name)) for name in ("one", "two")]
        for split in splits:
            assert ask(split) == 200
        for split in splits:
            below = descendants(split.pid)
            assert len(below) == 4, "Redis, a worker, a gateway and a registry"
            split.ask_to_stop()
            assert split.wait() == 0, split.errors.all()
            assert not below.keys() & processes().keys()


def test_a_redis_that_cannot_read_its_files_is_told_at_once(tmp_path: Path) -> None:
    publish(str(tmp_path / "store"), "lookup", slow_lookup())
    kept = tmp_path / "var/split/appendonlydir"
    kept.mkdir(parents=True)
    (kept / "appendonly.aof.manifest").write_text(
        "file appendonly.aof.1.base.rdb seq 1 type b\nfile appendonly.aof.1.incr.aof seq 1 type i\n"
    )
    (kept / "appendonly.aof.1.base.rdb").write_bytes(b"FUTURE999 of a program that is newer")
    (kept / "appendonly.aof.1.incr.aof").touch()
    command = [COMMAND, "up-split", f"--store={tmp_path / 'store'}", *FREE_PORTS.split()]
    started = time.monotonic()
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert time.monotonic() - started < SOON_S
    assert (done.returncode, done.stdout) == (1, "")
    assert "has ended (exit code 1), see var/split/redis.log: " in done.stderr
    assert "reading the append only file" in done.stderr
    assert "or move the folder away" in done.stderr


def test_a_redis_that_dies_ends_all_with_its_last_words(tmp_path: Path) -> None:
    with running_split(tmp_path) as split:
        below = descendants(split.pid)
        (redis,) = (
            pid
            for pid, command in below.items()
            if "redis.sock" in command and "python" not in command
        )
        started = time.monotonic()
        os.kill(redis, signal.SIGKILL)
        assert split.wait() == 1
        assert time.monotonic() - started < SOON_S
        assert "has ended (signal 9), see var/split/redis.log: " in split.errors.all()[-1]
        assert not below.keys() & processes().keys()


@contextmanager
def running_split(folder: Path) -> Iterator[ServerProcess]:
    """Runs `flambeau up-split` in a folder; yields once it serves and its REST port is known."""
    publish(str(folder / "store"), "lookup", slow_lookup())
    options = [f"--store={folder / 'store'}", "--gateways=1", "--workers=1", "--no-load"]
    split = ServerProcess(start([COMMAND, "up-split", *options, *FREE_PORTS.split()], folder))
    try:
        split.output.wait_for(lambda line: line.startswith("Ctrl-C"), START_TIMEOUT_S)
        line = split.output.wait_for(lambda line: line.startswith("gateway 0"))
        split.http_port = int(re.findall(r"REST http://127.0.0.1:(\d+)", line)[0])
        yield split
    finally:
        below = descendants(split.pid)
        for pid in (split.pid, *below):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        split.wait()


def test_sigterm_during_the_training_ends_it_too(tmp_path: Path) -> None:
    command = [COMMAND, "up", f"--store={tmp_path / 'store'}", *FREE_PORTS.split()]
    up = ServerProcess(start(command, tmp_path))
    try:
        up.output.wait_for(lambda line: "epoch" in line, TRAINED_S)
        below = descendants(up.pid)
        assert any(" train " in line for line in below.values()), below
        up.ask_to_stop()
        assert up.wait() == 128 + signal.SIGTERM
        assert not below.keys() & processes().keys()
        assert up.errors.all()[-1] == "interrupted; the same command resumes from here"
    finally:
        up.process.kill()
        up.wait()


@pytest.mark.long
def test_up_again_goes_on_with_an_interrupted_training_and_says_so_at_once(tmp_path: Path) -> None:
    command = [COMMAND, "up", f"--store={tmp_path / 'store'}", *FREE_PORTS.split()]
    for resumed in (False, True):
        up = ServerProcess(start(command, tmp_path))
        try:
            first = up.output.wait_for(lambda line: bool(line), TRAINED_S)
            assert "store is empty: training " in first
            line = up.output.wait_for(
                lambda line: line.startswith(("resum", "no checkpoint")), TRAINED_S
            )
            assert line.startswith("resuming after epoch " if resumed else "no checkpoint in ")
            up.output.wait_for(lambda line: line.startswith("training "), TRAINED_S)
            up.ask_to_stop(signal.SIGINT)
            assert up.wait() == 128 + signal.SIGINT
            assert up.errors.all()[-1] == "interrupted; the same command resumes from here"
        finally:
            up.process.kill()
            up.wait()


@pytest.mark.parametrize("verb", ["up", "up-split"])
def test_a_taken_port_is_told_before_a_training(tmp_path: Path, verb: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ports = ["--set=http_port=0", f"--set=grpc_port={port}", "--set=metrics_port=0"]
        command = [COMMAND, verb, f"--store={tmp_path / 'store'}", *ports]
        if verb == "up-split":
            command += ["--gateways=1", "--workers=1"]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith(f"error: cannot listen on port {port} (grpc_port")
    assert "training" not in done.stderr


@pytest.mark.long
def test_nothing_of_the_training_is_left_while_a_server_runs(tmp_path: Path) -> None:
    recipe = yaml.safe_load(DIGITS.read_text())
    recipe |= {"train": {"epochs": 1}, "export": [{"kind": "onnx"}], "track": []}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    options = [f"--store={tmp_path / 'store'}", f"--recipe={tmp_path / 'recipe.yaml'}"]
    with running([COMMAND, "up", *options, *FREE_PORTS.split()], tmp_path) as server:
        assert any("published digits 1" in line for line in server.output.all())
        # The server's own process that runs artifacts with limits stays a while after the last one.
        for pid, command in descendants(server.pid).items():
            assert "services.inference.isolation." in command, command[-300:]
            await_end(pid)
        assert descendants(server.pid) == {}
        assert resident_bytes(server.pid) < MOST_BYTES
        server.ask_to_stop()
        assert server.wait() == 0
