"""`flambeau models history` on a store: the moves, and the aliases at a time."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flambeau.commands.models import models_app
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in

Run = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns a store with a version of digits."""
    found = ModelStore(str(tmp_path / "store"))
    publish_in(found, tmp_path / "draft")
    return found


@pytest.fixture
def run(store: ModelStore) -> Run:
    """Runs the command on the store."""

    def run(*arguments: object) -> Result:
        words = ["history", "digits", *map(str, arguments), "--store", store.url]
        return CliRunner().invoke(models_app, words)

    return run


def lines(result: Result) -> list[str]:
    assert (result.exit_code, result.stderr) == (0, "")
    return result.stdout.splitlines()


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_history_as_json(run: Run, store: ModelStore) -> None:
    moved = store.promote("digits", 1, why="the first")
    (shown,) = document(run("--json"))
    changes = [{"alias": "production", "from": None, "to": 1}]
    assert shown == {**json.loads(moved.to_json()), "changes": changes}


def moved_at(store: ModelStore, *moves: tuple[str, dict[str, int]]) -> None:
    """Writes generations with these times and aliases."""
    for number, (when, aliases) in enumerate(moves, 1):
        document = {"generation": number, "aliases": aliases, "who": "ann", "why": "", "when": when}
        store.storage.create(f"digits/pointers/{number:08d}.json", json.dumps(document).encode())


def test_the_aliases_at_a_time(run: Run, store: ModelStore) -> None:
    moved_at(
        store,
        ("2026-11-01T11:00:00Z", {"production": 1}),
        ("2026-11-01T13:00:00+01:00", {"production": 2, "canary": 3}),
        ("2026-11-02T00:00:00Z", {"production": 3}),
    )
    assert lines(run("--at", "2026-11-01T12:00")) == [
        "digits at 2026-11-01 12:00:00 UTC, by generation 2 of 2026-11-01 12:00:00 UTC by ann",
        "ALIAS       VERSION",
        "canary      3",
        "production  2",
    ]
    for text, expected in (
        ("2026-11-01T11:59:59Z", {"production": 1}),
        ("2026-11-01T12:30+01:00", {"production": 1}),
        ("2027-01-01", {"production": 3}),
        ("2026-11-01T10:59:59.9", {}),
    ):
        shown = document(run("--at", text, "--json"))
        assert shown["aliases"] == expected, text
    assert lines(run("--at", "2026-10-31")) == [
        "no alias of digits named a version at 2026-10-31 00:00:00 UTC: its first move came later"
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("yesterday", "is no time"),
        ("2026-13-01", "is no time"),
        ("0001-01-01T00:00+14:00", "is no time"),
        ("1" * 100, "is no time"),
        ("https://models.example:8000", "name the server by --server"),
    ],
)
def test_what_is_no_time_is_refused(run: Run, store: ModelStore, text: str, message: str) -> None:
    done = run("--at", text)
    assert done.exit_code == 2
    assert message in re.sub(r"\s*│?\n│?\s*", " ", done.stderr)


def test_control_characters_of_callers_do_not_reach_the_terminal(
    run: Run, store: ModelStore
) -> None:
    store.promote("digits", 1, why="\x1b[2Jgone\n", who="key:\x07")
    shown = run().stdout
    assert "key:?" in shown
    assert shown.endswith("?[2Jgone?\n")
