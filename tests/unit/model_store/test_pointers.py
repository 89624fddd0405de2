"""The file of a pointer generation, and the target of a rollback."""

import contextlib
import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import BadNameError, ManifestError, VersionNotFoundError
from model_store.pointers import (
    Pointers,
    PreviousTargets,
    check_alias,
    check_new_alias,
    parse_pointers,
    previous_targets,
    rollback_target,
)
from model_store.rollouts.traffic import Arm, Rollout, Split, Traffic

ARMS = (Arm(version=1, share=0.5), Arm(version=2, share=0.5))


def generation(number: int, **aliases: int) -> Pointers:
    when = datetime(2026, 11, 21, 5, tzinfo=UTC)
    return Pointers(generation=number, aliases=aliases, who="ada@lab", when=when, why="better")


def history(*targets: int) -> list[Pointers]:
    return [generation(i, production=target) for i, target in enumerate(targets, start=1)]


GOLDEN = """\
{
  "schema_version": 1,
  "generation": 7,
  "aliases": {
    "production": 3
  },
  "who": "ada@lab",
  "when": "2026-11-21T05:00:00Z",
  "why": "better"
}
"""


def test_the_file_is_as_it_always_was() -> None:
    pointers = generation(7, production=3)
    assert pointers.to_json().decode() == GOLDEN
    assert parse_pointers(GOLDEN.encode(), "digits/pointers/00000007.json") == pointers


def test_a_new_alias_is_no_number_and_one_that_is_there_is_read() -> None:
    with pytest.raises(BadNameError, match="a number names a version"):
        check_alias("3")
    assert check_alias("1.0.0") == "1.0.0"
    older = GOLDEN.replace("production", "3").encode()
    assert parse_pointers(older, "digits/pointers/00000007.json").aliases == {"3": 3}


@pytest.mark.parametrize("alias", ["Production", "CANARY", "canary "])
def test_a_new_alias_is_no_look_alike(alias: str) -> None:
    with pytest.raises(BadNameError):
        check_new_alias(alias, ["canary"])


def test_look_alikes_that_are_there_still_move() -> None:
    for alias in ("Production", "production", "canary"):
        assert check_new_alias(alias, ["Production"]) == alias


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not JSON that can be read"),
        (GOLDEN.replace('"why"', '"wy"'), "unknown key 'wy' (did you mean 'why'?)"),
        (GOLDEN.replace('"generation": 7', '"generation": 0'), "'generation' is 0"),
        (GOLDEN.replace('"schema_version": 1', '"schema_version": 2'), "'schema_version' is 2"),
        (json.dumps([]), "(whole)"),
    ],
)
def test_a_broken_file_is_named(text: str, message: str) -> None:
    with pytest.raises(ManifestError) as refused:
        parse_pointers(text.encode(), "p.json")
    assert str(refused.value).startswith("p.json")
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("targets", "previous"),
    [((1, 2), 1), ((1, 2, 3), 2), ((1, 2, 2), 1), ((1, 2, 1), 2), ((2, 5, 1, 1), 5)],
)
def test_rollback_goes_to_the_last_other_target(targets: tuple[int, ...], previous: int) -> None:
    assert rollback_target(reversed(history(*targets)), "production") == previous


@pytest.mark.parametrize("targets", [(1,), (1, 2), (2, 1)])
@pytest.mark.parametrize(
    "running",
    [
        Traffic(rollout=Rollout(candidate=2, baseline=1, steps=(0.1, 1))),
        Traffic(
            split=Split(name="ab", arms=(Arm(version=1, share=0.5), Arm(version=2, share=0.5)))
        ),
    ],
    ids=["rollout", "split"],
)
def test_rollback_ends_what_shares_the_requests_and_stays(
    targets: tuple[int, ...], running: Traffic
) -> None:
    moves = history(*targets)
    moves.append(Pointers.after(moves[-1], {"production": 1, "canary": 2}, "ada", "", running))
    assert rollback_target(reversed(moves), "production") == 1
    over = Pointers.moved(moves[-1], "production", 1, "ada", "")
    if targets == (1,):
        with pytest.raises(VersionNotFoundError, match="has named no other version before"):
            rollback_target(reversed([*moves, over]), "production")
    else:
        assert rollback_target(reversed([*moves, over]), "production") == 2
    with pytest.raises(VersionNotFoundError, match="alias 'canary' has named no other version"):
        rollback_target(reversed(moves), "canary")


