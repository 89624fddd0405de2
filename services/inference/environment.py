"""What this machine is, as far as it decides what an artifact computes and how fast.

In: a device and the threads of a run. Out: an `Environment`, without a word of which machine it is.
"""

import platform
import re
from importlib import metadata
from pathlib import Path

from model_store.certificates.certificate import Environment
from model_store.host.cpu_features import cpu_features
from services.inference.backends.device import Device

LIBRARIES = ("numpy", "onnxruntime", "onnxruntime-gpu", "openvino", "torch", "torchao")
"""Those that run artifacts, and so decide what comes out."""

_DRIVER = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_MODEL_NAMES = ("model name", "Model", "CPU part")
"""Of `/proc/cpuinfo`: x86 has the first, some ARM machines only the last."""


def environment(device: Device, threads: int) -> Environment:
    """This machine, and how an artifact would be run on it.

    Args:
        device: where it runs; a GPU is looked up through torch, where that is installed.
        threads: CPU threads of one run.
    """
    on_gpu = device.kind == "cuda"
    return Environment(
        machine=f"{platform.machine()} {platform.system()}",
        cpu_model=cpu_model(),
        cpu_features=cpu_features(),
        device=device.kind,
        device_name=_gpu_name(device) if on_gpu else "",
        driver=driver_version() if on_gpu else "",
        threads=threads,
        python=platform.python_version(),
        libraries=_libraries(),
    )


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """What the processor calls itself; its architecture where it does not say."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine()
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    values = {name.strip(): value.strip() for name, value in pairs}
    return next((values[name] for name in _MODEL_NAMES if values.get(name)), platform.machine())


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Version of NVIDIA's kernel module; empty where there is none."""
    try:
        found = _DRIVER.search(file.read_text())
    except OSError:
        return ""
    return found[1] if found else ""


def _gpu_name(device: Device) -> str:
    try:
        import torch

        return torch.cuda.get_device_name(device.index)
    except (ImportError, AssertionError, RuntimeError):  # no torch, no CUDA in it, or no such GPU
        return "unknown"


def _libraries() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
