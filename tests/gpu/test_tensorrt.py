"""ONNX by TensorRT on a GPU: the CPU's answers at every size, from engines that are kept."""

import time
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from services.inference.backends.device import Device
from services.inference.backends.gpu.cuda_onnx import CudaOnnxBackend
from services.inference.backends.onnx_providers import TENSORRT, OnnxOnGpu
from services.inference.backends.open_options import OpenOptions
from tests.fixtures import onnx_models
from tests.fixtures.misbehaving_models import SIGNATURE, WIDTH
from tests.fixtures.verified_artifacts import verified
from tests.gpu.closeness import assert_close


@pytest.fixture(autouse=True)
def provider(gpu: Device) -> None:
    """Skips without the provider of `onnxruntime-gpu` and `tensorrt`."""
    if TENSORRT not in onnxruntime.get_available_providers():
        pytest.skip("this ONNX Runtime has no TensorRT: onnxruntime-gpu is not installed")
    pytest.importorskip("tensorrt", reason="the package tensorrt is not installed")


def opened(gpu: Device, folder: Path) -> CudaOnnxBackend:
    how = OnnxOnGpu(providers=("tensorrt", "cuda"), engine_cache=str(folder))
    data = onnx_models.linear(3.0, layers=4)
    return CudaOnnxBackend(
        verified(data, SIGNATURE, digest="ab" * 32), OpenOptions(device=gpu, onnx_on_gpu=how)
    )


def test_engines_answer_as_the_cpu_at_every_size_and_are_kept(
    gpu: Device, tmp_path: Path, sessions: list[onnxruntime.InferenceSession]
) -> None:
    data = onnx_models.linear(3.0, layers=4)
    on_cpu = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
    took_s = []
    for _ in range(2):
        begun = time.monotonic()
        backend = opened(gpu, tmp_path)
        took_s.append(time.monotonic() - begun)
        assert sessions[-1].get_providers()[0] == TENSORRT
        for count in (1, 7, 64):
            x = np.random.default_rng(count).normal(size=(count, WIDTH)).astype(np.float32)
            right = on_cpu.run(["y"], {"x": x})[0]
            assert_close(backend.run({"x": x})["y"], right, tolerance=0.05)  # it may be TF32
        backend.close()
        engines = [path for path in tmp_path.iterdir() if path.suffix == ".engine"]
        assert engines
        assert all(path.name.startswith("abab") for path in engines)
    assert took_s[1] < took_s[0]
