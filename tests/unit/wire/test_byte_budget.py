"""The byte budget: charges, evictions, refusals."""

import pytest

from services.errors import BufferFullError
from services.wire.byte_budget import RESERVED_PART, SMALL_BYTES, TINY_BYTES, ByteBudget
from tests.unit.wire.http_wire import on_loop

LIMIT_BYTES = 100 * SMALL_BYTES
LARGE_LIMIT_BYTES = LIMIT_BYTES - LIMIT_BYTES // RESERVED_PART


class Connection:
    """Holds bytes and waits for its peer, which moves so many a second."""

    def __init__(self, budget: ByteBudget, held_bytes: int, pace: float | None) -> None:
        self.budget = budget
        self.held_bytes = held_bytes
        self.bytes_a_second = pace
        self.errors: list[BufferFullError] = []
        budget.take(held_bytes)
        budget.waiting.add(self)

    def pace(self, _: float) -> float | None:
        """Returns the configured pace."""
        return self.bytes_a_second

    def shed(self, error: BufferFullError) -> None:
        """Gives all back."""
        self.budget.waiting.remove(self)
        self.budget.give(self.held_bytes)
        self.errors.append(error)


def test_bytes_are_charged_until_they_are_given_back() -> None:
    async def test() -> None:
        budget = ByteBudget(LIMIT_BYTES)
        budget.take(LARGE_LIMIT_BYTES)
        with pytest.raises(BufferFullError, match=f"{LIMIT_BYTES} is the limit"):
            budget.take(SMALL_BYTES + 1)
        assert budget.held_bytes == LARGE_LIMIT_BYTES
        budget.give(LARGE_LIMIT_BYTES)
        budget.take(SMALL_BYTES + 1)
        assert budget.held_bytes == SMALL_BYTES + 1

    on_loop(test)


def test_reserved_part_is_for_small_holders() -> None:
    async def test() -> None:
        budget = ByteBudget(LIMIT_BYTES)
        budget.take(LARGE_LIMIT_BYTES)
        with pytest.raises(BufferFullError):
            budget.take(1, holder_bytes=SMALL_BYTES)
        while budget.held_bytes + SMALL_BYTES <= budget.small_limit_bytes:
            budget.take(SMALL_BYTES)
        with pytest.raises(BufferFullError):
            budget.take(SMALL_BYTES)
        while budget.held_bytes + TINY_BYTES <= LIMIT_BYTES:
            budget.take(TINY_BYTES)
        assert budget.small_limit_bytes < budget.held_bytes
        with pytest.raises(BufferFullError):
            budget.take(TINY_BYTES)

    on_loop(test)


def test_slowest_connections_make_room() -> None:
    async def test() -> None:
        budget = ByteBudget(LIMIT_BYTES)
        size = LARGE_LIMIT_BYTES // 10
        connections = [Connection(budget, size, pace) for pace in (50.0, 10.0, 90.0, 0.0) * 2]
        budget.take(LARGE_LIMIT_BYTES - budget.held_bytes)
        budget.take(2 * size)
        shed = [one.bytes_a_second for one in connections if one.errors]
        assert sorted(map(str, shed)) == ["0.0", "0.0", "10.0"]  # with some room to spare
        assert "moved 0 bytes/s" in str(connections[3].errors[0])
        assert budget.held_bytes <= LARGE_LIMIT_BYTES

    on_loop(test)


def test_connections_that_have_just_begun_or_do_not_wait_are_left_alone() -> None:
    async def test() -> None:
        budget = ByteBudget(LIMIT_BYTES)
        young = [Connection(budget, LARGE_LIMIT_BYTES // 4, None) for _ in range(4)]
        with pytest.raises(BufferFullError):
            budget.take(SMALL_BYTES + 1)
        budget.take(SMALL_BYTES)
        assert not any(one.errors for one in young)

    on_loop(test)


def test_fruitless_searches_are_not_repeated_at_once() -> None:
    looks = []

    class Watched(Connection):
        def pace(self, _: float) -> None:
            looks.append(self)

    async def test() -> None:
        budget = ByteBudget(LIMIT_BYTES)
        Watched(budget, LARGE_LIMIT_BYTES, None)
        for _ in range(10):
            with pytest.raises(BufferFullError):
                budget.take(LIMIT_BYTES)
        assert len(looks) == 1

    on_loop(test)
