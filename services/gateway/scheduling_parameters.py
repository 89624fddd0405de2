"""Scheduling by the caller: the request parameters `timeout` and `priority`.

Source: Triton's inference request parameters of the same names. Both edges read them; each
passes the values that it decoded.
"""

from services.errors import InvalidRequestError
from services.queueing.records import LOWEST_PRIORITY

WAY_BACK_SHARE = 0.1
"""Largest share of a caller's timeout that is reserved for the response's way back."""
MAX_TIMEOUT_US = 2**63 - 1
"""Largest value of gRPC's `int64_param`."""


def time_for_work(timeout_s: float, way_back_s: float) -> float:
    """Returns the part of a caller's timeout for the work: the response must arrive in time.

    Args:
        timeout_s: timeout of the caller, from now.
        way_back_s: time that an edge takes to write a response, at worst on a busy machine.
    """
    return timeout_s - min(way_back_s, WAY_BACK_SHARE * timeout_s)


def checked_scheduling(timeout: object, priority: object) -> tuple[int, int]:
    """Checks both parameters; an absent one is 0.

    Returns:
        The caller's timeout in microseconds from now, 0 for none; and the priority, 1
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
    """Returns the deadline of the work on a request.

    Args:
        received_at: `time.monotonic()` second of its last byte.
        timeout_us: value of its parameter `timeout`, from then on; 0 for no limit.
        ends_at: second at which its transport's own timeout ends; infinite without one.
        way_back_s: as for `time_for_work`.
    """
    if timeout_us:
        ends_at = min(ends_at, received_at + timeout_us / 1e6)
    return received_at + time_for_work(ends_at - received_at, way_back_s)
