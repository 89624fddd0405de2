"""A lost connection has its reason in an ending that was under way when it was made, or later."""

from tests.chaos.endings import Endings


def test_an_ending_explains_what_was_connected_before_it() -> None:
    endings = Endings()
    mark = endings.now()
    assert not endings.since(mark)
    with endings.one():
        assert endings.since(mark)
    assert endings.since(mark)


def test_an_ending_explains_what_was_connected_while_it_lasted() -> None:
    endings = Endings()
    with endings.one():
        mark = endings.now()
    assert endings.since(mark)


def test_an_ending_does_not_explain_what_was_connected_after_it() -> None:
    endings = Endings()
    with endings.one():
        pass
    assert not endings.since(endings.now())
