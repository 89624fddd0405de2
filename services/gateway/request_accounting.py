"""Counts, times and logs every inference request once, over all protocols."""

import functools
import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from services.errors import (
    ModelNotReadyError,
    OverloadedError,
    RateLimitedError,
    ServingError,
    ShuttingDownError,
)
from services.queueing.directory import Directory
from services.queueing.records import InferReply, Lane
from services.telemetry.line_allowance import LineAllowance
from services.telemetry.loop_metrics import CounterChild, HistogramChild
from services.telemetry.metrics import UNKNOWN, Metrics
from services.tracing.context import TraceContext
from services.tracing.tracer import EdgeFacts, Tracer

if TYPE_CHECKING:
    from services.gateway.payloads.sampler import PayloadSampler

logger = logging.getLogger("flambeau.request")

REQUEST_ID = "x-request-id"
"""The HTTP header and the gRPC metadata entry that carry a request's id, both ways."""

_SAFE_ID = re.compile(r"[ -~]{1,128}")
_MAX_CACHED_LABELS = 10_000
"""Served versions times codes; beyond it (versions that came and went) the cache starts anew."""
USUAL_CODES = {
    "rest": ("200", "500", "503", "504"),
    "grpc": ("OK", "INTERNAL", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"),
}
"""By protocol, what requests for a version that is served end with; the others are the caller's."""
REFUSALS = (
    *OverloadedError.__subclasses__(), OverloadedError, ModelNotReadyError, ShuttingDownError,
)  # fmt: skip
"""What is counted as a refusal, by its own name: the label has these values and no others of
here, whatever callers ask for. Autoscalers wake the first worker by `ModelNotReadyError`."""
FAILURES_LOGGED_A_SECOND = 100
"""A line costs more than a refusal: under overload, lines for all would leave time for nothing."""


def _new_ids() -> Callable[[], str]:
    """Ids no other process gives: a random part of 64 bits, then a count."""
    prefix, numbers = secrets.token_hex(8), itertools.count()
    return lambda: f"{prefix}{next(numbers):012x}"


class RequestAccounting:
    """Where all records are counted."""

    def __init__(
        self,
        metrics: Metrics,
        directory: Directory,
        access_log: bool,
        tracer: Tracer | None = None,
        sampler: "PayloadSampler | None" = None,
    ) -> None:
        self.metrics = metrics
        self.directory = directory
        self.access_log = access_log
        self.tracer = tracer
        self.sampler = sampler
        """To be shown each request that goes to admission, if payloads are sampled."""
        self.open = functools.partial(Record, self)
        """Starts a `Record`. Not a method: a call less for every request."""
        self.new_id = _new_ids()
        """Gives an id that no other request has."""
        self._failures = LineAllowance(FAILURES_LOGGED_A_SECOND)
        self._children: dict[tuple[Lane | None, str, str], tuple[CounterChild, HistogramChild]] = {}
        for refusal in REFUSALS:
            metrics.refusals.labels(refusal.__name__)

    def safe_id(self, given: str) -> str:
        """The caller's id, or a new one when that is not printable."""
        return given if _SAFE_ID.fullmatch(given) is not None else self.new_id()

    def may_log_failure(self, now: float) -> bool:
        """Whether another failed request may have a line this second; says how many had none."""
        left_out = self._failures.take(now)
        if left_out:
            logger.warning("failed requests left out", extra={"requests": left_out})
        return left_out is not None

    def expect(self, lane: Lane) -> None:
        """Begins at 0 the usual counts of a version that is served; see `Metrics.expect_lane`."""
        for protocol, codes in USUAL_CODES.items():
            for code in codes:
                if (lane, protocol, code) not in self._children:
                    self._new_children(lane, protocol, code)

    def count(
        self, lane: Lane | None, protocol: str, code: str, seconds: float, trace_id: str = ""
    ) -> None:
        """Counts and times one request; of a lane nobody knows, under `unknown`.

        Args:
            lane: the version that it counts for.
            protocol: `rest` or `grpc`.
            code: the protocol's own.
            seconds: how long it took.
            trace_id: of its trace in hexadecimal, if that is kept: the exemplar.
        """
        key = (lane, protocol, code)
        counter, histogram = self._children.get(key) or self._new_children(*key)
        counter.value += 1
        histogram.observe(seconds, trace_id)

    def count_refusal(self, error: ServingError) -> None:
        """Counts an error that says that what was asked for never ran; no other one."""
        if isinstance(error, REFUSALS):
            self.metrics.refusals.labels(type(error).__name__).inc()

    @contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Counts what is refused within, for what has no `Record`.

        That is a job that is handed in, and the metadata that many clients read before their first
        inference: both ask for a worker.
        """
        try:
            yield
        except ServingError as error:
            self.count_refusal(error)
            raise

    def _new_children(
        self, lane: Lane | None, protocol: str, code: str
    ) -> tuple[CounterChild, HistogramChild]:
        if len(self._children) >= _MAX_CACHED_LABELS:
            self._children.clear()
        labels = (lane.model, str(lane.version)) if lane else (UNKNOWN, UNKNOWN)
        children = self._children[lane, protocol, code] = (
            self.metrics.requests.labels(*labels, protocol, code),
            self.metrics.request_seconds.labels(*labels, protocol),
        )
        return children


class Record:
    """One request, from its last byte to the first of its reply.

    Args:
        accounting: where it is counted.
        protocol: `rest` or `grpc`.
        given_id: the caller's; a printable one is invented when it gave none.
        model: as the caller wrote it.
        version: likewise.
        traceparent: what the caller says of its trace (W3C Trace Context); empty for nothing.
    """

    __slots__ = (
        "_accounting", "model", "protocol", "request_id", "started", "trace", "trace_id", "version",
    )  # fmt: skip

    def __init__(
        self,
        accounting: RequestAccounting,
        protocol: str,
        given_id: str,
        model: str,
        version: str,
        traceparent: str = "",
    ) -> None:
        self.started = time.monotonic()
        self._accounting = accounting
        self.protocol = protocol
        self.model = model
        self.version = version
        self.request_id = accounting.safe_id(given_id) if given_id else accounting.new_id()
        """Printable; goes into the log and the reply."""
        self.trace: TraceContext | None = None
        """What travels with the request if it is traced here."""
        self.trace_id = ""
        """In hex: of its trace, which may be one that only the caller records; empty for none."""
        if accounting.tracer is not None:
            self.trace, self.trace_id = accounting.tracer.begin(traceparent)

    def close(self, code: str, reply: InferReply) -> None:
        """Counts, times and, if asked to, logs a request that was answered with outputs.

        Args:
            code: the protocol's own: an HTTP status or a gRPC code name.
            reply: it says which version answered; by now another one may be live.
        """
        accounting = self._accounting
        seconds = time.monotonic() - self.started
        accounting.count(
            reply.lane, self.protocol, code, seconds, self.trace_id if self.trace else ""
        )
        if self.trace is not None:
            self._end_trace(self.trace, code, str(reply.lane.version))
        if accounting.access_log:
            extra = self._facts(code, seconds, str(reply.lane.version))
            logger.info("request", extra={**extra, "batch_rows": reply.batch_rows})

    def close_failed(self, code: str, error: ServingError, lane: Lane | None = None) -> None:
        """Counts, times and logs a request that was not answered with outputs.

        Args:
            code: as for `close`.
            error: why.
            lane: the version that answered, when its answer could not be told.
        """
        accounting, lane = self._accounting, lane or self._find_lane()
        now = time.monotonic()
        seconds = now - self.started
        # gRPC has one code for a caller over its rate and for a model under overload; a model that
        # is not to blame must not be charged.
        charged = None if isinstance(error, RateLimitedError) else lane
        accounting.count(charged, self.protocol, code, seconds, self.trace_id if self.trace else "")
        accounting.count_refusal(error)
        if self.trace is not None:
            version = str(lane.version) if lane else self.version[:32]
            self._end_trace(self.trace, code, version, type(error).__name__)
        if accounting.may_log_failure(now):
            # The version as counted; of a name nobody knows, what the caller wrote.
            extra = self._facts(code, seconds, str(lane.version) if lane else self.version[:32])
            logger.warning("request failed", extra={**extra, "error": str(error)})

    def _find_lane(self) -> Lane | None:
        """The served version a refused request named: a caller must not invent label values."""
        return self._accounting.directory.served_lane(self.model, self.version)

    def _end_trace(self, trace: TraceContext, code: str, version: str, error: str = "") -> None:
        tracer = self._accounting.tracer
        assert tracer is not None
        tracer.keep(
            EdgeFacts(
                trace=trace,
                protocol=self.protocol,
                model=self.model[:128],
                version=version,
                code=code,
                error=error,
                request_id=self.request_id,
                ended_ns=time.time_ns(),
            )
        )

    def _facts(self, code: str, seconds: float, version: str) -> dict[str, object]:
        trace = {"trace_id": self.trace_id} if self.trace_id else {}
        return {
            **trace,
            "request_id": self.request_id,
            "protocol": self.protocol,
            "model": self.model[:128],
            "version": version,
            "code": code,
            "duration_ms": round(seconds * 1000, 3),
        }
