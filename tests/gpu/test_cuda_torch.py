"""TorchScript on a GPU: the CPU's answers, with graphs and without; faults that are named."""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock, patch

import numpy as np
import numpy.typing as npt
import pytest
import torch

from flambeau.protocol.tensors import Array
from services.errors import DeviceError
from services.inference.backends.device import Device
from services.inference.backends.device_memory import device_memory_bytes
from services.inference.backends.gpu.cuda_torch import CudaTorchBackend
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.isolation.isolated_backend import open_isolated_backend
from tests.fixtures.misbehaving_models import artifact_of
from tests.fixtures.signatures import one_to_one
from tests.fixtures.verified_artifacts import verified
from tests.gpu.closeness import assert_close
from tests.gpu.networks import (
    FEATURES,
    IMAGE,
    Hungry,
    WaitsForGpu,
    convolutions,
    perceptron,
    signature,
    torchscript,
)


def random_rows(count: int, seed: int = 0) -> npt.NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=(count, FEATURES)).astype(np.float32)


@pytest.fixture
def backend(gpu: Device) -> Iterator[CudaTorchBackend]:
    backend = CudaTorchBackend(
        verified(torchscript(perceptron()), signature(), "torchscript"), OpenOptions(device=gpu)
    )
    yield backend
    backend.close()


@pytest.fixture
def replays() -> Iterator[Mock]:
    """Records the replays of CUDA graphs."""
    graph = torch.cuda.CUDAGraph
    with patch.object(graph, "replay", autospec=True, side_effect=graph.replay) as recorded:
        yield recorded


def right(x: Array, network: torch.nn.Module | None = None) -> Array:
    with torch.inference_mode():
        result: Array = (network or perceptron())(torch.from_numpy(x)).numpy()
    return result


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 31, 32])
def test_it_answers_as_the_cpu_does(backend: CudaTorchBackend, replays: Mock, count: int) -> None:
    for seed in range(3):
        x = random_rows(count, seed)
        buffer = backend.buffer("x", x.shape, x.dtype)
        buffer[:] = x
        assert_close(backend.run({"x": buffer})["y"], right(x))
    assert replays.called, "no graph was captured"


@pytest.mark.parametrize("example", [(), (torch.ones(2, *IMAGE),)], ids=["scripted", "traced"])
def test_convolutions_compute_in_fp32(gpu: Device, example: tuple[torch.Tensor, ...]) -> None:
    """As the artifact was verified: TF32 keeps 10 bits, an error of 1e-3 of the largest output."""
    network = convolutions()
    backend = CudaTorchBackend(
        verified(torchscript(network, *example), one_to_one(IMAGE, rows=32), "torchscript"),
        OpenOptions(device=gpu),
    )
    for count in (1, 8, 32):
        x = np.random.default_rng(count).normal(size=(count, *IMAGE)).astype(np.float32)
        answer = right(x, network)
        assert_close(backend.run({"x": x})["y"], answer, tolerance=2e-5 * np.abs(answer).max())
    backend.close()


def test_any_array_is_run_and_outputs_stay(backend: CudaTorchBackend) -> None:
    x = random_rows(4)
    read_only = np.frombuffer(x.tobytes(), np.float32).reshape(x.shape)
    first = backend.run({"x": read_only})["y"]
    backend.run({"x": random_rows(4, seed=1)})
    assert_close(first, right(x))


def test_a_model_that_waits_for_the_gpu_runs_without_a_graph(
    gpu: Device, replays: Mock, caplog: pytest.LogCaptureFixture
) -> None:
    """Its capture breaks off, and torch's allocator must not go on believing in it."""
    waiting = CudaTorchBackend(
        verified(torchscript(WaitsForGpu()), signature(), "torchscript"), OpenOptions(device=gpu)
    )
    x = random_rows(2)
    with caplog.at_level(logging.WARNING, "flambeau.cuda"):
        for _ in range(2):
            assert_close(waiting.run({"x": x})["y"], x + x)
        x[0, 0] = 2000
        assert_close(waiting.run({"x": x})["y"], x + x + x, tolerance=1e-3)
    assert [record.name for record in caplog.records] == ["flambeau.cuda"]
    torch.rand(1, device=str(gpu))  # whose generator the capture had taken
    waiting.close()
    assert replays.call_count == 0
    after_it = CudaTorchBackend(
        verified(torchscript(perceptron()), signature(), "torchscript"), OpenOptions(device=gpu)
    )
    x = random_rows(2)
    assert_close(after_it.run({"x": x})["y"], right(x))
    assert replays.call_count == 1
    after_it.close()


