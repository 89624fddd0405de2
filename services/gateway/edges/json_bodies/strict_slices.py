"""Reads large JSON requests in slices: neither their size nor their shape blocks the event loop.

In: the same as `strict_request.read_strictly`. Out: the same `RestRequest`, or the same refusal;
two more limits apply (`json_bodies/spans.py`), on the JSON beside the elements of tensors.

The lists of elements are cut out first, without reading the elements; the rest is small, and the
strict parser reads it. Elements are converted only if names, datatypes and shapes fit the model.

Memory: the arrays, which `reserve` counts, beside the body until all are made; and 1 MB.
docs/adr/0036 has the costs.
"""

from collections.abc import Sequence
from typing import Any

from flambeau.protocol.tensors import Array
from services.errors import InvalidRequestError
from services.gateway.edges.binary_texts import Buffer, Reserve
from services.gateway.edges.json_bodies.slices import array_of
from services.gateway.edges.json_bodies.spans import MAX_BESIDE_BYTES, Span, outline_of
from services.gateway.edges.json_bodies.strict_request import (
    Check,
    RestRequest,
    parse_document,
    read_document,
)
from services.gateway.edges.json_bodies.tensors import from_json
from services.gateway.shared_regions.regions import RegionUse
from services.gateway.sliced_work import Slices

MIN_LARGE_BYTES = 32 * 1024
"""Size of large JSON. Smaller JSON is read at once: the worst known takes 2 ms."""


def read_in_slices(
    head: Buffer,
    binary: memoryview,
    check: Check | None = None,
    reserve: Reserve = int,
    regions: RegionUse | None = None,
) -> Slices[RestRequest]:
    """Reads a request of any size.

    Args:
        head: its JSON.
        binary: the bytes behind it; binary inputs view them.
        check: check of the inputs against the model before their elements are converted.
        reserve: reservation of memory before it is taken.
        regions: shared memory of inputs and outputs; None to refuse it.

    Raises:
        InvalidRequestError: it is invalid; the message says why.
        UnsupportedError: it asks for an extension this server does not offer.
        ServingError: what `check` or `reserve` raise.
    """
    text = memoryview(head)
    outline = yield from outline_of(text)
    document = parse_document(outline.document)
    yield
    read: set[Span] = set()

    def array(datatype: str, shape: Sequence[int], data: Any) -> Slices[Array]:
        span = outline.span_of(data)
        if span is None:
            return from_json(datatype, shape, data)
        read.add(span)
        return (yield from array_of(datatype, shape, text, span, reserve))

    try:
        request = yield from read_document(document, binary, array, check, reserve, regions)
    finally:
        if regions is not None:
            regions.leave()
    # A list that belongs to no input is checked as if it had not been cut out.
    beside = [span for span in outline.spans if span not in read]
    size = sum(span.end - span.start for span in beside)
    if size > MAX_BESIDE_BYTES:
        raise InvalidRequestError(
            f"{size} bytes of lists under 'data' belong to no input, or an input has several; "
            f"at most {MAX_BESIDE_BYTES} are read"
        )
    for span in beside:
        parse_document(b'{"data":%b}' % bytes(text[span.start : span.end]))
        yield
    if not binary:
        reserve(-len(head))
    return request
