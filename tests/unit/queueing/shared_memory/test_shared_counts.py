"""Counts that several processes write, each its own."""

import os

from services.queueing.shared_memory.shared_counts import SharedCounts, make_counts


def test_each_sees_the_sum_of_the_others() -> None:
    descriptor = make_counts()
    one, other = (SharedCounts(descriptor, 3) for _ in range(2))
    os.close(descriptor)
    assert one.set(0, 5) == 0
    assert other.set(2, 7) == 5
    assert one.set(0, 6) == 7
    assert one.set(1, 1) == 13
    assert other.set(2, 0) == 7
