"""ONNX on a GPU: the CPU's answers, and outputs that belong to the caller."""

import itertools
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import onnxruntime
import pytest

from services.inference.backends.device import Device
from services.inference.backends.gpu.cuda_onnx import CudaOnnxBackend
from services.inference.backends.open_options import OpenOptions
from tests.fixtures import onnx_models
from tests.fixtures.misbehaving_models import SIGNATURE, TRIGGER, WIDTH, not_a_number
from tests.fixtures.verified_artifacts import verified
from tests.gpu.closeness import assert_close


@pytest.fixture(autouse=True)
def provider(gpu: Device) -> None:
    """Skips without the provider of `onnxruntime-gpu`."""
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has no CUDA: onnxruntime-gpu is not installed")


@pytest.fixture
def backend(gpu: Device) -> Iterator[CudaOnnxBackend]:
    backend = CudaOnnxBackend(verified(not_a_number(), SIGNATURE), OpenOptions(device=gpu))
    yield backend
    backend.close()


def test_batches_of_any_size_are_right_and_stay(backend: CudaOnnxBackend) -> None:
    found = []
    for count in (3, 1, 64, 2):
        x = backend.buffer("x", (count, WIDTH), np.dtype(np.float32))
        x[:] = np.arange(count)[:, None] % TRIGGER
        found.append((x.copy(), backend.run({"x": x})["y"]))
    for x, y in found:
        assert y.tolist() == (2 * x).tolist()


def test_it_is_the_gpu_that_runs_it(
    gpu: Device, sessions: list[onnxruntime.InferenceSession]
) -> None:
    CudaOnnxBackend(verified(not_a_number(), SIGNATURE), OpenOptions(device=gpu)).close()
    (session,) = sessions
    assert session.get_providers()[0] == "CUDAExecutionProvider"


def test_many_layers_agree_with_the_cpu(gpu: Device) -> None:
    data = onnx_models.linear(3.0, layers=4)
    backend = CudaOnnxBackend(verified(data, SIGNATURE), OpenOptions(device=gpu))
    on_cpu = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    for count, seed in itertools.product((1, 16), range(2)):
        x = np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)
        right = on_cpu.run(["y"], {"x": x})[0]
        assert_close(backend.run({"x": x})["y"], right)
    backend.close()


def test_a_killed_session_raises(backend: CudaOnnxBackend) -> None:
    backend.kill()
    with pytest.raises(Exception, match="terminate"):
        backend.run({"x": np.ones((1, WIDTH), np.float32)})


def test_a_twin_runs_beside_its_original_in_one_session(
    gpu: Device, sessions: list[onnxruntime.InferenceSession]
) -> None:
    data = onnx_models.linear(3.0, layers=4)
    original = CudaOnnxBackend(verified(data, SIGNATURE), OpenOptions(device=gpu))
    twin = original.twin()
    assert twin is not None
    assert len(sessions) == 1
    on_cpu = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])

    def serve(backend: CudaOnnxBackend, seed: int) -> None:
        for count in (1, 7, 32, 16) * 20:
            x = np.random.default_rng(seed).normal(size=(count, WIDTH)).astype(np.float32)
            assert_close(backend.run({"x": x})["y"], on_cpu.run(["y"], {"x": x})[0])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(serve, (original, twin), range(2)))
    original.close()
    serve(twin, 3)
    twin.close()
