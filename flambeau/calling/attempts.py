"""Attempts of one call: its deadline, and retries if an overloaded server refused to start it.

The server says when a retry may succeed. gRPC itself retries UNAVAILABLE (`channel.py`); a refusal
for a rate or a full queue is RESOURCE_EXHAUSTED, which gRPC could not tell from a message that is
too large.

Rules:
- only a refusal with a delay from the server is retried, at most `retries` times;
- each wait is that delay and up to half as much again at random, so that refused clients do not
  return together;
- waits and attempts share one deadline; a retry that could only begin behind it is not made.
"""

import math
import random
import time

from flambeau.errors import OverloadedError

CALL_TIMEOUT_S = 30.0
"""Default timeout of a call, which does not wait for a job."""
DEFAULT_RETRIES = 3
MAX_RETRIES = 20
JITTER = 0.5
"""Largest part of the delay that is added to it."""


def check_timeout_s(timeout_s: float) -> float:
    """Returns the timeout in seconds if it is a valid deadline.

    Raises:
        ValueError: it is no number, not positive, or not finite.
    """
    if not isinstance(timeout_s, float | int) or not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s is {timeout_s!r}; give a positive number of seconds")
    return timeout_s


def check_retries(retries: int) -> int:
    """Returns the number of retries if it is valid.

    Raises:
        ValueError: it is no whole number, negative, or above `MAX_RETRIES`.
    """
    if not isinstance(retries, int) or not 0 <= retries <= MAX_RETRIES:
        raise ValueError(f"retries is {retries!r}; give 0 to {MAX_RETRIES}")
    return retries


class Attempts:
    """The attempts of one call.

    Args:
        timeout_s: timeout of the call in seconds, waits included.
        retries: number of retries.

    Raises:
        ValueError: the timeout is not a positive number.
    """

    def __init__(self, timeout_s: float, retries: int) -> None:
        self.timeout_s = check_timeout_s(timeout_s)
        self._deadline = time.monotonic() + timeout_s
        self._retries_left = retries

    @property
    def remaining_s(self) -> float:
        """Seconds left for the next attempt."""
        return max(self._deadline - time.monotonic(), 0)

    def wait_s(self, refusal: OverloadedError) -> float:
        """Returns the seconds to wait before the next attempt.

        Raises:
            OverloadedError: the refusal, if there is no next attempt.
        """
        if refusal.retry_after_s is None or self._retries_left == 0:
            raise refusal
        wait_s = refusal.retry_after_s * random.uniform(1, 1 + JITTER)  # noqa: S311  # no secret
        if wait_s >= self.remaining_s:
            raise refusal
        self._retries_left -= 1
        return wait_s
