"""Execution providers for an ONNX graph on a GPU: CUDA's kernels, or engines built by TensorRT.

In: the settings, the signature and the artifact's precision. Out: ONNX Runtime's list of
providers, or the reason why TensorRT cannot be among them.

Rules: engines for every size that the signature allows are built before serving, and none while
requests wait; an engine computes in FP16 or int8 only if the artifact does; engines are code, so
they lie in a folder of this user alone, and the oldest are deleted when it is full. TensorRT may
compute FP32 in TF32: the replay at load decides if the result is within tolerance.

Source: https://onnxruntime.ai/docs/execution-providers/TensorRT-ExecutionProvider.html
"""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flambeau.protocol.signature import Signature, TensorSpec
from model_store.manifest import Precision
from services.errors import DeviceError

CUDA = "CUDAExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

ProviderName = Literal["tensorrt", "cuda"]

_NARROW = {"fp16": "trt_fp16_enable", "int8": "trt_int8_enable"}
"""TensorRT's option that allows an artifact's precision."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OnnxOnGpu:
    """Settings of ONNX artifacts on a GPU."""

    providers: tuple[ProviderName, ...] = ("cuda",)
    """Providers in order of precedence; CUDA is the last."""
    engine_cache: str = "~/.cache/flambeau/tensorrt"
    """Folder of TensorRT's engines."""
    engine_cache_bytes: int = 4 * 2**30
    """Size that the folder is trimmed to before a version loads."""


def tensorrt_options(
    how: OnnxOnGpu,
    device_index: int,
    signature: Signature,
    precision: Precision,
    preferred_batch_sizes: Sequence[int],
    digest: str,
) -> dict[str, str]:
    """Returns the provider's options; creates and trims the folder of engines.

    Args:
        how: settings of ONNX on GPUs.
        device_index: index of the GPU.
        signature: signature with the range of every axis.
        precision: precision of the artifact.
        preferred_batch_sizes: engines are tuned for the largest; for the maximum batch if empty.
        digest: digest of the artifact, the prefix of its engines' names.

    Raises:
        DeviceError: an input has an axis without a maximum size.
        OSError: the folder cannot be created.
    """
    for spec in signature.inputs:
        if None in _sizes(spec, signature, 1):
            raise DeviceError(
                f"input '{spec.name}' {list(spec.shape)} has an axis without a largest size, which "
                "TensorRT needs; name it in the recipe's padding or dynamic"
            )
    folder = Path(how.engine_cache).expanduser()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    trim(folder, how.engine_cache_bytes)
    largest = signature.max_batch_size
    best = max((size for size in preferred_batch_sizes if size <= largest), default=largest)
    options = {
        "device_id": str(device_index),
        "trt_engine_cache_enable": "1",
        "trt_engine_cache_path": str(folder),
        "trt_engine_cache_prefix": digest[:16],
        "trt_timing_cache_enable": "1",
        "trt_timing_cache_path": str(folder),
        "trt_profile_min_shapes": _shapes(signature, 1, smallest=True),
        "trt_profile_opt_shapes": _shapes(signature, best),
        "trt_profile_max_shapes": _shapes(signature, largest),
    }
    if precision in _NARROW:
        options[_NARROW[precision]] = "1"
    return options


def trim(folder: Path, max_bytes: int) -> None:
    """Removes the oldest files of a folder until the others fit.

    Args:
        folder: folder that contains only files.
        max_bytes: maximum total size of the remaining files.
    """
    files: list[tuple[float, int, Path]] = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):  # another process may remove files as well
            found = path.stat()
            files.append((found.st_mtime, found.st_size, path))
    total = sum(size for _, size, _ in files)
    for _, size, path in sorted(files):
        if total <= max_bytes:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        total -= size


def _shapes(signature: Signature, rows: int, smallest: bool = False) -> str:
    """Returns the shapes in TensorRT's profile syntax: `tokens:32x48,mask:32x48`."""
    return ",".join(
        f"{spec.name}:{'x'.join(map(str, _sizes(spec, signature, rows, smallest)))}"
        for spec in signature.inputs
    )


def _sizes(
    spec: TensorSpec, signature: Signature, rows: int, smallest: bool = False
) -> list[int | None]:
    """Returns one size per axis; None for an axis without a known limit."""
    ranges = signature.limits.get(spec.name, {}) | signature.dynamic.get(spec.name, {})
    if spec.batch_axis is not None:
        ranges[spec.batch_axis] = (rows, rows)
    padding = signature.padding
    axis = None if padding is None else padding.axis_of(spec.name)
    if padding is not None and axis is not None:
        ranges[axis] = (padding.buckets[0] if padding.static else 1, padding.buckets[-1])
    return [
        size if size != -1 else ranges[place][0 if smallest else 1] if place in ranges else None
        for place, size in enumerate(spec.shape)
    ]


def session_providers(device_index: int, tensorrt: dict[str, str] | None) -> list[Any]:
    """Returns ONNX Runtime's list: CUDA, preceded by TensorRT if there are options for it."""
    options = {"device_id": str(device_index), "use_tf32": "0"}
    # A convolution plans anew when its batch size changes, and the default tries every algorithm.
    options["cudnn_conv_algo_search"] = "HEURISTIC"
    cuda = (CUDA, options)
    return [cuda] if tensorrt is None else [(TENSORRT, tensorrt), cuda]
