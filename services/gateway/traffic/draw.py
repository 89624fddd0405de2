"""Draws the version of a request, by the shares of a rollout or a split. Pure.

A key is hashed with the id of the rollout or the split to a point of [0, 1): the same in every
process, and after a restart. A rollout's candidate has the points below its share, so that a
growing share keeps the keys that had the candidate before.
"""

import hashlib
import time
from collections import OrderedDict
from collections.abc import Sequence
from itertools import accumulate

from model_store.rollouts.traffic import Rollout, Split
from services.queueing.records import SequenceStep

MAX_OPEN_SEQUENCES = 100_000
"""Open sequences whose version is remembered; of further ones, the longest unused is forgotten."""
_BITS = 64


def point_of(route_id: str, key: str) -> float:
    """Returns the point of a key, uniform in [0, 1).

    Args:
        route_id: id of the rollout or the split: each one draws anew.
        key: value of the header or the parameter that it is sticky by, or the id of a sequence.
    """
    text = f"{route_id}\0{key}".encode("utf-8", "surrogatepass")
    digest = hashlib.blake2b(text, digest_size=_BITS // 8).digest()
    return (int.from_bytes(digest) >> (_BITS - 53)) / 2**53  # as many bits as a float has


def version_ends(route: Rollout | Split) -> list[tuple[float, int]]:
    """Returns where the parts of [0, 1) end, in order, and the versions that they draw."""
    if isinstance(route, Rollout):
        return [(route.share, route.candidate), (1.0, route.baseline)]
    ends = accumulate(arm.share for arm in route.arms)
    return [(end, arm.version) for end, arm in zip(ends, route.arms, strict=True)]


def version_at(ends: Sequence[tuple[float, int]], point: float) -> int:
    """Returns the version that a point of [0, 1) draws, by `version_ends`."""
    for end, version in ends:
        if point < end:
            return version
    return ends[-1][1]  # the shares add up to 1 but for rounding


class SequenceVersions:
    """Remembers the version of each open sequence, so that a growing share moves none.

    A step that another process has not seen before is drawn by the hash of its sequence's id, so
    processes agree as long as the share stays. Each rollout and each split draws anew.
    """

    def __init__(self) -> None:
        self._open: OrderedDict[tuple[str, str], tuple[int, float]] = OrderedDict()
        """Version, and `time.monotonic()` second at which it ends, by route and sequence."""

    def known(self, route_id: str, step: SequenceStep) -> int | None:
        """Returns the version that has the state of a step; None if it begins or is not known.

        Args:
            route_id: id of the rollout or the split.
            step: place in the sequence.
        """
        found = None if step.is_start else self._open.get((route_id, step.id))
        return found[0] if found is not None and time.monotonic() < found[1] else None

    def keep(self, route_id: str, step: SequenceStep, idle_s: float, version: int) -> None:
        """Remembers the version that gets a step, until the last one.

        Args:
            route_id: id of the rollout or the split.
            step: place in the sequence.
            idle_s: time without a step after which the sequence ends.
            version: the version that gets the step, which may be another than was drawn.
        """
        key = route_id, step.id
        if step.is_end:
            self._open.pop(key, None)
            return
        self._open[key] = version, time.monotonic() + idle_s
        self._open.move_to_end(key)
        if len(self._open) > MAX_OPEN_SEQUENCES:
            self._open.popitem(last=False)

    def renew(self, route_id: str, step: SequenceStep, idle_s: float) -> None:
        """Counts the idle time from now: the step is answered."""
        key = route_id, step.id
        if (found := self._open.get(key)) is not None:
            self._open[key] = found[0], time.monotonic() + idle_s
            self._open.move_to_end(key)
