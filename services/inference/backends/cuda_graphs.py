"""CUDA graphs of one module: all kernels of a run launched at once, for a few batch sizes.

In: a module and how many rows a batch has. Out: a captured graph at least that large, or None
where the module has to be called as usual.

Rules kept here:
- only fixed shapes are captured: a signature in which more than the batch varies has no sizes;
- a size is captured when first needed; there are at most as many graphs as sizes;
- a module that cannot be captured, because it waits for the GPU, say, is warned of once and
  called as usual from then on;
- one capture at a time in the process, which torch asks for.

Source: https://docs.pytorch.org/docs/stable/notes/cuda.html#cuda-graphs
"""

import logging
import threading
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from model_store.signature import Signature, TensorSpec
from model_store.tensors import DATATYPES

logger = logging.getLogger("flambeau.cuda")

Module = Callable[..., list[torch.Tensor]]

LARGEST_ROWS = 256
"""Larger batches compute for so long that the time of their launches no longer counts."""

WARM_UP_RUNS = 3
"""torch's own number; they also let TorchScript profile and fuse before the capture."""

CAPTURE_LOCK = threading.Lock()
"""Held while a graph is captured, and by whoever empties torch's cache, which may not meet."""


@dataclass(frozen=True, slots=True, eq=False)
class CapturedGraph:
    """A recorded run: fill `inputs`, replay, read `outputs` before the next replay."""

    graph: torch.cuda.CUDAGraph
    inputs: list[torch.Tensor]
    """Device memory, [captured rows, ...], in the signature's order."""
    outputs: list[torch.Tensor]


def graph_sizes(signature: Signature, preferred: Sequence[int] = ()) -> list[int]:
    """The batch sizes to capture, ascending: the preferred ones, or else powers of two.

    Args:
        signature: if more than its batch varies there are none.
        preferred: batch sizes; those over the signature's maximum are left out.
    """
    if any(-1 in spec.shape[1:] for spec in signature.inputs):
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
        """The smallest graph with room for a batch, captured now if it is not yet.

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
        # Other threads go on allocating meanwhile: only this one keeps to the rules of a capture.
        with (
            CAPTURE_LOCK,
            torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"),
        ):
            outputs = self._module(*inputs)
        for output in outputs:
            if output.shape[:1] != (size,):
                raise ValueError(f"an output has shape {list(output.shape)} for {size} rows")
        return CapturedGraph(graph, inputs, outputs)


def _torch_type(spec: TensorSpec) -> torch.dtype:
    return torch.from_numpy(np.empty(0, DATATYPES[spec.datatype])).dtype
