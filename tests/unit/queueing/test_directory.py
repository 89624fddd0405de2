"""A directory's answers on several models at once."""

import itertools
import time

import pytest

from services.errors import ServingError, UnknownModelError
from services.queueing.directory import FEW_MODELS, Directory
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


@pytest.fixture
def hints(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names that were compared with all others; it takes 10 ms."""
    compared: list[str] = []

    def nearest_name(name: str, _: object) -> str:
        compared.append(name)
        time.sleep(0.01)
        return " (a hint)"

    monkeypatch.setattr("services.queueing.directory.nearest_name", nearest_name)
    return compared


def of_models(count: int) -> Directory:
    directory = Directory()
    for number in range(count):
        directory.announce(ServedVersion(lane=Lane(f"m{number}", 1), state="ready"))
    return directory


@pytest.mark.parametrize(("models", "hinted"), [(FEW_MODELS, 5), (FEW_MODELS + 1, 1)])
def test_hints_among_many_models_take_a_part_of_the_time(
    hints: list[str], models: int, hinted: int
) -> None:
    directory = of_models(models)
    words = []
    for number in range(5):
        with pytest.raises(UnknownModelError) as refused:
            directory.find(f"unknown{number}")
        words.append(str(refused.value))
    assert len(hints) == sum("a hint" in one for one in words) == hinted


def test_lane_of_a_name_is_that_which_is_found(hints: list[str]) -> None:
    directory = of_models(2)
    directory.make_live(Lane("m0", 1))
    for name, version in itertools.product(("m0", "m1", "none", ""), ("", "1", "2", "x")):
        try:
            found = directory.find(name, version).lane
        except ServingError:
            found = None
        hints.clear()
        assert directory.served_lane(name, version) == found
        assert hints == []