def test_a_full_gpu_is_a_device_error_and_the_backend_goes_on(gpu: Device) -> None:
    backend = CudaTorchBackend(
        verified(torchscript(Hungry()), signature(), "torchscript"),
        OpenOptions(device=gpu, preferred_batch_sizes=(2,)),
    )
    with pytest.raises(DeviceError, match="CUDA out of memory"):
        backend.run({"x": random_rows(3)})
    x = random_rows(2)
    assert_close(backend.run({"x": x})["y"], x + x)
    backend.close()


def test_a_graph_that_does_not_fit_is_a_device_error(gpu: Device) -> None:
    backend = CudaTorchBackend(
        verified(torchscript(Hungry()), signature(), "torchscript"),
        OpenOptions(device=gpu, preferred_batch_sizes=(3,)),
    )
    with pytest.raises(DeviceError, match="CUDA out of memory"):
        backend.run({"x": random_rows(3)})
    backend.close()


def test_instances_share_a_gpu(gpu: Device) -> None:
    network = perceptron()  # made once: its weights come from the generator that threads share
    data = torchscript(network)

    def serve(seed: int) -> None:
        backend = CudaTorchBackend(
            verified(data, signature(), "torchscript"), OpenOptions(device=gpu)
        )
        for count in (1, 7, 32, 16) * 5:
            x = random_rows(count, seed)
            assert_close(backend.run({"x": x})["y"], right(x, network))
        backend.close()

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(serve, range(4)))


def test_a_twin_runs_beside_its_original_with_the_same_weights(gpu: Device) -> None:
    network = torch.nn.Sequential(*(torch.nn.Linear(FEATURES, FEATURES) for _ in range(3)))
    original = CudaTorchBackend(
        verified(torchscript(network), signature(), "torchscript"), OpenOptions(device=gpu)
    )
    twin = original.twin()
    assert twin is not None

    def serve(backend: CudaTorchBackend) -> None:
        for count in (1, 7, 32, 16) * 20:
            x = random_rows(count, seed=id(backend) % 2**32)
            assert_close(backend.run({"x": x})["y"], right(x, network))

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(serve, (original, twin)))
    original.close()
    serve(twin)
    twin.close()


def test_memory_is_measured_and_given_back(gpu: Device) -> None:
    waiting = CudaTorchBackend(
        verified(torchscript(WaitsForGpu()), signature(), "torchscript"), OpenOptions(device=gpu)
    )
    waiting.run(
        {"x": random_rows(2)}
    )  # its capture breaks off, and memory is returned all the same
    waiting.close()
    before = device_memory_bytes(gpu)
    assert 0 < before.used_bytes < before.total_bytes
    large = torchscript(torch.nn.Linear(FEATURES, 1 << 20))  # 256 MiB of weights
    backend = CudaTorchBackend(verified(large, signature(), "torchscript"), OpenOptions(device=gpu))
    assert device_memory_bytes(gpu).used_bytes - before.used_bytes > 200 * 2**20
    backend.close()
    assert device_memory_bytes(gpu).used_bytes - before.used_bytes < 64 * 2**20


def test_a_worker_process_has_a_gpu_too(gpu: Device, tmp_path: Path) -> None:
    data = torchscript(perceptron())
    artifact = artifact_of(tmp_path, data)
    x = random_rows(5)
    isolated = open_isolated_backend(
        VerifiedArtifact(entry=artifact, signature=signature(), data=data), OpenOptions(device=gpu)
    )
    try:
        found = isolated.run({"x": x})["y"]
    finally:
        isolated.close()
    own = open_backend(
        VerifiedArtifact(entry=artifact, signature=signature(), data=data), OpenOptions()
    )
    assert_close(found, own.run({"x": x})["y"])
