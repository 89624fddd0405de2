"""Devices: their names, their memory, and whose fault an error is."""

import mmap
from pathlib import Path

import onnxruntime
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.available_memory import available_bytes, control_group_limits
from services.errors import DeviceError
from services.inference.backends.device import CPU, Device, parse_device
from services.inference.backends.device_memory import device_memory_bytes
from services.inference.backends.gpu.cuda_onnx import CudaOnnxBackend
from services.inference.backends.gpu.cuda_torch import CudaTorchBackend
from services.inference.backends.gpu.device_faults import device_error, is_device_fault
from services.inference.backends.open_options import OpenOptions
from services.resident_memory import resident_bytes
from tests.fixtures import misbehaving_models
from tests.fixtures.verified_artifacts import verified

GPU = Device("cuda", 1)
ON_GPU = OpenOptions(device=GPU)


@given(st.integers(0, 999))
def test_a_device_is_read_as_it_is_written(index: int) -> None:
    assert parse_device(str(Device("cuda", index))) == Device("cuda", index)


def test_the_short_names() -> None:
    assert parse_device("cpu") == parse_device(str(CPU)) == CPU
    assert parse_device("cuda") == Device("cuda", 0)


@pytest.mark.parametrize(
    "text", ["", "gpu", "CPU", "cuda:", "cuda:x", "cuda:-1", "cuda:0 ", "cpu:0"]
)
def test_another_name_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match=r"is unknown; use cpu, cuda \(the first GPU\) or cuda:N"):
        parse_device(text)


def test_the_cpu_has_what_this_process_holds() -> None:
    before = device_memory_bytes(CPU)
    assert 2**20 < before.used_bytes < before.total_bytes
    block = mmap.mmap(-1, 64 * 2**20)  # malloc might have some left
    block[::4096] = b"x" * (len(block) // 4096)
    assert device_memory_bytes(CPU).used_bytes - before.used_bytes > 32 * 2**20


def test_no_process_holds_nothing() -> None:
    beyond_all = int(Path("/proc/sys/kernel/pid_max").read_text()) + 1
    assert resident_bytes(beyond_all) == 0


def test_limits_of_all_control_groups_above_count(tmp_path: Path) -> None:
    """Version 2, where no limit is "max"; and version 1 beside it."""
    (tmp_path / "membership").write_text("4:memory:/old\n0::/a/b\n")
    for folder, file, text in (
        ("a/b", "memory.max", "max\n"),
        ("a", "memory.max", "2000\n"),
        ("memory/old", "memory.limit_in_bytes", "1000\n"),
        ("memory", "memory.limit_in_bytes", "9223372036854771712\n"),
        ("elsewhere", "memory.max", "1\n"),
    ):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / file).write_text(text)
    limits = sorted(control_group_limits(tmp_path / "membership", tmp_path))
    assert limits == [1000, 2000, 9223372036854771712]


MEMINFO = "MemTotal:  4000 kB\nMemFree:  100 kB\nMemAvailable:  3000 kB\nBuffers:  200 kB\n"


def test_memory_of_the_machine_is_that_which_the_kernel_calls_available(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO)
    assert available_bytes(tmp_path / "meminfo") == 3000 * 1024


def test_kernel_that_does_not_report_available_memory_is_named_too_old(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(MEMINFO.replace("MemAvailable", "Cached"))
    with pytest.raises(RuntimeError, match=r"no MemAvailable; flambeau needs Linux 3\.14 or newer"):
        available_bytes(tmp_path / "meminfo")


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has"),
        torch.AcceleratorError("CUDA error: device-side assert triggered\nCompile with"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
        RuntimeError("cuDNN error: CUDNN_STATUS_EXECUTION_FAILED"),
        RuntimeError("[ONNXRuntimeError] : 1 : FAIL : CUDA failure 700: an illegal memory access"),
        RuntimeError("[ONNXRuntimeError] : 6 : Failed to allocate memory for requested buffer of"),
    ],
    ids=str,
)
def test_a_fault_of_the_gpu_is_known_by_its_words(error: Exception) -> None:
    assert is_device_fault(error)
    first_line = str(error).splitlines()[0]
    assert f"the device failed, not the input: {first_line};" in str(device_error(error))


def test_the_line_that_names_the_fault_is_told_and_not_torchscripts_traceback() -> None:
    error = RuntimeError(
        "The following operation failed in the TorchScript interpreter.\n"
        "Traceback of TorchScript (most recent call last):\n"
        '  File "networks.py", line 50, in forward\n'
        "    x = x + torch.zeros([1 << 40], device=x.device)[0]\n"
        "            ~~~~~~~~~~~ <--- HERE\n"
        "RuntimeError: CUDA out of memory. Tried to allocate 4096.00 GiB.\n"
    )
    assert is_device_fault(error)
    reason = "RuntimeError: CUDA out of memory. Tried to allocate 4096.00 GiB."
    assert f"the device failed, not the input: {reason};" in str(device_error(error))


@pytest.mark.parametrize(
    "error",
    [
        ValueError("expected a batch of 4 rows"),
        RuntimeError("mat1 and mat2 shapes cannot be multiplied (1x3 and 4x4)"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"
        ),
        MemoryError(),
    ],
    ids=repr,
)
def test_a_fault_of_the_input_is_none_of_the_device(error: Exception) -> None:
    assert not is_device_fault(error)


def test_torch_without_a_gpu_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceError, match=r"device cuda:1 was asked for, and torch .* finds no"):
        CudaTorchBackend(
            verified(
                misbehaving_models.well_behaved(), misbehaving_models.SIGNATURE, "torchscript"
            ),
            ON_GPU,
        )


def test_a_gpu_too_many_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(
        DeviceError, match="there is no cuda:1; this machine's GPUs are cuda:0 to 0"
    ):
        CudaTorchBackend(
            verified(
                misbehaving_models.well_behaved(), misbehaving_models.SIGNATURE, "torchscript"
            ),
            ON_GPU,
        )


def test_onnx_runtime_without_cuda_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(
        DeviceError, match="offers only CPUExecutionProvider; uninstall onnxruntime"
    ):
        CudaOnnxBackend(
            verified(misbehaving_models.raising(), misbehaving_models.SIGNATURE), ON_GPU
        )
