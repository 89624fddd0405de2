"""Describes this machine, as far as it affects an artifact's outputs and speed.

In: a device and the threads of a run. Out: an `Environment`, which does not identify the machine.
"""

import platform
import re
from importlib import metadata
from pathlib import Path

from model_store.certificates.certificate import Environment
from model_store.host.cpu_features import cpu_features
from services.inference.backends.device import Device
from services.inference.backends.served_kinds import runtime_distributions

_DRIVER = re.compile(r"Kernel Module(?: for \S+)?\s+(\d+(?:\.\d+)+)")
_MODEL_NAMES = ("model name", "Model", "CPU part")
"""Keys of `/proc/cpuinfo`: x86 has the first, some ARM machines only the last."""


def environment(device: Device, threads: int) -> Environment:
    """Returns a description of this machine, and of how an artifact would be run on it.

    Args:
        device: device of the run; torch, if it is installed, gives the name of a GPU.
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
    """Returns the processor's model name, or else its architecture."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return platform.machine()
    pairs = [line.split(":", 1) for line in lines if ":" in line]
    values = {name.strip(): value.strip() for name, value in pairs}
    return next((values[name] for name in _MODEL_NAMES if values.get(name)), platform.machine())


def driver_version(file: Path = Path("/proc/driver/nvidia/version")) -> str:
    """Returns the version of NVIDIA's kernel module; empty if there is none."""
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
    for name in ("numpy", *runtime_distributions()):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
