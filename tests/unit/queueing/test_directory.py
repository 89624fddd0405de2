"""A directory's answers on several models at once."""

import itertools

import pytest

from services.errors import ServingError, UnknownModelError, UnknownVersionError
from services.queueing.directory import FEW_MODELS, HINT_PART, Directory
from services.queueing.records import Lane, ServedVersion
from tests.fixtures.signatures import one_to_one


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


class Comparison:
    """Compares names with all others in simulated time.

    Attributes:
        names: the compared names.
        now: the time, in seconds.
    """

    takes_s = 0.01

    def __init__(self) -> None:
        self.names: list[str] = []
        self.now = 1000.0

    def __call__(self, name: str, _: object) -> str:
        self.names.append(name)
        self.now += self.takes_s
        return " (a hint)"


@pytest.fixture
def comparison(monkeypatch: pytest.MonkeyPatch) -> Comparison:
    found = Comparison()
    monkeypatch.setattr("services.queueing.directory.nearest_name", found)
    monkeypatch.setattr("services.queueing.directory.time.monotonic", lambda: found.now)
    return found


def of_models(count: int) -> Directory:
    directory = Directory()
    for number in range(count):
        directory.announce(ServedVersion(lane=Lane(f"m{number}", 1), state="ready"))
    return directory


def is_hinted(directory: Directory) -> bool:
    """Asks for an unknown name, and returns True if the refusal names another."""
    with pytest.raises(UnknownModelError) as refused:
        directory.find("unknown")
    return "a hint" in str(refused.value)


@pytest.mark.parametrize(("models", "hinted"), [(FEW_MODELS, 5), (FEW_MODELS + 1, 1)])
def test_hints_among_many_models_take_a_part_of_the_time(
    comparison: Comparison, models: int, hinted: int
) -> None:
    directory = of_models(models)
    assert sum(is_hinted(directory) for _ in range(5)) == len(comparison.names) == hinted


@pytest.mark.parametrize(("pauses", "hinted"), [(0.9, False), (1.1, True)])
def test_hint_is_given_again_after_its_pause(
    comparison: Comparison, pauses: float, hinted: bool
) -> None:
    directory = of_models(FEW_MODELS + 1)
    assert is_hinted(directory)
    comparison.now += pauses * HINT_PART * comparison.takes_s
    assert is_hinted(directory) is hinted


def test_directory_that_is_discreet_compares_no_names(comparison: Comparison) -> None:
    directory = of_models(2)
    directory.is_discreet = True
    assert not is_hinted(directory)
    assert comparison.names == []


def test_lane_of_a_name_is_that_which_is_found(comparison: Comparison) -> None:
    directory = of_models(2)
    directory.make_live(Lane("m0", 1))
    for name, version in itertools.product(("m0", "m1", "none", ""), ("", "1", "2", "x")):
        try:
            found = directory.find(name, version).lane
        except ServingError:
            found = None
        comparison.names.clear()
        assert directory.served_lane(name, version) == found
        assert comparison.names == []


def aliased() -> Directory:
    directory = Directory()
    for version in (1, 2, 3):
        directory.announce(ServedVersion(lane=Lane("m", version), state="ready"))
    directory.make_live(Lane("m", 1))
    directory.set_aliases("m", {"production": 2, "canary": 3, "gone": 9})
    return directory


@pytest.mark.parametrize(
    ("name", "version"), [("", 1), ("production", 1), ("canary", 3), ("2", 2), ("3", 3)]
)
def test_a_request_names_a_version_an_alias_or_nothing(name: str, version: int) -> None:
    """The pointer of production names a version that is not live yet."""
    directory = aliased()
    assert directory.find("m", name).lane == Lane("m", version)
    assert directory.served_lane("m", name) == Lane("m", version)


@pytest.mark.parametrize("name", ["gone", "unknown", "03", "x" * 5000])
def test_what_is_neither_a_version_nor_an_alias(name: str) -> None:
    directory = aliased()
    with pytest.raises(UnknownVersionError, match="aliases: canary, gone, production") as caught:
        directory.find("m", name)
    assert len(str(caught.value)) < 500
    assert directory.served_lane("m", name) is None


def test_an_alias_moves_and_ends() -> None:
    directory = aliased()
    signature = one_to_one((1,))
    for version in (2, 3):
        directory.announce(
            ServedVersion(lane=Lane("m", version), state="ready", signature=signature)
        )
    assert directory.resolve("m", "canary")[0].lane.version == 3
    changes = directory.changes
    directory.set_aliases("m", {"production": 2, "canary": 3, "gone": 9})
    assert directory.changes == changes
    directory.set_aliases("m", {"canary": 2})
    assert directory.resolve("m", "canary")[0].lane.version == 2
    directory.set_aliases("m", {})
    for alias in ("canary", "production"):
        with pytest.raises(ServingError):
            directory.resolve("m", alias)


def test_aliases_end_with_their_model() -> None:
    directory = aliased()
    for version in (1, 2, 3):
        directory.withdraw(Lane("m", version))
    assert directory.aliases("m") == {}
