"""The ledger: counts, times and logs every inference request once, whichever edge took it."""

import itertools
import logging
import re
import secrets
import time
from collections.abc import Callable

from services.errors import OverloadedError, ServingError, ShuttingDownError
from services.gateway.admission import InferAnswer
from services.queueing.directory import Directory
from services.queueing.records import Lane
from services.telemetry.loop_metrics import CounterChild, HistogramChild
from services.telemetry.metrics import UNKNOWN, Metrics

logger = logging.getLogger("flambeau.request")

REQUEST_ID = "x-request-id"
"""The HTTP header and the gRPC metadata entry that carry a request's id, both ways."""

_SAFE_ID = re.compile(r"[ -~]{1,128}")
_MAX_CACHED_LABELS = 10_000
"""Served versions times codes; beyond it (versions that came and went) the cache starts anew."""


def _new_ids() -> Callable[[], str]:
    """Ids no other process gives: a random part of 64 bits, then a count."""
    prefix, numbers = secrets.token_hex(8), itertools.count()
    return lambda: f"{prefix}{next(numbers):012x}"


class Ledger:
    """Opens one record a request."""

    def __init__(self, metrics: Metrics, directory: Directory, access_log: bool) -> None:
        self.metrics = metrics
        self.directory = directory
        self.access_log = access_log
        self.new_id = _new_ids()
        self._children: dict[tuple[Lane | None, str, str], tuple[CounterChild, HistogramChild]] = {}

    def open(self, protocol: str) -> "Record":
        """Starts a record and its clock."""
        return Record(self, protocol)

    def count(self, lane: Lane | None, protocol: str, code: str, seconds: float) -> None:
        """Counts and times one request; of a lane nobody knows, under `unknown`."""
        key = (lane, protocol, code)
        children = self._children.get(key)
        if children is None:
            if len(self._children) >= _MAX_CACHED_LABELS:
                self._children.clear()
            labels = (lane.model, str(lane.version)) if lane else (UNKNOWN, UNKNOWN)
            children = self._children[key] = (
                self.metrics.requests.labels(*labels, protocol, code),
                self.metrics.request_seconds.labels(*labels, protocol),
            )
        children[0].inc()
        children[1].observe(seconds)


class Record:
    """One request, from its last byte to the first of its reply."""

    __slots__ = (
        "_batch_rows", "_lane", "_ledger", "_protocol", "_started", "model", "request_id", "version"
    )  # fmt: skip

    def __init__(self, ledger: Ledger, protocol: str) -> None:
        self._ledger = ledger
        self._protocol = protocol
        self._started = time.monotonic()
        self.request_id = ""
        self.model = ""
        self.version = ""
        self._lane: Lane | None = None
        self._batch_rows = 0

    def name(self, given_id: str, model: str, version: str) -> str:
        """Notes what the request is about; invents a printable id when the caller gave none.

        Returns:
            The id, which goes into the log and the reply.
        """
        self.model, self.version = model, version
        usable = given_id and _SAFE_ID.fullmatch(given_id) is not None
        self.request_id = given_id if usable else self._ledger.new_id()
        return self.request_id

    def answered(self, answer: InferAnswer) -> None:
        """Notes which version answered: by now another one may be live."""
        self._lane, self._batch_rows = answer.lane, answer.reply.batch_rows

    def close(self, code: str, error: BaseException | None = None) -> None:
        """Counts, times and logs the request.

        Args:
            code: the protocol's own: an HTTP status or a gRPC code name.
            error: why it was not answered with outputs.
        """
        seconds = time.monotonic() - self._started
        ledger, lane = self._ledger, self._lane or self._find_lane()
        ledger.count(lane, self._protocol, code, seconds)
        if isinstance(error, OverloadedError | ShuttingDownError):
            ledger.metrics.refusals.labels(type(error).__name__).inc()
        if error is not None or ledger.access_log:
            # The version as counted; of a name nobody knows, what the caller wrote.
            self._log(code, seconds, error, str(lane.version) if lane else self.version[:32])

    def _find_lane(self) -> Lane | None:
        """The served version a refused request named: a caller must not invent label values."""
        try:
            return self._ledger.directory.find(self.model, self.version).lane
        except ServingError:
            return None

    def _log(self, code: str, seconds: float, error: BaseException | None, version: str) -> None:
        extra: dict[str, object] = {
            "request_id": self.request_id,
            "protocol": self._protocol,
            "model": self.model[:128],
            "version": version,
            "code": code,
            "duration_ms": round(seconds * 1000, 3),
        }
        if error is None:
            extra["batch_rows"] = self._batch_rows
            logger.info("request", extra=extra)
        else:
            extra["error"] = str(error)
            logger.warning("request failed", extra=extra)
