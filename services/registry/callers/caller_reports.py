"""Reports of the callers that one process has seen of a model, as MessagePack. For threads.

In: recent requests of the processes of a deployment. Out: bytes, and the same requests together.

Rules: a report has at most `MAX_REPORT_BYTES`; callers with most requests come first, and those
without room are left out and counted. Reports of other processes are input: the bytes, then the
number of callers and kinds and the lengths of names are checked before anything is built.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from services.interpreter_lock import lending
from services.registry.callers.recent_callers import (
    MAX_CALLERS,
    KindKey,
    SeenCaller,
    SentKind,
    Shape,
)

MAX_REPORT_BYTES = 32 * 1024
"""A caller with one kind of requests of one input takes some 50 bytes."""
_ENTRIES = MAX_CALLERS + 1
"""Callers of a report: those by name, and the entry that further ones share."""
_FRAME_BYTES = 8
"""Bytes around the callers of a report, at most."""
LEND_EVERY = 8
"""Callers between two chances of the event loop to run: they take up to 0.5 ms."""


class CallerReport(NamedTuple):
    """The callers that one process has seen of a model."""

    callers: Annotated[tuple[SeenCaller, ...], msgspec.Meta(max_length=_ENTRIES)]
    left_out: Annotated[int, msgspec.Meta(ge=0, le=_ENTRIES)] = 0
    """Number of callers for which the report has no room."""


class InvalidReportError(ValueError):
    """A report of another process breaks a rule; the message says which."""


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(CallerReport).decode


def encode_report(seen: Sequence[SeenCaller]) -> bytes:
    """Returns the report of callers, of which those with fewest requests may be left out."""
    kept, room = [], MAX_REPORT_BYTES - _FRAME_BYTES
    by_requests = sorted(seen, key=lambda one: -sum(kind.times for kind in one.kinds))
    for caller in lending(by_requests, LEND_EVERY):
        data = _encode(caller)
        if len(data) <= room:
            kept.append(msgspec.Raw(data))
            room -= len(data)
    return _encode((kept, len(seen) - len(kept)))


def decode_report(data: bytes) -> CallerReport:
    """Returns the report that another process has encoded.

    Raises:
        InvalidReportError: it breaks a rule.
    """
    if len(data) > MAX_REPORT_BYTES:
        raise InvalidReportError(f"it has {len(data)} bytes; at most {MAX_REPORT_BYTES} are read")
    try:
        report = _decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidReportError(str(error)) from error
    for caller in report.callers:
        if not caller.name.isprintable():
            raise InvalidReportError("the name of a caller has characters that are not printable")
        for kind in caller.kinds:
            _check(kind)
    return report


def _check(kind: SentKind) -> None:
    if len({name for name, _, _ in kind.inputs}) != len(kind.inputs):
        raise InvalidReportError("an input of a request occurs twice")
    ranks = [len(shape) for _, _, shape in kind.inputs]
    for shapes in (kind.smallest, kind.largest):
        if [len(shape) for shape in shapes] != ranks:
            raise InvalidReportError("the sizes of a request do not fit its inputs")


def together(reports: Iterable[Sequence[SeenCaller]]) -> list[SeenCaller]:
    """Returns the callers of several processes, as one process would have seen them."""
    found: dict[str, dict[KindKey, SentKind]] = {}
    for callers in reports:
        for name, kinds in lending(callers, LEND_EVERY):
            known = found.setdefault(name, {})
            for kind in kinds:
                other = known.get(kind.key)
                known[kind.key] = kind if other is None else _widest(kind, other)
    return [SeenCaller(name, tuple(kinds.values())) for name, kinds in found.items()]


def _widest(one: SentKind, other: SentKind) -> SentKind:
    return one._replace(
        smallest=_by_axis(min, one.smallest, other.smallest),
        largest=_by_axis(max, one.largest, other.largest),
        times=one.times + other.times,
    )


def _by_axis(choose: Callable[[int, int], int], *each: tuple[Shape, ...]) -> tuple[Shape, ...]:
    return tuple(tuple(map(choose, *shapes)) for shapes in zip(*each, strict=True))
