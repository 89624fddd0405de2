"""Tracks and logs the reachability of Redis for one process.

In: each answer of Redis, and each fault, from any part of the process. Out: a log line when Redis
is first out of reach, one every `AGAIN_S` while it stays so, and one when it answers again.

Rule: Redis answers again once there has been no fault for `QUIET_S`. Of a cluster one
server may answer while another does not.
"""

import logging
import time
from collections.abc import Callable

from redis.exceptions import OutOfMemoryError

from services.errors import (
    ModelNotReadyError,
    QueueFullError,
    QueueUnavailableError,
    ServingError,
    WouldMissDeadlineError,
)
from services.queueing.records import InferRequest

logger = logging.getLogger("flambeau.queue")

AGAIN_S = 30.0
"""Interval of log lines while Redis is unreachable."""
QUIET_S = 3.0
"""Longer than a blocking command waits for Redis: what fails again and again fails within it."""


class Outage:
    """Tracks the outages of one Redis.

    Args:
        url: URL of Redis, without its password.
        clock: seconds, by a clock that only goes forward.

    Attributes:
        why: URL of Redis, its setting, and the failure; empty while it answers.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._url = url
        self._clock = clock
        self._answers: bool | None = None
        """None until the first command."""
        self._failed_at = self._logged_at = 0.0
        self.why = ""

    def failed(self, error: Exception) -> None:
        """Records that Redis did not answer."""
        self._failed_at = self._clock()
        self.why = unreachable_reason(self._url, error)
        if self._answers is not False or self._failed_at - self._logged_at >= AGAIN_S:
            self._answers, self._logged_at = False, self._failed_at
            logger.error("the queue is unreachable", extra={"reason": self.why})

    def answered(self) -> None:
        """Records that Redis answered."""
        if self._answers is True:
            return
        if self._answers is None or self._clock() - self._failed_at >= QUIET_S:
            self._answers, self.why = True, ""
            logger.info("the queue is reachable", extra={"queue": self._url})


def unreachable_reason(url: str, error: Exception) -> str:
    """Returns a message with the reason of an outage and the remedy.

    Args:
        url: URL of Redis, without its password.
        error: error of the connection.
    """
    met = (str(error) or type(error).__name__).rstrip(".")
    return f"{url}: {met}; start Redis there, or set --queue to where it runs"


def unreachable(reason: str) -> QueueUnavailableError:
    """Returns the error of requests while Redis is unreachable."""
    return QueueUnavailableError(f"the queue is unreachable ({reason}); retry later")


def refused(result: object, request: InferRequest, max_depth: int) -> ServingError:
    """The error of a request that Redis did not accept.

    Args:
        result: result of the script for it, or Redis' error.
        request: the request.
        max_depth: the most requests a lane may hold in Redis.
    """
    lane = request.lane
    if result == b"closed":
        return ModelNotReadyError(f"no worker serves model {lane} at present; try again")
    if result == b"full":
        return QueueFullError(
            f"the queue of model {lane} holds {max_depth} requests, its limit; retry later or add "
            "workers"
        )
    if result == b"late":
        return WouldMissDeadlineError(
            f"the estimated time to drain the queue of model {lane} exceeds the deadline of "
            f"request '{request.request_id}'; give it more time, retry later or add workers"
        )
    if isinstance(result, OutOfMemoryError):
        return QueueFullError(
            f"the queue of model {lane} has no memory left ({result}); retry later, or raise "
            "Redis' maxmemory"
        )
    return unreachable(str(result))
