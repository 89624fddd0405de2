"""`flambeau report`, run as the shell runs it."""

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from flambeau.commands.report import report
from model_store.store import ModelStore
from tests.fixtures.store_versions import draft_in, entry_in

PAGE = b"<!doctype html>the figures\n"


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns a store in which version 1 has a page, version 2 has none."""
    store, folder = ModelStore(str(tmp_path / "store")), tmp_path / "draft"
    draft = draft_in(folder)
    whole = draft.model_copy(
        update={"files": (*draft.files, entry_in(folder, "report.html", PAGE))}
    )
    store.publish(whole, folder)
    store.publish(draft, folder)
    return store


def run(store: ModelStore, *arguments: object) -> Result:
    app = typer.Typer()
    app.command()(report)
    return CliRunner().invoke(app, ["digits", *map(str, arguments), "--store", store.url])


def test_the_page_is_written_where_it_was_asked_for(store: ModelStore, tmp_path: Path) -> None:
    path = tmp_path / "page.html"
    result = run(store, 1, "--output", path)
    assert (result.exit_code, result.stdout) == (0, f"wrote {path}\n")
    assert path.read_bytes() == PAGE


def test_unless_told_it_is_named_after_the_version(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(store, 1).stdout == "wrote digits-1.html\n"
    assert (tmp_path / "digits-1.html").read_bytes() == PAGE


def test_the_figures_as_json(store: ModelStore) -> None:
    assert run(store, 1, "--json").stdout == "{}\n"


def test_a_version_without_one_says_so(store: ModelStore) -> None:
    result = run(store, 2)
    assert result.exit_code == 1
    assert "version 2 of 'digits' has no report.html" in result.stderr
