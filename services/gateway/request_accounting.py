"""Counters, times and log lines of inference requests, over all protocols."""

import itertools
import logging
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from services.errors import (
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
from services.tracing.tracer import Tracer

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
    ) -> None:
        self.metrics = metrics
        self.directory = directory
        self.access_log = access_log
        self.tracer = tracer
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

        gRPC has one code for a caller over its rate and for a model under overload; a model that is
        not to blame must not be charged.
        """
        charged = None if isinstance(error, RateLimitedError) else lane
        self.count(charged, protocol, code, seconds, trace_id)
        self.count_refusal(error)

    def log_answer(self, facts: Mapping[str, object]) -> None:
        """Logs a request that was answered with outputs."""
        logger.info("request", extra=facts)

    def log_failure(self, facts: Mapping[str, object]) -> None:
        """Logs a request that an error ended."""
        logger.warning("request failed", extra=facts)

    def count_refusal(self, error: ServingError) -> None:
        """Counts an error that says that what was asked for never ran; no other one."""
        if isinstance(error, REFUSALS):
            self.metrics.refusals.labels(type(error).__name__).inc()

    @contextmanager
    def counting_refusals(self) -> Iterator[None]:
        """Counts what is refused within, for what is no `Inference`.

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
