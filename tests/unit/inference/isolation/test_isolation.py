"""A model in a process of its own: correct in normal operation, and contained when it crashes."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.tensors import Array
from services.errors import BackendError, DeviceError, WorkerProcessDiedError
from services.inference.backends.device import CPU, Device
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.isolation.isolated_backend import IsolatedBackend, open_isolated_backend
from services.low_priority_thread import STEPS_BELOW_LOOP
from tests.fixtures import misbehaving_models
from tests.fixtures.misbehaving_models import SIGNATURE, TRIGGER, WIDTH, artifact_of
from tests.fixtures.worker_processes import children_of, wait_until_busy, wait_until_ended

FLOAT = np.dtype(np.float32)


def opened(folder: Path, data: bytes, device: Device = CPU, **how: Any) -> IsolatedBackend:
    return open_isolated_backend(
        VerifiedArtifact(entry=artifact_of(folder, data), signature=SIGNATURE, data=data),
        OpenOptions(device=device),
        **how,
    )


def rows(*values: float) -> Array:
    return np.repeat(np.array(values, np.float32)[:, None], WIDTH, axis=1)


def doubles(backend: IsolatedBackend) -> bool:
    return bool((backend.run({"x": rows(1, 2)})["y"] == rows(2, 4)).all())


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IsolatedBackend]:
    """Runs one process for the tests that do not damage it."""
    backend = opened(tmp_path_factory.mktemp("raising"), misbehaving_models.raising())
    yield backend
    backend.close()


@pytest.fixture
def blocking(tmp_path: Path) -> Iterator[IsolatedBackend]:
    backend = opened(tmp_path, misbehaving_models.blocking())
    yield backend
    backend.kill()
    backend.close()


def test_it_says_what_runs_in_it(shared: IsolatedBackend) -> None:
    assert shared.platform == "onnx_onnxv1"
    assert shared.pid in children_of(os.getpid())
    assert shared.process_bytes() > 2**20


@pytest.mark.skipif(sys.platform != "linux", reason="priorities are handed on so on Linux only")
def test_it_runs_behind_the_event_loop_of_its_parent(shared: IsolatedBackend) -> None:
    behind = min(os.getpriority(os.PRIO_PROCESS, 0) + STEPS_BELOW_LOOP, 19)
    assert os.getpriority(os.PRIO_PROCESS, shared.pid) == behind


def test_a_buffer_is_filled_in_place_and_run(shared: IsolatedBackend) -> None:
    for count in (1, 64, 3):
        x = shared.buffer("x", (count, WIDTH), FLOAT)
        x[:] = np.arange(count)[:, None] % TRIGGER
        assert shared.run({"x": x})["y"].tolist() == (2 * x).tolist()


def test_any_other_array_is_run(shared: IsolatedBackend) -> None:
    read_only = np.frombuffer(rows(3).tobytes(), np.float32).reshape(1, WIDTH)
    assert shared.run({"x": read_only})["y"].tolist() == rows(6).tolist()
    buffer = shared.buffer("x", (3, WIDTH), FLOAT)
    buffer[:] = rows(1, 2, 3)
    assert shared.run({"x": buffer[1:]})["y"].tolist() == rows(4, 6).tolist()
    assert shared.run({"x": rows(1, 9, 2, 9)[::2]})["y"].tolist() == rows(2, 4).tolist()


def test_a_later_run_leaves_earlier_outputs_alone(shared: IsolatedBackend) -> None:
    first = shared.run({"x": rows(1, 2)})["y"]
    shared.run({"x": rows(7, 8)})
    assert first.tolist() == rows(2, 4).tolist()


def test_what_the_model_raises_comes_back_and_the_process_goes_on(shared: IsolatedBackend) -> None:
    with pytest.raises(BackendError, match="out of data bounds") as caught:
        shared.run({"x": rows(1, TRIGGER)})
    assert not isinstance(caught.value, DeviceError)
    assert doubles(shared)


def test_it_outlives_the_signals_a_whole_server_gets(shared: IsolatedBackend) -> None:
    """The parent drains after them, and needs it for that."""
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(shared.pid, number)
        assert doubles(shared)


def test_a_crash_is_named_and_harms_nothing_else(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], shared: IsolatedBackend
) -> None:
    backend = opened(tmp_path, misbehaving_models.crashing())
    assert doubles(backend)
    with pytest.raises(
        WorkerProcessDiedError, match=r"'torchscript' \(pid \d+\) was ended by SIGSEGV"
    ):
        backend.run({"x": rows(TRIGGER)})
    assert "Segmentation fault" in capfd.readouterr().err
    with pytest.raises(WorkerProcessDiedError, match="SIGSEGV"):
        backend.run({"x": rows(1)})
    with pytest.raises(WorkerProcessDiedError, match="SIGSEGV"):
        backend.buffer("x", (1024, WIDTH), FLOAT)
    backend.close()
    assert doubles(shared)


def test_a_process_killed_from_outside_is_named(blocking: IsolatedBackend) -> None:
    os.kill(blocking.pid, signal.SIGKILL)
    with pytest.raises(WorkerProcessDiedError, match="SIGKILL, which the kernel sends when memory"):
        blocking.run({"x": rows(1)})
    assert blocking.process_bytes() == 0


def test_a_run_that_blocks_ends_when_another_thread_kills_it(blocking: IsolatedBackend) -> None:
    assert doubles(blocking)
    raised: list[Exception] = []

    def run() -> None:
        try:
            blocking.run({"x": rows(TRIGGER)})
        except WorkerProcessDiedError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    wait_until_busy(blocking.pid)
    assert thread.is_alive()
    blocking.kill()
    thread.join(10)
    assert "was ended by this server (SIGKILL)" in str(raised[0])


def test_closing_ends_the_process_and_frees_what_it_had(tmp_path: Path) -> None:
    descriptors = set(os.listdir("/proc/self/fd"))
    backend = opened(tmp_path, misbehaving_models.not_a_number())
    assert doubles(backend)
    backend.close()
    backend.close()
    assert backend.pid not in children_of(os.getpid())
    with pytest.raises(WorkerProcessDiedError, match="exit code 0"):
        backend.run({"x": rows(1)})
    del backend
    assert set(os.listdir("/proc/self/fd")) <= descriptors


PARENT = """
import pathlib, sys, numpy
from model_store.manifest import Artifact
from flambeau.protocol.signature import Signature
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.isolation.isolated_backend import open_isolated_backend
data = pathlib.Path(sys.argv[3]).read_bytes()
artifact = Artifact.model_validate_json(sys.argv[1])
signature = Signature.model_validate_json(sys.argv[2])
verified = VerifiedArtifact(entry=artifact, signature=signature, data=data)
backend = open_isolated_backend(verified, OpenOptions())
print(backend.pid, flush=True)
backend.run({"x": numpy.full((1, 4), 13, numpy.float32)})
"""


def test_it_ends_with_its_parent_even_in_the_middle_of_a_run(tmp_path: Path) -> None:
    artifact = artifact_of(tmp_path, misbehaving_models.blocking())
    facts = [artifact.model_dump_json(), SIGNATURE.model_dump_json()]
    command = [sys.executable, "-c", PARENT, *facts, str(tmp_path / artifact.file.file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        wait_until_busy(pid)
        parent.kill()
    assert wait_until_ended(pid)


def test_an_artifact_that_does_not_open_says_why_and_leaves_no_process(tmp_path: Path) -> None:
    before = children_of(os.getpid())
    with pytest.raises(BackendError, match="is not ONNX, or broken") as caught:
        opened(tmp_path, b"no model")
    assert not isinstance(caught.value, DeviceError)
    assert children_of(os.getpid()) == before


def test_a_device_that_is_not_there_is_a_device_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match="device cuda:99"):
        opened(tmp_path, misbehaving_models.raising(), Device("cuda", 99))


def test_a_process_that_ends_before_it_opens_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(WorkerProcessDiedError, match="ended with exit code 1"):
        opened(tmp_path, misbehaving_models.raising())


def test_opening_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = tmp_path / "idle"
    idle.write_text("#!/bin/sh\nexec sleep 1000\n")
    idle.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(idle))
    before = children_of(os.getpid())
    with pytest.raises(DeviceError, match=r"'onnx' did not open within 0\.1 s"):
        opened(tmp_path, misbehaving_models.raising(), timeout_s=0.1)
    assert children_of(os.getpid()) == before
