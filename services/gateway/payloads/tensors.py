"""What a sample takes of tensors while they are there, and what is made of it later.

In: the tensors of one request, on the event loop. Out: copies of so much of them as the rule
allows, and no more than it allows; of these, in another thread, what is written.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from model_store.samples.payload_sample import LeftOut, SampledTensor, statistics_of, with_values
from model_store.tensors import Array
from services.gateway.payloads.rule import PayloadRule

MAX_ELEMENTS_OF_STATISTICS = 4096
"""Of a tensor that is too large to be copied, so many elements, evenly spread, stand for all."""
MAX_TEXTS = 16_384
"""BYTES elements of a tensor that is not too large: they are counted one by one."""
_LENGTH_BYTES = 4
"""Before each BYTES element in the raw form."""


class NamedTensor(NamedTuple):
    """A tensor as a request or a reply has it."""

    name: str
    datatype: str
    array: Array


class TakenTensor(NamedTuple):
    """What is left of it for a sample."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    left_out: LeftOut | None
    """Why its values will not be in the sample."""
    elements: Array | None
    """A copy: of all elements; or, for statistics, of some or all; None for nothing."""

    def sampled(self) -> SampledTensor:
        """What is written of it."""
        if self.left_out is None:
            assert self.elements is not None
            return with_values(self.name, self.datatype, self.elements)
        statistics = None
        if self.elements is not None:
            statistics = statistics_of(self.datatype, self.elements)
        return SampledTensor(
            name=self.name,
            datatype=self.datatype,
            shape=self.shape,
            left_out=self.left_out,
            statistics=statistics,
        )


def take(rule: PayloadRule, tensors: Sequence[NamedTensor]) -> list[TakenTensor]:
    """Copies what a rule allows, the smallest tensors first. Returns them in their own order."""
    limit = room = rule.max_sample_bytes
    sizes = [_raw_bytes(tensor, limit) for tensor in tensors]
    taken: dict[int, TakenTensor] = {}
    for place in sorted(range(len(tensors)), key=sizes.__getitem__):
        tensor, size = tensors[place], sizes[place]
        left_out = _left_out(rule, tensor)
        elements: Array | None = None
        if left_out == "redacted" or rule.keep == "shapes":
            pass
        elif size <= room:
            elements = np.array(tensor.array, order="C")
            room -= size
        else:
            left_out = left_out or "too large"
            elements = _some(tensor)
        taken[place] = TakenTensor(
            tensor.name, tensor.datatype, tensor.array.shape, left_out, elements
        )
    return [taken[place] for place in range(len(tensors))]


def _left_out(rule: PayloadRule, tensor: NamedTensor) -> LeftOut | None:
    """Why no values may be kept, however few they are."""
    if rule.redacts(tensor.name):
        return "redacted"
    if rule.keep in ("shapes", "statistics"):
        return "not kept"
    return "text" if tensor.datatype == "BYTES" and rule.keep != "everything" else None


def _raw_bytes(tensor: NamedTensor, limit: int) -> int:
    """Bytes of a tensor in the raw form; of BYTES that are plainly beyond a limit, at least so."""
    array = tensor.array
    if array.dtype != np.object_:
        return array.nbytes
    lengths = array.size * _LENGTH_BYTES
    if array.size > MAX_TEXTS:
        return limit + lengths
    return lengths + sum(map(len, array.ravel().tolist()))


def _some(tensor: NamedTensor) -> Array | None:
    """Elements evenly spread; none where that takes a copy of all, or they may be of any size."""
    array = tensor.array
    if array.dtype == np.object_ or not array.flags.c_contiguous:
        return None
    step = max(1, -(-array.size // MAX_ELEMENTS_OF_STATISTICS))
    return array.reshape(-1)[::step].copy()
