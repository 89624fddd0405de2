"""Opens networks: ONNX by onnxruntime, TorchScript by torch; on a GPU if there is one."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from flambeau.exporting.archived_version.tensor import Array, RefusedError, Run


class Processor(NamedTuple):
    """The device that runs a network."""

    gpu: int | None
    """Number of a GPU; None for the CPU."""
    threads: int
    """Threads of one run."""


def open_onnx(file: Path, outputs: Sequence[str], processor: Processor) -> Run:
    """Opens an ONNX file.

    Args:
        file: its path.
        outputs: outputs to compute; empty for all.
        processor: what runs it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = processor.threads, 1
    gpu = processor.gpu
    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        gpu = None
    providers = [] if gpu is None else [("CUDAExecutionProvider", {"device_id": gpu})]
    session = onnxruntime.InferenceSession(
        str(file), options, providers=[*providers, "CPUExecutionProvider"]
    )
    names = list(outputs) or [one.name for one in session.get_outputs()]

    def run(given: Mapping[str, Array] | None = None, /, **more: Array) -> Mapping[str, Array]:
        inputs = {name: _as_text(name, a) for name, a in {**(given or {}), **more}.items()}
        found = session.run(names, inputs)
        return dict(zip(names, map(np.asarray, found), strict=True))

    return run


def open_torchscript(
    file: Path, inputs: Sequence[str], outputs: Sequence[str], processor: Processor
) -> Run:
    """Opens a TorchScript file, which is called with its inputs in order.

    Args:
        file: its path.
        inputs: names of its inputs.
        outputs: names of its outputs.
        processor: what runs it.
    """
    import torch

    torch.set_num_threads(processor.threads)
    has_gpu = processor.gpu is not None and torch.cuda.is_available()
    device = f"cuda:{processor.gpu}" if has_gpu else "cpu"
    module = torch.jit.load(str(file), map_location=device).eval()  # type: ignore[no-untyped-call]

    def run(given: Mapping[str, Array]) -> Mapping[str, Array]:
        tensors = [
            torch.from_numpy(np.array(given[name])).to(device) if name in given else None
            for name in inputs
        ]
        with torch.inference_mode():
            found: Any = module(*tensors)
        if isinstance(found, Mapping):
            found = [found[name] for name in outputs]
        elif isinstance(found, torch.Tensor):
            found = [found]
        return {name: one.cpu().numpy() for name, one in zip(outputs, found, strict=True)}

    return run


def _as_text(name: str, array: Array) -> Array:
    """Returns BYTES as `str`, which ONNX takes."""
    if not array.dtype.hasobject:
        return array
    texts = np.empty(array.size, np.object_)
    try:
        texts[:] = [one.decode() if isinstance(one, bytes) else one for one in array.ravel()]
    except UnicodeDecodeError as error:
        raise RefusedError(f"input '{name}' is no UTF-8: {error.reason}") from error
    return texts.reshape(array.shape)
