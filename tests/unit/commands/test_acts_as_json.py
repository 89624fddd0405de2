"""Commands that change something report the result as JSON."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from flambeau.cli import app
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    store = ModelStore(str(tmp_path / "store"))
    publish_in(store, tmp_path / "draft")
    return store


def told(*arguments: str) -> Any:
    found = CliRunner().invoke(app, [*arguments, "--json"])
    assert found.exit_code == 0, found.output
    return json.loads(found.stdout)


def test_a_copied_version(store: ModelStore, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    pushed = told("push", "digits/1", "--store", store.url, "--to", other)
    assert (pushed["model"], pushed["version"], pushed["store"]) == ("digits", 1, other)
    assert (pushed["files_copied"], pushed["files_skipped"]) == (3, 0)
    pulled = told("pull", "digits/1", "--from", store.url, "--store", other)
    assert (pulled["files_copied"], pulled["files_skipped"]) == (0, 3)


def test_api_keys_given_out_and_taken_back(tmp_path: Path) -> None:
    file = str(tmp_path / "access.yaml")
    added = told("access", "add", "ci", "--grant", "infer", "--expires", "1h", "--file", file)
    assert (added["name"], added["grants"], added["file"]) == ("ci", ["infer"], file)
    assert added["key"] not in Path(file).read_text()
    assert told("access", "revoke", "ci", "--file", file) == {"name": "ci", "file": file}


def test_keys_that_sign(tmp_path: Path) -> None:
    keys = ("--keys", str(tmp_path / "keys"))
    made = told("keys", "new", "ada", *keys)
    assert told("keys", "trust", made["file"], *keys)["fingerprint"] == made["fingerprint"]


def test_deleted_samples(store: ModelStore) -> None:
    of = ("samples", "delete", "digits", "--store", store.url)
    assert told(*of) == {"model": "digits", "request_id": None, "deleted_files": 0}
    assert told(*of, "--request-id", "r")["deleted_samples"] == 0
