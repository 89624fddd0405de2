"""Counters, times and log lines of inference requests, over all protocols."""

import itertools
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from services.errors import (
    BackendError,
    DeadlineExceededError,
    ModelNotReadyError,
    OverloadedError,
    RateLimitedError,
    ServingError,
    ShuttingDownError,
)
from services.queueing.directory import Directory
from services.queueing.records import Lane
from services.telemetry.line_allowance import LineAllowance
from services.telemetry.loop_metrics import CounterChild, HistogramChild
from services.telemetry.metrics import UNKNOWN, Metrics
from services.telemetry.model_figures import BACKEND, CANCELLED, OTHER, REJECTED
from services.tracing.tracer import Tracer

logger = logging.getLogger("flambeau.request")

REQUEST_ID = "x-request-id"
"""The HTTP header and the gRPC metadata entry that carry a request's id, both ways."""

_DISCONNECTED = ("499", "CANCELLED")
"""Codes of requests whose callers have disconnected."""
_SAFE_ID = re.compile(r"[ -~]{1,128}")
_MAX_CACHED_LABELS = 10_000
"""Served versions times codes; beyond it (unloaded versions) the cache is cleared."""
USUAL_CODES = {
    "rest": ("200", "500", "503", "504"),
    "grpc": ("OK", "INTERNAL", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"),
}
"""By protocol, usual codes of requests for a served version; others are the caller's errors."""
REFUSALS = (
    *OverloadedError.__subclasses__(), OverloadedError, ModelNotReadyError, ShuttingDownError,
)  # fmt: skip
"""Errors counted as refusals, each under its own name: these are all label values set here,
whatever callers ask for. Autoscalers wake the first worker by `ModelNotReadyError`."""
FAILURES_LOGGED_A_SECOND = 100
"""A log line costs more than a refusal: under overload, logging all would take all the time."""


def _new_ids(prefix: str) -> Callable[[], str]:
    """Returns a generator of ids unique across processes: 64 random bits, then a count."""
    numbers = itertools.count()
    return lambda: f"{prefix}{next(numbers):012x}"


class RequestAccounting:
    """Counts, times and logs requests."""

    def __init__(
        self,
        metrics: Metrics,
        directory: Directory,
        access_log: bool,
        tracer: Tracer | None = None,
    ) -> None:
        self.metrics = metrics
        self.directory = directory
        self.access_log = access_log
        self.tracer = tracer
        self._prefix = secrets.token_hex(8)
        self.new_id = _new_ids(self._prefix)
        """Returns a unique request id."""
        self._failures = LineAllowance(FAILURES_LOGGED_A_SECOND)
        self._children: dict[tuple[Lane | None, str, str], tuple[CounterChild, HistogramChild]] = {}
        for refusal in REFUSALS:
            metrics.refusals.labels(refusal.__name__)

    def safe_id(self, given: str) -> str:
        """Returns the caller's id, or a new one when that is not printable."""
        return given if _SAFE_ID.fullmatch(given) is not None else self.new_id()

    def given_id(self, request_id: str) -> str:
        """Returns a request's id if its caller gave it, else an empty string."""
        return "" if request_id.startswith(self._prefix) else request_id

    def may_log_failure(self, now: float) -> bool:
        """True if another failure may be logged this second; logs the number omitted."""
        left_out = self._failures.take(now)
        if left_out:
            logger.warning("failed requests left out", extra={"requests": left_out})
        return left_out is not None

    def expect(self, lane: Lane) -> None:
        """Initialises the usual counters of a served version to 0; see `Metrics.expect_lane`."""
        for protocol, codes in USUAL_CODES.items():
            for code in codes:
                if (lane, protocol, code) not in self._children:
                    self._new_children(lane, protocol, code)

    def count(
        self, lane: Lane | None, protocol: str, code: str, seconds: float, trace_id: str = ""
    ) -> None:
        """Counts and times one request; one without a lane under `unknown`.

        Args:
            lane: lane of the version that it counts for.
            protocol: `rest` or `grpc`.
            code: status code of the protocol.
            seconds: duration of the request.
            trace_id: id of its trace in hexadecimal, if that is kept: the exemplar.
        """
        counter, histogram = self.series(lane, protocol, code)
        counter.value += 1
        histogram.observe(seconds, trace_id)

    def series(
        self, lane: Lane | None, protocol: str, code: str
    ) -> tuple[CounterChild, HistogramChild]:
        """Returns the counter and the histogram of a version's requests that end with a code."""
        key = (lane, protocol, code)
        return self._children.get(key) or self._new_children(*key)

    def count_failed(
        self,
        lane: Lane | None,
        protocol: str,
        code: str,
        seconds: float,
        error: ServingError,
        trace_id: str = "",
    ) -> None:
        """Counts and times a request that an error ended; the other arguments are as for `count`.

        gRPC has one code for a caller over its rate and an overloaded model; the former must not
        count against the model.
        """
        charged = None if isinstance(error, RateLimitedError) else lane
        self.count(charged, protocol, code, seconds, trace_id)
        if charged is not None:
            figures = self.metrics.figures.of(charged.model, str(charged.version))
            figures.failed(_reason(error, code), seconds)
        self.count_refusal(error)

    def log_answer(self, facts: Mapping[str, object]) -> None:
        """Logs a request that was answered with outputs."""
        logger.info("request", extra=facts)

    def log_failure(self, facts: Mapping[str, object]) -> None:
        """Logs a request that an error ended."""
        logger.warning("request failed", extra=facts)

    def count_refusal(self, error: ServingError) -> None:
        """Counts an error only if it means that the request never ran."""
        if isinstance(error, REFUSALS):
            self.metrics.refusals.labels(type(error).__name__).inc()

    @contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Counts refusals inside the context, for calls without an `Inference`.

        These are submitted jobs, and the metadata that many clients read before their first
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
        if lane is not None:
            figures = self.metrics.figures.of(*labels)
            figures.counters[protocol, code], figures.histograms[protocol] = children
        return children


def _reason(error: ServingError, code: str) -> str:
    """Returns the reason of a failure, as Triton's metrics name it."""
    if code in _DISCONNECTED:
        return CANCELLED
    if isinstance(error, (*REFUSALS, DeadlineExceededError)):
        return REJECTED
    return BACKEND if isinstance(error, BackendError) else OTHER
