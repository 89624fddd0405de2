"""Aliases and names that are misspelt or not allowed, in `flambeau models`."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flambeau.commands.models import models_app
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in

Run = Callable[..., Result]


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """A store with one version of `digits`, in production."""
    made = ModelStore(str(tmp_path / "store"))
    publish_in(made, tmp_path / "draft")
    made.promote("digits", 1)
    return made


@pytest.fixture
def run(store: ModelStore) -> Run:
    def run(*arguments: str) -> Result:
        return CliRunner().invoke(models_app, [*arguments, "--store", store.url])

    return run


@pytest.mark.parametrize(
    ("alias", "nearest"), [("prodution", "production"), ("cnaary", "canary"), ("blue", "")]
)
def test_a_misspelt_alias_is_created_and_told(
    run: Run, store: ModelStore, alias: str, nearest: str
) -> None:
    store.promote("digits", 1, alias="canary")
    hint = f"; did you mean '{nearest}'?" if nearest else ""
    promoted = run("promote", "digits", "1", "--alias", alias, "--json")
    assert promoted.exit_code == 0
    assert promoted.stderr == f"note: created the alias '{alias}' of digits{hint}\n"
    assert json.loads(promoted.stdout)["aliases"] == {"production": 1, "canary": 1, alias: 1}
    assert run("promote", "digits", "1", "--alias", alias).stderr == ""


def test_an_unknown_alias_is_not_rolled_back(run: Run) -> None:
    result = run("rollback", "digits", "--alias", "prodution")
    assert result.exit_code == 1
    assert result.stderr == (
        "error: there is no alias 'prodution' (did you mean 'production'?); nothing to roll back\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["verify", "../x"], "model name '../x' is not allowed"),
        (["promote", "digits", "1", "--alias", "a/b"], "alias 'a/b' is not allowed"),
    ],
)
def test_a_name_that_is_not_allowed_is_a_usage_error(
    run: Run, store: ModelStore, arguments: list[str], message: str
) -> None:
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"error: {message}")
    assert result.stderr.count("\n") == 1
    assert [one.generation for one in store.history("digits")] == [1]
