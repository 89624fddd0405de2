"""Batches, and the rules that limit those of one lane.

In: a signature and the operator's settings. Out: `BatchRules`. Pure.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from flambeau.protocol.sequence_spec import state_bytes
from flambeau.protocol.signature import Padding, Signature
from services.inference.scheduling.latency import LatencyCurve
from services.queueing.memory_queue import Entry


class Batch(msgspec.Struct, frozen=True, eq=False):
    """Entries that run together."""

    entries: list[Entry]
    rows: int
    """Rows of all entries."""
    padded_rows: int
    """Rows that the backend receives."""
    length: int | None
    """Length that sequences are padded to; None without padding."""
    curve: LatencyCurve
    """Latency curve to update with the run."""
    slot: int | None = None
    """Slot of its sequences; None for a batch that any instance may run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRules:
    """Limits of the batches that one lane may form."""

    max_rows: int
    preferred_rows: tuple[int, ...] = ()
    """Batch sizes to pad up to, for engines built for fixed sizes; ascending."""
    wait_s: float = 0.0
    """Longest time that the first entry waits for a fuller batch; 0 does not wait."""
    padding: Padding | None = None
    shapes_vary: bool = False
    """True if any dimension except the batch differs between requests."""
    only_lengths_vary: bool = False
    """True if only the length differs, which `padding` rounds up to a bucket."""
    sizes_free: bool = False
    """True if requests choose sizes that neither the signature's shapes nor `padding` fix, so that
    a model may not take some of them."""
    row_elements: int = 1
    """Input elements of a row, if shapes do not vary."""
    batch_axes: Mapping[str, int | None] | None = None
    """Batch axis of each input, None for an input without one; None if all have it first and none
    is optional."""
    state_bytes: int = 0
    """Bytes of a row that the server adds to the inputs of a request."""
    compares_values: bool = False
    """True if requests share a batch only if inputs without a batch axis have equal values."""

    def padded_rows(self, rows: int) -> int:
        """Returns the size that a batch of `rows` rows is padded to."""
        return next((size for size in self.preferred_rows if size >= rows), rows)

    def alone(self, entry: Entry, batch: Batch) -> Batch:
        """Returns a batch of one entry of a batch."""
        static = self.padding is not None and self.padding.static
        length = batch.length if static else entry.request.length
        rows = entry.request.rows
        return Batch([entry], rows, self.padded_rows(rows), length, batch.curve, batch.slot)


def batch_rules(
    signature: Signature, *, preferred_rows: tuple[int, ...] = (), wait_s: float = 0.0
) -> BatchRules:
    """Returns the batch rules of a signature and of the operator's settings."""
    tails = [spec.row_shape for spec in signature.inputs]
    is_plain = signature.is_plain
    states = () if signature.sequence is None else signature.sequence.states
    # The values of inputs without a batch decide about batches, and so do inputs left out.
    compares_values = signature.has_batch and not is_plain
    vary = compares_values or any(-1 in tail for tail in tails)
    padding = signature.padding
    sizes_free = any(
        size == -1
        and axis != spec.batch_axis
        and (padding is None or axis != padding.axis_of(spec.name))
        for spec in signature.inputs
        for axis, size in enumerate(spec.shape)
    )
    return BatchRules(
        max_rows=signature.max_batch_size,
        preferred_rows=tuple(s for s in sorted(preferred_rows) if s <= signature.max_batch_size),
        wait_s=wait_s,
        padding=padding,
        shapes_vary=vary,
        only_lengths_vary=padding is not None and not sizes_free,
        sizes_free=sizes_free,
        row_elements=1 if vary else sum(math.prod(tail) for tail in tails),
        batch_axes=None if is_plain else {s.name: s.batch_axis for s in signature.inputs},
        state_bytes=sum(state_bytes(s) for s in signature.inputs if s.name in states),
        compares_values=compares_values,
    )
