"""Targets of `flambeau push` and `flambeau pull` that are no stores, but were meant as servers."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flambeau.cli import app
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a store that has version 1 of digits, and a file of a key."""
    publish_in(ModelStore(str(tmp_path / "store")), tmp_path / "draft")
    (tmp_path / "ci.key").write_text("flk_key")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*arguments: str) -> tuple[int, str]:
    found = CliRunner().invoke(app, [*arguments, "--store", "store"], env={"COLUMNS": "200"})
    return found.exit_code, " ".join(found.output.replace("│", " ").split())


@pytest.mark.parametrize(("verb", "option"), [("push", "--to"), ("pull", "--from")])
@pytest.mark.parametrize("url", ["127.0.0.1:22010", "localhost:22000"])
def test_a_host_and_port_without_http_is_no_store(
    here: Path, verb: str, option: str, url: str
) -> None:
    code, told = run(verb, "digits/1", option, url, "--token-file", "ci.key")
    assert code == 2
    assert f"'{url}' names no store; for a server, write http://{url}" in told
    assert not (here / url).exists()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("push", "digits/1", "--to", "other", "--token-file", "ci.key"), "--token-file are for"),
        (("push", "digits/1", "--to", "other", "--why", "nightly"), "--why are for servers"),
        (("pull", "digits/1", "--from", "other", "--token-file", "ci.key"), "--from http://HOST"),
    ],
)
def test_options_of_servers_are_refused_for_a_store(
    here: Path, words: tuple[str, ...], told: str
) -> None:
    code, output = run(*words)
    assert code == 2
    assert told in output
    assert not (here / "other").exists()


def test_a_folder_with_a_colon_in_its_name_is_a_store(here: Path) -> None:
    (here / "copy:1").mkdir()
    assert run("push", "digits/1", "--to", "copy:1")[0] == 0
    assert ModelStore(str(here / "copy:1")).versions("digits") == [1]
