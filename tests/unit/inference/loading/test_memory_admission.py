"""Admission of versions by measured memory, and eviction of others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.loading.memory_admission import MEBIBYTE, MemoryAdmission, OutOfMemoryError
from services.queueing.records import Lane

A, B, C, NEW = (Lane(name, 1) for name in ("a", "b", "c", "new"))


def holding(limit: int, base: int = 0, **loaded: int) -> MemoryAdmission:
    """Returns an account in mebibytes."""
    memory = MemoryAdmission(limit * MEBIBYTE, base * MEBIBYTE)
    for name, taken in loaded.items():
        memory.loaded(Lane(name, 1), taken * MEBIBYTE)
    return memory


def test_what_fits_pushes_nobody_out() -> None:
    assert holding(100, base=10, a=30).to_unload(NEW, 60 * MEBIBYTE, [A]) == []


def test_what_does_not_fit_is_refused_with_the_figures() -> None:
    memory = holding(100, base=10, a=30, b=20)
    with pytest.raises(OutOfMemoryError) as refused:
        memory.to_unload(NEW, 41 * MEBIBYTE, [])
    text = str(refused.value)
    for figure in ("'new' version 1 needs 41 MiB", "100 MiB are the limit (max_memory_mib)",
                   "10 MiB the server's own", "50 MiB taken by 2 other versions",
                   "when_memory_full=unload_idle"):  # fmt: skip
        assert figure in text


def test_memory_of_versions_that_load_is_reserved() -> None:
    memory = holding(100, base=10, a=30)
    with memory.loading(B, 40 * MEBIBYTE):
        assert memory.room_bytes(NEW) == 20 * MEBIBYTE
        assert memory.room_bytes(B) == 60 * MEBIBYTE
        assert memory.to_unload(NEW, 21 * MEBIBYTE, [A]) == [A]
        memory.unloaded(A)
        with pytest.raises(OutOfMemoryError, match="40 MiB taken by 1 other") as refused:
            memory.to_unload(NEW, 51 * MEBIBYTE, [])
        assert refused.value.is_passing
        memory.loaded(B, 50 * MEBIBYTE)
        assert memory.room_bytes(NEW) == 40 * MEBIBYTE
    assert memory.room_bytes(NEW) == 40 * MEBIBYTE


def test_the_figures_add_up_to_more_than_the_limit() -> None:
    with pytest.raises(OutOfMemoryError, match="needs 61 MiB"):
        holding(100, base=10, a=30).to_unload(NEW, 60 * MEBIBYTE + 1, [])


def test_the_least_recently_used_leave_and_no_more_than_must() -> None:
    memory = holding(100, a=30, b=30, c=30)
    assert memory.to_unload(NEW, 10 * MEBIBYTE, [B, A, C]) == []
    assert memory.to_unload(NEW, 11 * MEBIBYTE, [B, A, C]) == [B]
    assert memory.to_unload(NEW, 41 * MEBIBYTE, [B, A, C]) == [B, A]


def test_nobody_is_named_for_what_does_not_fit_even_alone() -> None:
    with pytest.raises(OutOfMemoryError):
        holding(100, base=1, a=30).to_unload(NEW, 100 * MEBIBYTE, [A])


def test_what_is_in_use_stays() -> None:
    with pytest.raises(OutOfMemoryError):
        holding(100, a=60, b=30).to_unload(NEW, 50 * MEBIBYTE, [B])


def test_a_version_never_leaves_for_itself() -> None:
    memory = holding(100, a=60, b=30)
    assert memory.to_unload(A, 80 * MEBIBYTE, [A, B]) == [B]


def test_what_left_gives_its_memory_back_and_is_remembered() -> None:
    memory = holding(100, a=60)
    assert memory.expected_bytes(A, 7) == 60 * MEBIBYTE
    assert memory.expected_bytes(NEW, 7) == 7
    memory.unloaded(A)
    assert memory.to_unload(NEW, 100 * MEBIBYTE, []) == []
    assert memory.expected_bytes(A, 7) == 60 * MEBIBYTE


def test_what_a_version_leaves_behind_is_the_servers_own() -> None:
    memory = holding(100, base=10, a=40, b=30)
    memory.unloaded(A)  # of its 40 MiB, 15 were the runtime's
    memory.in_use(55 * MEBIBYTE)
    assert memory.expected_bytes(A, 7) == 25 * MEBIBYTE
    memory.loaded(A, 25 * MEBIBYTE)
    assert memory.to_unload(NEW, 20 * MEBIBYTE, []) == []
    assert memory.to_unload(NEW, 21 * MEBIBYTE, [B]) == [B]


def test_the_servers_own_never_shrinks_below_what_it_began_with() -> None:
    memory = holding(100, base=10, a=60)  # of which less is in use, as its weights are mapped
    memory.in_use(40 * MEBIBYTE)
    assert memory.to_unload(NEW, 31 * MEBIBYTE, [A]) == [A]


def test_what_is_not_loaded_makes_no_room() -> None:
    memory = holding(100, a=60, b=60)
    memory.unloaded(A)
    assert memory.to_unload(NEW, 50 * MEBIBYTE, [A, B]) == [B]


@given(
    st.integers(1, 100),
    st.dictionaries(st.sampled_from("abcdef"), st.integers(0, 40)),
    st.integers(0, 120),
    st.permutations("abcdef"),
)
def test_after_the_chosen_leave_it_fits(
    limit: int, loaded: dict[str, int], need: int, order: list[str]
) -> None:
    memory = holding(limit, **loaded)
    idle = [Lane(name, 1) for name in order if name in loaded]
    try:
        leaving = memory.to_unload(NEW, need * MEBIBYTE, idle)
    except OutOfMemoryError:
        assert need > limit
        return
    stays = sum(mib for name, mib in loaded.items() if Lane(name, 1) not in leaving)
    assert stays + need <= limit
    assert leaving == idle[: len(leaving)]
    if leaving:  # one fewer would not do
        assert stays + loaded[leaving[-1].model] + need > limit


def test_what_fits_once_versions_at_work_have_answered_is_told_apart() -> None:
    memory = holding(100, base=10, idle=30, busy=50)
    with pytest.raises(OutOfMemoryError) as caught:
        memory.to_unload(NEW, 80 * MEBIBYTE, [Lane("idle", 1)])
    assert caught.value.is_passing
    with pytest.raises(OutOfMemoryError) as caught:
        memory.to_unload(NEW, 91 * MEBIBYTE, [Lane("idle", 1)])
    assert not caught.value.is_passing
