"""The ledger: counts, times and logs every inference request once, whichever edge took it."""

import logging
import re
import time
import uuid

from services.errors import OverloadedError, ServingError, ShuttingDownError
from services.gateway.admission import InferAnswer
from services.queueing.directory import Directory
from services.queueing.records import Lane
from services.telemetry.metrics import UNKNOWN, Metrics

logger = logging.getLogger("flambeau.request")

REQUEST_ID = "x-request-id"
"""The HTTP header and the gRPC metadata entry that carry a request's id, both ways."""

_SAFE_ID = re.compile(r"[ -~]{1,128}")


class Ledger:
    """Opens one record a request."""

    def __init__(self, metrics: Metrics, directory: Directory, access_log: bool) -> None:
        self.metrics = metrics
        self.directory = directory
        self.access_log = access_log

    def open(self, protocol: str) -> "Record":
        """Starts a record and its clock."""
        return Record(self, protocol)


class Record:
    """One request, from its last byte to the first of its reply."""

    def __init__(self, ledger: Ledger, protocol: str) -> None:
        self._ledger = ledger
        self._protocol = protocol
        self._started = time.monotonic()
        self.request_id = ""
        self.model = ""
        self.version = ""
        self._lane: Lane | None = None
        self._batch_rows = 0

    def restart_clock(self) -> None:
        """Leaves out the time a slow sender took: the request is complete only now."""
        self._started = time.monotonic()

    def name(self, given_id: str, model: str, version: str) -> str:
        """Notes what the request is about; invents a printable id when the caller gave none.

        Returns:
            The id, which goes into the log and the reply.
        """
        self.model, self.version = model, version
        usable = _SAFE_ID.fullmatch(given_id) is not None
        self.request_id = given_id if usable else uuid.uuid4().hex
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
        model, version = self._labels()
        metrics = self._ledger.metrics
        metrics.requests.labels(model, version, self._protocol, code).inc()
        metrics.request_seconds.labels(model, version, self._protocol).observe(seconds)
        if isinstance(error, OverloadedError | ShuttingDownError):
            metrics.refusals.labels(type(error).__name__).inc()
        if error is not None or self._ledger.access_log:
            # The version as counted; of a name nobody knows, what the caller wrote.
            self._log(code, seconds, error, version if version != UNKNOWN else self.version[:32])

    def _labels(self) -> tuple[str, str]:
        """The served model and version, or `unknown`: a caller must not invent label values."""
        try:
            lane = self._lane or self._ledger.directory.find(self.model, self.version).lane
        except ServingError:
            return UNKNOWN, UNKNOWN
        return lane.model, str(lane.version)

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
