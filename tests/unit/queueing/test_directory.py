"""What a directory says of several models at once."""

import pytest

from services.queueing.directory import Directory
from services.queueing.records import Lane, ServedVersion


@pytest.mark.parametrize(
    ("models", "are_live"),
    [((), True), (("live",), True), (("live", "waiting"), False), (("unknown",), False)],
)
def test_models_are_live_when_each_of_them_is(models: tuple[str, ...], are_live: bool) -> None:
    directory = Directory()
    for model in ("live", "waiting"):
        directory.announce(ServedVersion(lane=Lane(model, 1), state="ready"))
    directory.make_live(Lane("live", 1))
    assert directory.are_live(models) is are_live
