"""Decides which requests are traced, and collects their facts.

In: requests at their start and end, and finished batches; on the event loop. Out: facts, for an
exporter in a separate thread, which makes spans of them.

Rules:
- a caller's sampling decision is followed; of requests without one, a share is traced;
- an untraced request costs a comparison, and a traced one appends a tuple: the loop calls no SDK,
  and an instance's thread does nothing for tracing;
- facts beyond the exporter's capacity are dropped and counted; nothing waits for it.
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
"""Limit of facts that wait for the exporter; further ones are dropped."""
LAST_EXPORT_S = 3.0
"""Timeout of the last export at shutdown."""


class EdgeFacts(NamedTuple):
    """A finished request."""

    trace: TraceContext
    protocol: str
    """`rest` or `grpc`."""
    model: str
    version: str
    code: str
    """An HTTP status or a gRPC code name."""
    error: str
    """Class of the error; empty if there was none."""
    request_id: str
    ended_ns: int


class BatchFacts(NamedTuple):
    """A finished batch with at least one traced request. Times are since 1970."""

    lane: Lane
    requests: Sequence[tuple[TraceContext, int]]
    """Traced requests, each with its number of rows."""
    size: int
    """Requests in the batch, traced or not."""
    rows: int
    padded_rows: int
    failed: int
    """Requests that were not answered with outputs."""
    given_ns: int
    """Time at which its instance received it."""
    started_ns: int
    """Start of the backend's run."""
    ended_ns: int
    """Time of the last result."""


Facts = EdgeFacts | BatchFacts


class CollectorAwayError(Exception):
    """The collector did not receive an export, which may be sent again."""


class SpanExporter(Protocol):
    """Sends facts to a collector; called in one thread."""

    def export(self, facts: Sequence[Facts]) -> int:
        """Converts facts to spans and sends them. Returns the number of spans.

        Raises:
            CollectorAwayError: they may be sent again later; after other errors they must not.
        """


class Tracer:
    """The tracer of one process.

    Args:
        ratio: share of requests to trace among those without a sampling decision; 0 to 1.
        exporter: exporter of the facts.
        spans: counter of spans, by `outcome`.

    Attributes:
        ratio: that share, which may change.
    """

    def __init__(self, ratio: float, exporter: SpanExporter, spans: Counter) -> None:
        self.ratio = ratio
        self._exporter = exporter
        self._exported, self._dropped = spans.labels("exported"), spans.labels("dropped")
        self._facts: deque[Facts] = deque()
        self._is_away = False

    def begin(self, traceparent: str) -> tuple[TraceContext | None, str]:
        """Decides whether to trace a new request.

        Args:
            traceparent: the caller's header; empty if it sent none.

        Returns:
            The trace context if the request is traced; and the trace's id in hex for the logs,
            which is the caller's if it sent an unsampled trace, and empty if there is no trace.
        """
        parent = read_traceparent(traceparent) if traceparent else None
        if parent is None:
            if random.random() >= self.ratio:  # noqa: S311
                return None, ""
            trace_id, parent_id = secrets.token_bytes(16), b""
        elif parent.is_sampled:
            trace_id, parent_id = parent.trace_id, parent.span_id
        else:
            return None, parent.trace_id.hex()
        trace = TraceContext(trace_id, secrets.token_bytes(8), parent_id, time.time_ns())
        return trace, trace_id.hex()

    def keep(self, facts: Facts) -> None:
        """Appends facts for the exporter, or drops them if too many wait."""
        if len(self._facts) >= MAX_KEPT:
            self._dropped.inc()
        else:
            self._facts.append(facts)

    def exporting(self) -> AbstractContextManager[None]:
        """Exports during the block, and exports the remaining facts at its end."""

        def work(over: threading.Event) -> None:
            while not over.wait(EXPORT_EVERY_S):
                self._export()
            self._export()
            self._dropped.inc(len(self._facts))

        return background_thread("tracing", work, end_within_s=LAST_EXPORT_S)

    def _export(self) -> None:
        """Sends all facts; if the collector is unreachable, keeps them for the next export."""
        while self._facts:
            taken = [self._facts.popleft() for _ in range(min(AT_ONCE, len(self._facts)))]
            try:
                self._exported.inc(self._exporter.export(taken))
                self._is_away = False
            except CollectorAwayError as error:
                self._facts.extendleft(reversed(taken))
                if not self._is_away:
                    self._is_away = True
                    logger.warning("the collector is unreachable", extra={"reason": str(error)})
                return
            except Exception as error:  # no response of a collector may end tracing
                self._dropped.inc(len(taken))
                logger.warning("the collector rejects spans", extra={"reason": str(error)})


def ns_of(moment: float) -> int:
    """Converts a recent `time.monotonic()` value to nanoseconds since 1970."""
    return time.time_ns() - int((time.monotonic() - moment) * 1e9)
