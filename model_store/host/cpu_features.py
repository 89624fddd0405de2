"""Reads the processor features that compiled and quantized models may need.

In: Linux' `/proc/cpuinfo`. Out: feature names in Linux' spelling, in a fixed order.
"""

import functools
from pathlib import Path

FEATURES = (
    "avx2",
    "avx512f",
    "avx512_vnni",
    "avx_vnni",
    "avx512_bf16",
    "avx512_fp16",
    "amx_tile",
    "amx_int8",
    "amx_bf16",
    "amx_fp16",
    "asimddp",
    "bf16",
    "i8mm",
)
"""Features that code may require, or that determine the speed of 8-bit and 16-bit numbers."""
BF16_FEATURES = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
"""Features for native bfloat16; processors without them convert each number, which is very slow."""
INT8_FEATURES = frozenset({"amx_int8", "asimddp", "avx512_vnni", "avx_vnni", "i8mm"})
"""Features that multiply 8-bit numbers and add the products in one instruction."""


FP16_FEATURES = frozenset({"avx512_fp16", "amx_fp16"})
"""Features for native FP16; a processor without them converts every number to FP32 and back."""


@functools.cache
def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Returns the features of `FEATURES` that the processor has; none if unreadable."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return ()
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    found = set(next(lines, "").split())
    return tuple(feature for feature in FEATURES if feature in found)
