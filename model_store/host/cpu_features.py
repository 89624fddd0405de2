"""What this machine's processor can do, as far as compiled and quantized models ask for it.

In: Linux' `/proc/cpuinfo`. Out: names as Linux writes them, in a fixed order.
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
"""Those that decide whether code runs at all, or how fast 8 and 16 bit numbers are."""
BF16_FEATURES = frozenset({"amx_bf16", "avx512_bf16", "bf16"})
"""Of processors that compute in bfloat16; others convert each number, and crawl."""
INT8_FEATURES = frozenset({"amx_int8", "asimddp", "avx512_vnni", "avx_vnni", "i8mm"})
"""Of processors that multiply numbers of 8 bits and add the products in one step."""


FP16_FEATURES = frozenset({"avx512_fp16", "amx_fp16"})
"""A processor with none of these converts every half to FP32 and back."""


@functools.cache
def cpu_features(cpuinfo: Path = Path("/proc/cpuinfo")) -> tuple[str, ...]:
    """Those of `FEATURES` that the processor has; none where that cannot be read."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return ()
    lines = (line for line in text.splitlines() if line.startswith(("flags", "Features")))
    found = set(next(lines, "").split())
    return tuple(feature for feature in FEATURES if feature in found)
