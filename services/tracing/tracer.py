"""Decides which requests are traced, and gathers what became of them.

In: requests as they begin and end, batches as they have run; on the event loop. Out: facts, to an
exporter in a thread of its own, which makes spans of them.

Rules kept here:
- a caller that says whether its trace is sampled is obeyed; of the others, a share is traced;
- a request that is not traced costs a comparison, and one that is leaves a tuple behind: the loop
  calls no SDK, and an instance's thread does nothing at all;
- what the exporter cannot keep up with is dropped and counted, never waited for.
"""

import logging
import random
import secrets
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

from prometheus_client import Counter

from services.background_thread import background_thread
from services.queueing.records import Lane
from services.tracing.context import TraceContext, read_traceparent

logger = logging.getLogger("flambeau.tracing")

EXPORT_EVERY_S = 1.0
AT_ONCE = 512
"""Facts in one export."""
MAX_KEPT = 8192
"""Facts that wait for the exporter; the next are dropped."""
LAST_EXPORT_S = 3.0
"""How long the end of the process waits for what is left."""


class EdgeFacts(NamedTuple):
    """A request that is over."""

    trace: TraceContext
    protocol: str
    """`rest` or `grpc`."""
    model: str
    version: str
    code: str
    """An HTTP status or a gRPC code name."""
    error: str
    """The class of what went wrong; empty if nothing did."""
    request_id: str
    ended_ns: int


class BatchFacts(NamedTuple):
    """A batch that has run, with at least one request that is traced. Times are since 1970."""

    lane: Lane
    requests: Sequence[tuple[TraceContext, int]]
    """Those that are traced, each with its rows."""
    size: int
    """Requests in the batch, traced or not."""
    rows: int
    padded_rows: int
    failed: int
    """Requests that were not answered with outputs."""
    given_ns: int
    """When it was handed to its instance."""
    started_ns: int
    """When the backend began."""
    ended_ns: int
    """When the last result was there."""


Facts = EdgeFacts | BatchFacts


class CollectorAwayError(Exception):
    """What was to be exported did not arrive, and may be sent again."""


class Exporter(Protocol):
    """Where facts go; called in one thread."""

    def export(self, facts: Sequence[Facts]) -> int:
        """Makes spans of facts and sends them. Returns how many spans that were.

        Raises:
            CollectorAwayError: they may be sent again later; whatever else, they may not.
        """


class Tracer:
    """Of one process.

    Args:
        ratio: which share of requests is traced whose callers do not say; 0 to 1.
        exporter: where facts go.
        spans: counts them, by `outcome`.
    """

    def __init__(self, ratio: float, exporter: Exporter, spans: Counter) -> None:
        self._ratio = ratio
        self._exporter = exporter
        self._exported, self._dropped = spans.labels("exported"), spans.labels("dropped")
        self._facts: deque[Facts] = deque()
        self._is_away = False

    def begin(self, traceparent: str) -> tuple[TraceContext | None, str]:
        """A request has come.

        Args:
            traceparent: what its caller says of its trace; empty for nothing.

        Returns:
            What travels with it if it is traced; and the trace's id in hex for the logs, which is
            the caller's where only the caller traces, and empty where nobody does.
        """
        parent = read_traceparent(traceparent) if traceparent else None
        if parent is None:
            if random.random() >= self._ratio:  # noqa: S311
                return None, ""
            trace_id, parent_id = secrets.token_bytes(16), b""
        elif parent.is_sampled:
            trace_id, parent_id = parent.trace_id, parent.span_id
        else:
            return None, parent.trace_id.hex()
        trace = TraceContext(trace_id, secrets.token_bytes(8), parent_id, time.time_ns())
        return trace, trace_id.hex()

    def keep(self, facts: Facts) -> None:
        """Something traced has ended."""
        if len(self._facts) >= MAX_KEPT:
            self._dropped.inc()
        else:
            self._facts.append(facts)

    def exporting(self) -> AbstractContextManager[None]:
        """Exports as long as the block lasts, and what is left at its end."""

        def work(over: threading.Event) -> None:
            while not over.wait(EXPORT_EVERY_S):
                self._export()
            self._export()
            self._dropped.inc(len(self._facts))

        return background_thread("tracing", work, end_within_s=LAST_EXPORT_S)

    def _export(self) -> None:
        """Sends all there is, unless the collector is away: then it stays for the next time."""
        while self._facts:
            taken = [self._facts.popleft() for _ in range(min(AT_ONCE, len(self._facts)))]
            try:
                self._exported.inc(self._exporter.export(taken))
                self._is_away = False
            except CollectorAwayError as error:
                self._facts.extendleft(reversed(taken))
                if not self._is_away:
                    self._is_away = True
                    logger.warning("the collector is out of reach", extra={"reason": str(error)})
                return
            except Exception as error:  # whatever a collector says must not end all tracing
                self._dropped.inc(len(taken))
                logger.warning("the collector refuses spans", extra={"reason": str(error)})


def ns_of(moment: float) -> int:
    """A recent `time.monotonic()` second in nanoseconds since 1970."""
    return time.time_ns() - int((time.monotonic() - moment) * 1e9)
