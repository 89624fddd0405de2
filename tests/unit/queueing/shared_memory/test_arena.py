"""Blocks of an arena: apart from each other, within it, and all of it again in the end."""

from hypothesis import given
from hypothesis import strategies as st

from services.queueing.shared_memory.arena import ALIGNED_TO, Arena

SIZE = 16 * ALIGNED_TO


@given(st.lists(st.integers(-20, SIZE), max_size=60))
def test_blocks_never_overlap_and_nothing_is_lost(steps: list[int]) -> None:
    """A number takes a block of so many bytes; a negative one frees one of those there are."""
    arena = Arena(SIZE)
    blocks: dict[int, int] = {}
    for size in steps:
        if size < 0:
            if blocks:
                freed = sorted(blocks)[size % len(blocks)]
                del blocks[freed]
                arena.give(freed)
            continue
        block = arena.take(size)
        if block is None:
            assert blocks, "an empty arena takes what is not larger than it"
            continue
        assert block % ALIGNED_TO == 0
        assert block + size <= SIZE
        for start, other in blocks.items():
            assert block + size <= start or start + other <= block
            assert block != start
        blocks[block] = size
    for block in blocks:
        arena.give(block)
    assert arena.used_bytes == 0
    assert arena.take(SIZE) == 0, "the gaps have become one again"


def test_gap_that_is_too_small_is_passed_over() -> None:
    arena = Arena(SIZE)
    first, second = arena.take(ALIGNED_TO), arena.take(ALIGNED_TO)
    assert (first, second) == (0, ALIGNED_TO)
    arena.give(0)
    assert arena.take(2 * ALIGNED_TO) == 2 * ALIGNED_TO
    assert arena.take(1) == 0
    assert arena.take(SIZE) is None
