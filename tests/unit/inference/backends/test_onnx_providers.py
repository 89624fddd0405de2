"""TensorRT before CUDA: what it is told, and what happens where it cannot be had."""

import logging
import os
import re
import stat
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from flambeau.protocol.signature import Padding, Signature, TensorSpec
from services.errors import DeviceError
from services.inference.backends.device import CPU, Device
from services.inference.backends.gpu import cuda_device
from services.inference.backends.gpu.cuda_device import gpu_name_and_driver
from services.inference.backends.gpu.cuda_onnx import CudaOnnxBackend
from services.inference.backends.onnx_providers import (
    CUDA,
    TENSORRT,
    OnnxOnGpu,
    session_providers,
    tensorrt_options,
    trim,
)
from services.inference.backends.open_options import OpenOptions
from services.inference.config import InferenceConfig
from services.inference.loading.artifact_choice import choice_key
from services.inference.loading.configured_policy import serving_policy
from services.settings import ConfigError, settings_from
from tests.fixtures.fake_cuda import fake_cuda, onnx_on_cpu
from tests.fixtures.misbehaving_models import SIGNATURE, WIDTH, not_a_number
from tests.fixtures.store_versions import draft_in
from tests.fixtures.verified_artifacts import verified

TOKENS = Signature(
    inputs=(
        TensorSpec(name="tokens", datatype="INT64", shape=(-1, -1)),
        TensorSpec(name="mask", datatype="BOOL", shape=(-1, -1)),
        TensorSpec(name="image", datatype="FP32", shape=(-1, 3, -1, 8)),
    ),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 10)),),
    max_batch_size=32,
    padding=Padding(inputs={"tokens": 1}, mask="mask", buckets=(16, 48)),
    dynamic={"image": {2: (12, 24)}},
)


def options(folder: Path, signature: Signature = TOKENS, **changes: Any) -> dict[str, str]:
    told: dict[str, Any] = {
        "how": OnnxOnGpu(engine_cache=str(folder)),
        "device_index": 1,
        "signature": signature,
        "precision": "fp32",
        "preferred_batch_sizes": (),
        "digest": "ab" * 32,
    }
    return tensorrt_options(**{**told, **changes})


def test_engines_are_built_for_every_size_the_signature_allows(tmp_path: Path) -> None:
    found = options(tmp_path / "engines", preferred_batch_sizes=(8, 64, 4))
    assert found["trt_profile_min_shapes"] == "tokens:1x1,mask:1x1,image:1x3x12x8"
    assert found["trt_profile_opt_shapes"] == "tokens:8x48,mask:8x48,image:8x3x24x8"
    assert found["trt_profile_max_shapes"] == "tokens:32x48,mask:32x48,image:32x3x24x8"
    assert found["device_id"] == "1"
    assert found["trt_engine_cache_path"] == str(tmp_path / "engines")
    assert found["trt_engine_cache_prefix"] == "ab" * 8
    assert stat.S_IMODE((tmp_path / "engines").stat().st_mode) == 0o700


@pytest.mark.parametrize(
    ("precision", "switches"),
    [("fp32", set()), ("fp16", {"trt_fp16_enable"}), ("int8", {"trt_int8_enable"})],
)
def test_an_engine_is_as_narrow_as_its_artifact(
    tmp_path: Path, precision: str, switches: set[str]
) -> None:
    found = options(tmp_path, precision=precision)
    narrow = {"trt_fp16_enable", "trt_int8_enable"}
    assert {name for name in narrow if found.get(name) == "1"} == switches


def test_an_axis_without_a_largest_size_is_named(tmp_path: Path) -> None:
    free = TOKENS.model_copy(update={"dynamic": {}})
    with pytest.raises(DeviceError, match=r"'image' \[-1, 3, -1, 8\] has an axis without a larg"):
        options(tmp_path, free)


def test_the_oldest_engines_leave_until_the_others_fit(tmp_path: Path) -> None:
    for age, name in enumerate(("newest", "newer", "old", "oldest")):
        (tmp_path / name).write_bytes(bytes(100))
        os.utime(tmp_path / name, (1_000_000 - age, 1_000_000 - age))
    trim(tmp_path, 250)
    assert {path.name for path in tmp_path.iterdir()} == {"newest", "newer"}
    options(tmp_path, how=OnnxOnGpu(engine_cache=str(tmp_path), engine_cache_bytes=100))
    assert {path.name for path in tmp_path.iterdir()} == {"newest"}


def test_cuda_follows_tensorrt_and_computes_in_full() -> None:
    (first, cuda) = session_providers(1, {"device_id": "1"})
    assert first == (TENSORRT, {"device_id": "1"})
    name, options = cuda
    assert (name, options["device_id"], options["use_tf32"]) == (CUDA, "1", "0")
    assert options["cudnn_conv_algo_search"] == "HEURISTIC"
    assert session_providers(1, None) == [cuda]


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU in CUDA's place; there is no TensorRT."""
    fake_cuda(monkeypatch)
    onnx_on_cpu(monkeypatch)


