"""What a caller may ask of the queue: the request parameters `timeout` and `priority`.

Source: Triton's inference request parameters of the same names. Both edges read them; each hands
over what its encoding made of the values.
"""

from services.errors import InvalidRequestError
from services.queueing.records import LOWEST_PRIORITY

WAY_BACK_SHARE = 0.1
"""The most of a caller's time that is kept for the way back."""
MAX_TIMEOUT_US = 2**63 - 1
"""The most that gRPC's `int64_param` can say."""


def time_for_work(timeout_s: float, way_back_s: float) -> float:
    """What a caller's time leaves for the work: its answer is to be there by then, not to leave.

    Args:
        timeout_s: what the caller allows, from now.
        way_back_s: what an edge takes to write an answer, the worst of a busy machine.
    """
    return timeout_s - min(way_back_s, WAY_BACK_SHARE * timeout_s)


def checked_scheduling(timeout: object, priority: object) -> tuple[int, int]:
    """Checks both parameters; one that was not given comes as 0.

    Returns:
        Microseconds the caller allows from now, 0 for no limit of its own; and the priority, 1
        (first) to 10 (last), 0 for the default.

    Raises:
        InvalidRequestError: one is not a whole number, or outside its range.
    """
    if type(timeout) is not int or not 0 <= timeout <= MAX_TIMEOUT_US:
        raise InvalidRequestError(
            "parameter 'timeout' must be a whole number of microseconds, from 0 (no limit) to "
            f"{MAX_TIMEOUT_US}, and is {timeout!r:.60}"
        )
    if type(priority) is not int or not 0 <= priority <= LOWEST_PRIORITY:
        raise InvalidRequestError(
            f"parameter 'priority' must be a whole number from 0 (the default) or 1 (first) to "
            f"{LOWEST_PRIORITY} (last), and is {priority!r:.60}"
        )
    return timeout, priority


def work_deadline(received_at: float, timeout_us: int, ends_at: float, way_back_s: float) -> float:
    """The second at which the work on a request must be done.

    Args:
        received_at: `time.monotonic()` second of its last byte.
        timeout_us: what its parameter `timeout` allows from then on; 0 for no limit.
        ends_at: the second at which its transport's own timeout ends; infinite without one.
        way_back_s: as for `time_for_work`.
    """
    if timeout_us:
        ends_at = min(ends_at, received_at + timeout_us / 1e6)
    return received_at + time_for_work(ends_at - received_at, way_back_s)
