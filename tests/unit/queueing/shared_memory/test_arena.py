"""Blocks of an arena: apart from each other, within it, and all of it again in the end."""

from hypothesis import given
from hypothesis import strategies as st

from services.queueing.shared_memory.arena import ALIGNED_TO, Arena

SIZE = 16 * ALIGNED_TO


@given(st.data())
def test_blocks_never_overlap_and_nothing_is_lost(data: st.DataObject) -> None:
    arena = Arena(SIZE)
    blocks: dict[int, int] = {}
    for _ in range(data.draw(st.integers(0, 60))):
        if blocks and data.draw(st.booleans()):
            freed = data.draw(st.sampled_from(sorted(blocks)))
            del blocks[freed]
            arena.give(freed)
            continue
        size = data.draw(st.integers(0, SIZE))
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
