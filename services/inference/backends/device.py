"""Device of a model: the CPU or one CUDA GPU. In: `cpu`, `cuda` or `cuda:N`. Out: a `Device`."""

import re
from dataclasses import dataclass
from typing import Literal

DeviceKind = Literal["cpu", "cuda"]

_CUDA = re.compile(r"cuda(?::(\d{1,3}))?")


@dataclass(frozen=True, slots=True)
class Device:
    """One device. `str()` returns the form that `parse_device` accepts: `cpu`, `cuda:0`."""

    kind: DeviceKind
    index: int = 0
    """CUDA's index of the GPU; 0 for the CPU."""

    def __str__(self) -> str:
        return "cpu" if self.kind == "cpu" else f"cuda:{self.index}"


CPU = Device("cpu")


def parse_device(text: str) -> Device:
    """Parses the device in a setting.

    Raises:
        ValueError: it is none of `cpu`, `cuda` and `cuda:N`.
    """
    if text == "cpu":
        return CPU
    if match := _CUDA.fullmatch(text):
        return Device("cuda", int(match[1] or 0))
    raise ValueError(f"device {text!r} is unknown; use cpu, cuda (the first GPU) or cuda:N")
