"""`flambeau rollout`, `split` and `models` on a store: what moves end, and what they print."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from flambeau.commands.models import models_app
from flambeau.commands.rollouts.rollout import rollout_app
from flambeau.commands.rollouts.split import split_app
from flambeau.commands.text.rollouts import ended_line, status_lines
from model_store.rollouts.requests import RolloutRequest, ShadowRequest, SplitRequest
from model_store.rollouts.rollout_store import (
    abort_rollout,
    start_rollout,
    start_shadow,
    start_split,
)
from model_store.rollouts.status import rollout_status
from model_store.rollouts.traffic import Arm
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in

Run = Callable[..., Result]
ARMS = (Arm(version=1, share=0.5), Arm(version=2, share=0.5))


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns a store with three versions of digits, the first in production."""
    found = ModelStore(str(tmp_path / "store"))
    for _ in range(3):
        publish_in(found, tmp_path / "draft")
    found.promote("digits", 1)
    return found


@pytest.fixture
def run(store: ModelStore) -> Run:
    """Runs a command on the store."""
    app = typer.Typer()
    for name, group in (("models", models_app), ("rollout", rollout_app), ("split", split_app)):
        app.add_typer(group, name=name)

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(app, [*arguments, "--store", store.url])

    return run


def lines(result: Result) -> list[str]:
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def rolling(store: ModelStore, *steps: float) -> None:
    wanted = {"version": 3, **({"steps": steps} if steps else {})}
    start_rollout(store, "digits", RolloutRequest.model_validate(wanted))


def test_a_move_of_an_alias_says_what_it_ends(run: Run, store: ModelStore) -> None:
    again = run("models", "promote", "digits", "1")
    assert lines(again) == ["digits production names 1 already (generation 1)"]
    rolling(store)
    canary = run("models", "promote", "digits", "3", "--alias", "canary")
    assert lines(canary) == ["digits canary → 3 (generation 3)"]
    assert lines(run("models", "rollback", "digits")) == [
        "digits production stays at 1 (generation 4), ends rollout of version 3"
    ]
    start_split(store, "digits", SplitRequest(name="ab", arms=ARMS))
    start_shadow(store, "digits", ShadowRequest(version=2))
    assert lines(run("models", "promote", "digits", "2")) == [
        "digits production → 2 (generation 7), ends shadow of version 2 and split 'ab'"
    ]
    rolling(store)
    moved = run("models", "promote", "digits", "2", "--json")
    ended = json.loads("\n".join(lines(moved)))
    assert (ended["ended"], ended["changes"]) == (["rollout of version 3"], [])


def test_the_end_of_a_rollout_is_told_with_production_as_it_was(
    run: Run, store: ModelStore
) -> None:
    rolling(store)
    abort_rollout(store, "digits", "late")
    store.promote("digits", 2)
    for command in ("status", "report"):
        line = lines(run("rollout", command, "digits"))[0]
        assert line.endswith(": late (production → 1, generation 3)"), line
    document = rollout_status(store, "digits")
    assert document["production"] == 2
    del document["last"]["production"]
    assert ended_line(document).endswith(": late (generation 3)")


@pytest.mark.parametrize(
    ("steps", "end"),
    [((0.1, 1.0), "a promotion"), ((0.1, 0.5), "every guard is proven to be kept")],
)
def test_the_traffic_that_is_missing_is_told_with_what_it_leads_to(
    store: ModelStore, steps: tuple[float, ...], end: str
) -> None:
    rolling(store, *steps)
    verdict: dict[str, Any] = {
        "when": "2026-11-28T09:00:00Z", "reason": "errors: more", "more_requests": 1232,
        "findings": [],
    }  # fmt: skip
    document = {**rollout_status(store, "digits"), "verdict": verdict}
    assert f"about 1,232 more requests of both versions until {end}" in status_lines(document)


def test_a_watch_ends_with_its_time_limit(run: Run, store: ModelStore) -> None:
    rolling(store)
    watched = run("rollout", "status", "digits", "--watch", "--timeout", "0")
    assert (watched.exit_code, "candidate   3, beside 1" in watched.stdout) == (1, True)
    assert watched.stderr == (
        "error: the rollout of version 3 has not ended within 0 s, and goes on; watch it again, "
        "give a longer --timeout, or abort it (flambeau rollout abort)\n"
    )
    unwatched = run("rollout", "status", "digits", "--timeout", "1")
    assert (unwatched.exit_code, "--timeout limits --watch" in unwatched.stderr) == (2, True)
    abort_rollout(store, "digits")
    over = run("rollout", "status", "digits", "--watch", "--timeout", "60")
    assert (over.exit_code, over.stderr) == (1, "")
    assert "rollout of version 3 aborted" in over.stdout


def test_a_split_has_a_status(run: Run, store: ModelStore) -> None:
    assert lines(run("split", "status", "digits")) == ["digits has no split"]
    start_split(store, "digits", SplitRequest(name="ab", arms=ARMS))
    status = lines(run("split", "status", "digits"))
    assert status[0].startswith("digits: split 'ab' since ")
    assert lines(run("split", "report", "digits")) == status