def test_other_aliases_do_not_count() -> None:
    moves = [
        generation(1, canary=9),
        generation(2, canary=9, production=1),
        generation(3, canary=8, production=2),
        generation(4, canary=7, production=2),
    ]
    assert rollback_target(reversed(moves), "production") == 1
    assert rollback_target(reversed(moves), "canary") == 8


@pytest.mark.parametrize("moves", [[], history(1), history(1, 1)])
def test_nothing_to_roll_back_to(moves: list[Pointers]) -> None:
    with pytest.raises(VersionNotFoundError, match="alias 'production' has named no other version"):
        rollback_target(reversed(moves), "production")


def test_an_alias_that_is_not_there_is_named() -> None:
    moves = [generation(1, canary=2)]
    with pytest.raises(
        VersionNotFoundError, match=r"no alias 'production' \(known: canary\); noth"
    ):
        rollback_target(reversed(moves), "production")
    with pytest.raises(VersionNotFoundError, match=r"no alias 'canry' \(did you mean 'canary'\?\)"):
        rollback_target(reversed(moves), "canry")


def test_a_removed_alias_is_not_rolled_back() -> None:
    moves = [generation(1, canary=1), generation(2, canary=2, production=1)]
    moves.append(generation(3, production=1))
    with pytest.raises(VersionNotFoundError, match=r"'canary' was removed; promote a version"):
        rollback_target(reversed(moves), "canary")


def test_a_rollback_reads_no_generation_before_its_target() -> None:
    generations = iter(reversed(history(1, 2, 3)))
    assert rollback_target(generations, "production") == 2
    assert [one.generation for one in generations] == [1]
    running = Traffic(rollout=Rollout(candidate=2, baseline=1, steps=(0.1, 1)))
    moves = history(1)
    moves.append(Pointers.after(moves[-1], {"production": 1}, "ada", "", running))
    generations = iter(reversed(moves))
    assert rollback_target(generations, "production") == 1
    assert [one.generation for one in generations] == [1]


ALIASES = st.dictionaries(st.sampled_from(["production", "canary"]), st.integers(1, 4))


@given(st.lists(ALIASES, max_size=8))
def test_previous_targets_are_those_of_rollbacks(moves: list[dict[str, int]]) -> None:
    generations = [generation(i, **aliases) for i, aliases in enumerate(moves, start=1)]
    expected: dict[str, int] = {}
    for alias in moves[-1] if moves else ():
        with contextlib.suppress(VersionNotFoundError):
            expected[alias] = rollback_target(reversed(generations), alias)
    assert previous_targets(reversed(generations)) == expected


@given(st.lists(ALIASES, min_size=2, max_size=8), st.data())
def test_what_is_known_of_a_generation_changes_no_previous_target(
    moves: list[dict[str, int]], data: st.DataObject
) -> None:
    generations = [generation(i, **aliases) for i, aliases in enumerate(moves, start=1)]
    older = generations[: data.draw(st.integers(1, len(moves) - 1))]
    known = PreviousTargets(older[-1], previous_targets(reversed(older)))
    expected = previous_targets(reversed(generations))
    assert previous_targets(reversed(generations), known) == expected


def test_generations_before_a_known_one_are_not_read() -> None:
    moves = [generation(i, production=i, canary=9) for i in range(1, 5)]
    known = PreviousTargets(moves[2], {"production": 2})
    moves.append(generation(5, production=4, canary=9))
    left = iter(reversed(moves))
    assert previous_targets(left, known) == {"production": 3}
    assert [one.generation for one in left] == [2, 1]


def test_generations_before_the_previous_targets_are_not_read() -> None:
    generations = iter(reversed(history(1, 2, 3)))
    assert previous_targets(generations) == {"production": 2}
    assert [one.generation for one in generations] == [1]
