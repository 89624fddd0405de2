"""Failures of one model, of any type: formats their message, and raises them out of a thread.

In: work on the files of one model, which are untrusted. Out: its result, or an `Exception`.

Rule: some libraries raise a `BaseException` that is no `Exception` (a panic in Rust code, `exit()`
in a model's own code); asyncio would end the process for it, so it is converted.
"""

import asyncio
import contextvars
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from model_store.errors import StoreError
from model_store.host.failure_text import sendable
from services.errors import BackendError
from services.inference.loading.loader import LoadError
from services.low_priority_thread import start_at_low_priority
from services.queueing.records import Lane

logger = logging.getLogger("flambeau.reconciler")

PUT_OFF_S = 0.2
"""Delay before a requested version is tried again that had no room beside those at work."""
MAX_REASON = 2_000
"""Maximum characters of a reason, which is logged, announced and returned to clients."""

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Failures:
    """Versions of one model that could not be loaded."""

    at: dict[int, float] = field(default_factory=dict)
    """`time.monotonic()` second of the last failure, by version."""
    reasons: dict[int, str] = field(default_factory=dict)
    """Last logged reason why a version was refused, by version."""

    def is_due(self, version: int, after_s: float) -> bool:
        """Returns True unless a version failed within so many seconds."""
        failed_at = self.at.get(version)
        return failed_at is None or time.monotonic() - failed_at >= after_s

    def put_off(self, version: int, after_s: float) -> float:
        """Makes a version due in `PUT_OFF_S`; others are `after_s` after their failures.

        Returns:
            Seconds after which it certainly is: a timer may be a millisecond early.
        """
        self.at[version] = time.monotonic() - max(after_s - PUT_OFF_S, 0)
        return 1.1 * PUT_OFF_S

    def log(self, lane: Lane, reason: str, error: Exception) -> None:
        """Logs that a version is refused, if the reason is new."""
        if self.reasons.get(lane.version) != reason:
            self.reasons[lane.version] = reason
            logger.error(
                "version refused",
                extra={"model": lane.model, "version": lane.version, "reason": reason},
                exc_info=None if is_expected(error) else error,
            )

    def forget(self, version: int) -> None:
        """Forgets a version: it is loaded."""
        self.at.pop(version, None)
        self.reasons.pop(version, None)


class Complaints:
    """Faults of the store and of its models, each logged when it appears or changes."""

    def __init__(self) -> None:
        self._reasons: dict[str, str] = {}

    def log(self, topic: str, fault: str, reason: str, bug: Exception | None = None) -> None:
        """Logs a fault, unless it is logged already.

        Args:
            topic: subject of the message.
            fault: rest of the message.
            reason: why.
            bug: exception of an unexpected type, whose traceback is logged.
        """
        if self._reasons.get(topic) != reason:
            self._reasons[topic] = reason
            logger.error(f"{topic} {fault}", extra={"reason": reason}, exc_info=bug)

    def failed(self, topic: str, fault: str, error: Exception) -> None:
        """Logs a fault that is an exception."""
        self.log(topic, fault, reason_of(error), None if is_expected(error) else error)

    def settle(self, topic: str) -> None:
        """Forgets a fault: it is gone."""
        self._reasons.pop(topic, None)

    def reason(self, topic: str) -> str:
        """Returns the present reason of a topic; empty for none."""
        return self._reasons.get(topic, "")


async def in_thread(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs work on one model in a daemon thread: a server that stops does not wait for its end.

    Raises:
        Exception: the exception of the work; a `LoadError` in place of any other `BaseException`.
    """
    here = contextvars.copy_context()
    running = start_at_low_priority(
        lambda: here.run(lambda: guarded(work, *args, **kwargs)), steps=0
    )
    return await asyncio.wrap_future(running)


def guarded(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs work on one model in the calling thread.

    Raises:
        Exception: as `in_thread`.
    """
    try:
        return work(*args, **kwargs)
    except Exception:
        raise
    except BaseException as error:
        raise LoadError(f"it ended the thread that reads it: {error!r}") from error


def reason_of(error: BaseException) -> str:
    """Returns the message of a failure, preceded by its type if it is unexpected."""
    text = str(error) if is_expected(error) else f"{type(error).__name__}: {error}"
    text = sendable(text)  # file names may not be valid text
    return text if len(text) <= MAX_REASON else text[: MAX_REASON - 3] + "..."


def is_expected(error: BaseException) -> bool:
    """Returns True if an error is of a known type, with a message for users."""
    return isinstance(error, StoreError | LoadError | BackendError)
