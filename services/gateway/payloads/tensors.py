"""Copies parts of tensors for a sample on the event loop, and formats them later.

In: the tensors of one request, on the event loop. Out: copies of at most the parts that the rule
allows; in another thread, the written form of these.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from flambeau.protocol.tensors import Array
from model_store.samples.payload_sample import LeftOut, SampledTensor, statistics_of, with_values
from services.gateway.payloads.rule import PayloadRule

MAX_ELEMENTS_OF_STATISTICS = 4096
"""Evenly spread elements that represent a tensor too large to be copied."""
MAX_TEXTS = 16_384
"""Most BYTES elements of a tensor that is not too large: they are counted one by one."""
_LENGTH_BYTES = 4
"""Size of the length prefix of each BYTES element in the raw form."""


class NamedTensor(NamedTuple):
    """A tensor of a request or a reply."""

    name: str
    datatype: str
    array: Array


class TakenTensor(NamedTuple):
    """The parts of a tensor copied for a sample."""

    name: str
    datatype: str
    shape: tuple[int, ...]
    left_out: LeftOut | None
    """The reason for which its values are not sampled."""
    elements: Array | None
    """A copy of all elements; or, for statistics, of some or all; None for no copy."""

    @property
    def value_bytes(self) -> int:
        """Bytes of the values that are sampled; elements of BYTES count as references."""
        return 0 if self.left_out or self.elements is None else self.elements.nbytes

    def sampled(self) -> SampledTensor:
        """Returns the written form."""
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


def take(
    rule: PayloadRule, tensors: Sequence[NamedTensor], taken_bytes: int = 0
) -> list[TakenTensor]:
    """Copies the allowed parts, the smallest tensors first. Returns them in the order given.

    Args:
        rule: rule of the model.
        tensors: tensors of the sample.
        taken_bytes: bytes of other tensors of the same sample, which are copied already.
    """
    limit = rule.max_sample_bytes
    room = limit - taken_bytes
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
    """Returns the reason for which no values may be kept, however few."""
    if rule.redacts(tensor.name):
        return "redacted"
    if rule.keep in ("shapes", "statistics"):
        return "not kept"
    return "text" if tensor.datatype == "BYTES" and rule.keep != "everything" else None


def _raw_bytes(tensor: NamedTensor, limit: int) -> int:
    """Returns the raw bytes of a tensor; for BYTES clearly over a limit, a lower bound."""
    array = tensor.array
    if array.dtype != np.object_:
        return array.nbytes
    lengths = array.size * _LENGTH_BYTES
    if array.size > MAX_TEXTS:
        return limit + lengths
    return lengths + sum(map(len, array.ravel().tolist()))


def _some(tensor: NamedTensor) -> Array | None:
    """Returns evenly spread elements; None if that copies all, or their size is unbounded."""
    array = tensor.array
    if array.dtype == np.object_ or not array.flags.c_contiguous:
        return None
    step = max(1, -(-array.size // MAX_ELEMENTS_OF_STATISTICS))
    return array.reshape(-1)[::step].copy()
