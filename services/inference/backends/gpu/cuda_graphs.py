"""CUDA graphs of one module: launch all kernels of a run at once, for a few batch sizes.

In: a module and the rows of a batch. Out: a captured graph for at least as many rows, or None if
the module has to be called as usual.

Rules:
- only fixed shapes are captured: a signature with a variable axis besides the batch has no sizes;
- a size is captured when first needed; there are at most as many graphs as sizes;
- a module that cannot be captured, for example because it synchronizes with the GPU, causes one
  warning and is called as usual from then on;
- the process captures one graph at a time, as torch requires.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

import contextlib
import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import DATATYPES

logger = logging.getLogger("flambeau.cuda")

Module = Callable[..., list[torch.Tensor]]

LARGEST_ROWS = 256
"""Larger batches compute for so long that the time of their kernel launches is negligible."""

WARM_UP_RUNS = 3
"""The number in torch's documentation; also lets TorchScript profile and fuse before a capture."""

MODE = "thread_local"
"""Restricts only the capturing thread to the rules of a capture: others allocate meanwhile."""

CAPTURE_LOCK = threading.Lock()
"""Held to capture a graph and to empty torch's cache, which must not happen concurrently."""


@dataclass(frozen=True, slots=True, eq=False)
class CapturedGraph:
    """A recorded run: fill `inputs`, replay, read `outputs` before the next replay."""

    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    """Device memory, [captured rows, ...], in the signature's order."""
    outputs: list[torch.Tensor]


def graph_sizes(signature: Signature, preferred: Sequence[int] = ()) -> list[int]:
    """Returns the batch sizes to capture, ascending: the preferred ones, or else powers of two.

    Args:
        signature: inputs of the module; with a variable axis besides the batch, or a batch that
            is not the first axis, there are no sizes.
        preferred: batch sizes; those above the signature's maximum are ignored.
    """
    if not signature.is_plain or any(-1 in spec.shape[1:] for spec in signature.inputs):
        return []
    limit = signature.max_batch_size
    if preferred:
        return sorted({size for size in preferred if 1 <= size <= limit})
    top = min(limit, LARGEST_ROWS)
    return sorted({top, *(1 << power for power in range(top.bit_length()))})


class CudaGraphs:
    """The graphs of one module on one stream."""

    def __init__(
        self, module: Module, signature: Signature, stream: torch.cuda.Stream, sizes: list[int]
    ) -> None:
        self._module = module
        self._signature = signature
        self._stream = stream
        self._sizes = sizes
        self._captured: dict[int, CapturedGraph] = {}

    def for_rows(self, rows: int) -> CapturedGraph | None:
        """Returns the smallest graph that fits a batch, and captures it if necessary.

        The stream must be the current one.
        """
        position = bisect_left(self._sizes, rows)
        if position == len(self._sizes):
            return None
        size = self._sizes[position]
        if size not in self._captured:
            try:
                self._captured[size] = self._capture(size)
            except Exception as error:  # a model may do anything that a capture forbids
                logger.warning(
                    "no CUDA graph of this model; it runs without",
                    extra={"rows": size, "reason": str(error)},
                )
                self._sizes = []
                self._captured.clear()
                return None
        return self._captured[size]

    def _capture(self, size: int) -> CapturedGraph:
        inputs = [
            torch.zeros(
                (size, *spec.shape[1:]), dtype=_torch_type(spec), device=self._stream.device
            )
            for spec in self._signature.inputs
        ]
        for _ in range(WARM_UP_RUNS):
            self._module(*inputs)
        graph = torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        try:
            with CAPTURE_LOCK, torch.cuda.graph(graph, pool, self._stream, capture_error_mode=MODE):
                outputs = self._module(*inputs)
        except Exception:
            self._forget(pool)
            raise
        for output in outputs:
            if output.shape[:1] != (size,):
                raise ValueError(f"an output has shape {list(output.shape)} for {size} rows")
        return CapturedGraph(graph, inputs, outputs)

    def _forget(self, pool: tuple[int, int]) -> None:
        """Ends what a capture that broke off began; torch does so only for others.

        Until then `torch.cuda.empty_cache` returns no memory to the GPU, of no model, and random
        operators of this process fail on it. The next capture that succeeds ends the latter.
        """
        index = self._stream.device.index
        with contextlib.suppress(RuntimeError):  # torch ended them, after all
            torch._C._cuda_endAllocateToPool(index, pool)
            torch._C._cuda_releasePool(index, pool)
        number, graph = torch.zeros(1, device=self._stream.device), torch.cuda.CUDAGraph()
        with CAPTURE_LOCK, torch.cuda.graph(graph, stream=self._stream, capture_error_mode=MODE):
            number.zero_()


def _torch_type(spec: TensorSpec) -> torch.dtype:
    return torch.from_numpy(np.empty(0, DATATYPES[spec.datatype])).dtype