def opened(folder: Path) -> CudaOnnxBackend:
    how = OnnxOnGpu(providers=("tensorrt", "cuda"), engine_cache=str(folder))
    made = OpenOptions(onnx_on_gpu=how, preferred_batch_sizes=(2,))
    return CudaOnnxBackend(
        verified(not_a_number(), SIGNATURE, precision="fp16", digest="ab" * 32), made
    )


@pytest.mark.usefixtures("on_cpu")
def test_without_tensorrt_cuda_runs_the_model_and_the_log_says_what_to_install(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "flambeau.cuda"):
        backend = opened(tmp_path)
    (record,) = caplog.records
    assert record.message == "no TensorRT; CUDA runs the model"
    assert "install onnxruntime-gpu in onnxruntime's place, and tensorrt" in record.reason  # type: ignore[attr-defined]
    x = np.ones((2, WIDTH), np.float32)
    assert backend.run({"x": x})["y"].tolist() == (2 * x).tolist()


class _Session:
    """Session of an ONNX Runtime with TensorRT, which may fail to start or to build."""

    asked: list[Any]
    made: "list[_Session]"
    starts = True
    fails = ""

    def __init__(self, data: bytes, options: object, providers: list[Any], **_: Any) -> None:
        type(self).asked.append(providers)
        names = [name for name, _ in providers]
        if TENSORRT in names and self.fails:
            raise RuntimeError(self.fails)
        self._names = names if self.starts else names[1:] if len(names) > 1 else names
        self.made.append(self)

    def get_providers(self) -> list[str]:
        return self._names


@pytest.mark.usefixtures("on_cpu")
@pytest.mark.parametrize(
    ("starts", "fails", "reason"),
    [
        (True, "", None),
        (False, "", "did not start TensorRT, .* install the package tensorrt"),
        (True, "no kernel for Loop", "no kernel for Loop"),
    ],
)
def test_tensorrt_is_asked_first_and_its_failure_costs_nobody_the_model(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    starts: bool,
    fails: str,
    reason: str | None,
) -> None:
    here = [TENSORRT, "CPUExecutionProvider"]
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: here)
    own = {"asked": [], "made": [], "starts": starts, "fails": fails}
    session: Any = type("Session", (_Session,), own)
    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    with caplog.at_level(logging.WARNING, "flambeau.cuda"):
        opened(tmp_path)
    first = dict(session.asked[0])[TENSORRT]
    assert first["trt_fp16_enable"] == "1"
    assert first["trt_profile_opt_shapes"] == f"x:2x{WIDTH}"
    assert (TENSORRT in session.made[-1].get_providers()) == (reason is None)
    found = [record.reason for record in caplog.records]  # type: ignore[attr-defined]
    assert len(found) == (reason is not None)
    assert reason is None or re.search(reason, found[0])


def test_the_choice_depends_on_the_provider_the_gpu_and_its_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = draft_in(tmp_path).artifacts
    manifest: Any = draft_in(tmp_path)
    gpu = Device("cuda", 0)

    def key(named: tuple[str, str], *providers: str, device: Device = gpu) -> str:
        monkeypatch.setattr(cuda_device, "gpu_name_and_driver", lambda _: named)
        made = OpenOptions(device=device, onnx_on_gpu=OnnxOnGpu(providers=providers))  # type: ignore[arg-type]
        return choice_key(manifest, artifacts, made)

    first = key(("H100", "580.1"), "cuda")
    assert first == key(("H100", "580.1"), "cuda")
    others = [
        key(("H200", "580.1"), "cuda"),
        key(("H100", "590.1"), "cuda"),
        key(("H100", "580.1"), "tensorrt", "cuda"),
    ]
    assert len({first, *others}) == 4
    on_cpu = [key(("H100", "580.1"), p, device=CPU) for p in ("cuda", "tensorrt")]
    assert on_cpu[0] == on_cpu[1]


def test_a_gpu_is_known_by_its_name_and_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    (tmp_path / "version").write_text("NVRM version: NVIDIA UNIX 580.1\nGCC version: 12\n")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"H100 {index}")
    gpu = Device("cuda", 0)
    found = gpu_name_and_driver(gpu, tmp_path / "version")
    assert found == ("H100 0", "NVRM version: NVIDIA UNIX 580.1")
    assert gpu_name_and_driver(Device("cuda", 1), tmp_path / "missing") == ("", "")


def test_providers_are_configured_for_all_models_or_one() -> None:
    arguments = ["--queue=redis://here", "--onnx-provider=tensorrt", "--onnx-provider=cuda"]
    arguments += ["--engine-cache-mib=1", "--model-settings={digits: {onnx_providers: [cuda]}}"]
    policy = serving_policy(settings_from(arguments, InferenceConfig, ""))
    assert policy.lane_of("other").load.backend.onnx_on_gpu.providers == ("tensorrt", "cuda")
    assert policy.lane_of("other").load.backend.onnx_on_gpu.engine_cache_bytes == 2**20
    assert policy.lane_of("digits").load.backend.onnx_on_gpu.providers == ("cuda",)
    with pytest.raises(ConfigError, match="give cuda, or tensorrt and then cuda"):
        settings_from(["--queue=redis://here", "--onnx-provider=tensorrt"], InferenceConfig, "")
