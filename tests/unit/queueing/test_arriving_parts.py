"""Parts of one answer that arrive in any order, some twice."""

from hypothesis import given
from hypothesis import strategies as st

from services.queueing.arriving_parts import REPORT_AFTER, ArrivingParts
from services.queueing.records import InferReply, Lane


def part(number: int, count: int) -> InferReply:
    """Returns one of so many replies; the last has no outputs."""
    return InferReply(
        lane=Lane("m", 1), outputs={}, datatypes={}, batch_rows=1, queue_s=0.0, execution_s=0.0,
        number=number, is_last=number == count,
    )  # fmt: skip


@given(st.integers(0, 20), st.data())
def test_each_part_comes_once_in_order_whatever_the_arrivals(
    count: int, data: st.DataObject
) -> None:
    numbers = [*range(count + 1)]
    again = data.draw(st.lists(st.sampled_from(numbers), max_size=20))
    arrivals = data.draw(st.permutations(numbers + again))
    told: list[int] = []
    parts = ArrivingParts(lambda: told.append(0))
    found = [one for number in arrivals for one in parts.arrived(part(number, count))]
    assert [one.number for one in found] == numbers
    assert [one.window is None for one in found] == [one.is_last for one in found]
    assert parts.given == count + 1


def test_worker_is_told_before_its_window_is_full_and_when_a_part_comes_again() -> None:
    told: list[int] = []
    parts = ArrivingParts(lambda: told.append(parts.read))
    for number in range(REPORT_AFTER + 1):
        assert len([*parts.arrived(part(number, 100))]) == 1
        parts.take()
    assert told == [REPORT_AFTER]
    assert not [*parts.arrived(part(0, 100))]
    assert told == [REPORT_AFTER, REPORT_AFTER + 1]
