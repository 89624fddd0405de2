"""The backends on the CPU, with real artifacts."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from services.inference.backends.backend import Backend
from services.inference.backends.device import CPU
from services.inference.backends.device_memory import device_memory_bytes
from services.inference.backends.onnx_runtime import OnnxRuntimeBackend
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from tests.fixtures import misbehaving_models
from tests.fixtures.misbehaving_models import SIGNATURE, TRIGGER, WIDTH, artifact_of
from tests.fixtures.onnx_models import linear
from tests.fixtures.verified_artifacts import verified

LARGEST = 16384
ARTIFACTS = {
    "onnx": misbehaving_models.not_a_number,
    "torchscript": misbehaving_models.well_behaved,
}


def opened(folder: Path, data: bytes) -> Backend:
    return open_backend(
        VerifiedArtifact(entry=artifact_of(folder, data), signature=SIGNATURE, data=data),
        OpenOptions(),
    )


def rows(*values: float) -> Array:
    return np.repeat(np.array(values, np.float32)[:, None], WIDTH, axis=1)


@pytest.fixture(params=ARTIFACTS)
def backend(request: pytest.FixtureRequest, tmp_path: Path) -> Backend:
    return opened(tmp_path, ARTIFACTS[request.param]())


def test_a_filled_buffer_is_run(backend: Backend) -> None:
    x = backend.buffer("x", (3, WIDTH), np.dtype(np.float32))
    x[:] = rows(1, 2, 3)
    assert backend.run({"x": x})["y"].tolist() == rows(2, 4, 6).tolist()


def test_the_bytes_of_a_request_are_run_as_they_are(backend: Backend) -> None:
    x = np.frombuffer(rows(4).tobytes(), np.float32).reshape(1, WIDTH)
    assert not x.flags.writeable
    assert backend.run({"x": x})["y"].tolist() == rows(8).tolist()


def test_a_later_run_leaves_earlier_outputs_alone(backend: Backend) -> None:
    first = backend.buffer("x", (2, WIDTH), np.dtype(np.float32))
    first[:] = 1
    outputs = backend.run({"x": first})
    second = backend.buffer("x", (2, WIDTH), np.dtype(np.float32))
    second[:] = 5
    backend.run({"x": second})
    assert outputs["y"].tolist() == rows(2, 2).tolist()


def test_a_run_of_onnx_runtime_that_blocks_can_be_ended(tmp_path: Path) -> None:
    backend = opened(tmp_path, misbehaving_models.blocking())
    assert backend.run({"x": rows(1)})["y"].tolist() == rows(2).tolist()
    raised: list[Exception] = []

    def run() -> None:
        try:
            backend.run({"x": rows(TRIGGER)})
        except Exception as error:  # whatever the runtime raises
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    assert thread.ident is not None
    clock = time.pthread_getcpuclockid(thread.ident)
    while time.clock_gettime(clock) < 0.05:  # it runs, and does not merely start
        assert thread.is_alive()
    backend.kill()
    thread.join(10)
    assert not thread.is_alive()
    assert "terminate" in str(raised[0])


def test_onnx_runtime_keeps_no_more_memory_than_its_largest_batch_took() -> None:
    x, y = (TensorSpec(name=name, datatype="FP32", shape=(-1, 4)) for name in "xy")
    signature = Signature(inputs=(x,), outputs=(y,), max_batch_size=LARGEST)
    large = OnnxRuntimeBackend(verified(linear(layers=3, width=256), signature), OpenOptions())

    def run(*batches: int) -> None:
        for count in batches:
            large.run({"x": np.zeros((count, 4), np.float32)})

    run(LARGEST, 1, 1, 64, 64)
    before = device_memory_bytes(CPU).used_bytes
    run(9000, 9000, 12000, 12000, LARGEST, LARGEST)
    grown = device_memory_bytes(CPU).used_bytes - before
    assert grown < 8 * 2**20  # the outputs of one layer are 16


def test_what_a_model_raises_is_raised(tmp_path: Path) -> None:
    backend = opened(tmp_path, misbehaving_models.raising())
    with pytest.raises(Exception, match="out of data bounds"):
        backend.run({"x": rows(1, TRIGGER)})
    assert backend.run({"x": rows(1)})["y"].tolist() == rows(2).tolist()


def test_lost_rows_and_numbers_that_are_none_come_back_as_they_are(tmp_path: Path) -> None:
    """Checking them is the worker's part; this proves what the test artifacts do."""
    losing = opened(tmp_path, misbehaving_models.losing_rows())
    assert losing.run({"x": rows(1, TRIGGER, 3)})["y"].tolist() == rows(2, 6).tolist()
    nan = opened(tmp_path, misbehaving_models.not_a_number())
    assert np.isnan(nan.run({"x": rows(1, TRIGGER)})["y"]).all(axis=1).tolist() == [False, True]
