"""`flambeau models prune` on a store: the dry run, the deletion, and what it refuses."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flambeau.commands.models import models_app
from model_store.records.tombstone import tombstone_of
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in

Run = Callable[..., Result]
RULE = ("--keep-newest", 1, "--keep-days", 0)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns a store with three versions of digits, the first in production."""
    found = ModelStore(str(tmp_path / "store"))
    for number in range(3):
        publish_in(found, tmp_path / "draft", artifact=f"bytes {number}".encode())
    found.promote("digits", 1)
    return found


@pytest.fixture
def run(store: ModelStore) -> Run:
    def run(*arguments: object) -> Result:
        return CliRunner().invoke(models_app, ["prune", *map(str, arguments), "--store", store.url])

    return run


def test_the_dry_run_tells_each_version_and_deletes_none(run: Run, store: ModelStore) -> None:
    done = run(*RULE)
    assert (done.exit_code, done.stderr) == (
        0, "note: no server was asked what it holds (--server URL)\n"
    )  # fmt: skip
    header, *rows, last = done.stdout.splitlines()
    assert header.split() == ["VERSION", "SIZE", "WHY"]
    assert [row.split("  ")[:2] for row in rows] == [
        ["digits 1", "keep"], ["digits 2", "delete"], ["digits 3", "keep"]
    ]  # fmt: skip
    assert [row.rpartition("  ")[2] for row in rows] == [
        "alias production", "not used, not new, not young", "among the newest 1"
    ]  # fmt: skip
    assert last == "1 version would be deleted, which frees 4.6 KB; add --yes to do it"
    assert store.versions("digits") == [1, 2, 3]
    assert run().stdout.splitlines()[-1] == "nothing would be deleted"


def test_with_yes_versions_are_deleted_and_tombstones_stay(run: Run, store: ModelStore) -> None:
    done = run(*RULE, "--yes", "--no-server", "digits")
    assert (done.exit_code, done.output) == (0, "deleted digits 2 (4.6 KB)\n")
    assert store.versions("digits") == [1, 3]
    assert tombstone_of(store.storage, "digits", 2) is not None
    again = run(*RULE, "--yes", "--no-server", "--json")
    assert json.loads(again.stdout)["deleted"] == []


def test_the_plan_and_its_outcome_as_json(run: Run, store: ModelStore) -> None:
    plan = json.loads(run(*RULE, "--no-server", "--json").stdout)
    assert [one["is_kept"] for one in plan["versions"]] == [True, False, True]
    assert plan["versions"][0]["reasons"] == ["alias production"]
    assert plan["freed_bytes"] == plan["versions"][1]["size_bytes"]
    assert plan["leftovers"] == []
    done = json.loads(run(*RULE, "--no-server", "--json", "--yes").stdout)
    assert done["deleted"] == [{"model": "digits", "version": 2}]
    assert (done["removed"], done["refused"]) == ([], [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--yes",), "which servers serve this store"),
        (("--yes", "--no-server", "--server", "http://127.0.0.1:1"), "not both"),
        (("--keep-newest", 0), "--keep-newest"),
        (("--keep-days", "nan"), "--keep-days"),
        (("--keep-days", -1), "--keep-days"),
    ],
)
def test_a_wrong_line_deletes_nothing(
    run: Run, store: ModelStore, arguments: tuple[object, ...], message: str
) -> None:
    done = run(*RULE, *arguments)
    assert done.exit_code == 2, done.output
    assert message in " ".join(done.stderr.split())
    assert store.versions("digits") == [1, 2, 3]


def test_a_model_that_is_misspelt_is_told_the_nearest(run: Run) -> None:
    done = run("digts")
    assert done.exit_code == 1
    assert "did you mean 'digits'" in done.stderr
