"""`flambeau keys`, run as the shell runs it."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from flambeau.commands.keys import keys_app

Run = Callable[..., Result]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def run(keys: Path) -> Run:
    """Runs a command on the folder."""

    def run(*arguments: object) -> Result:
        return CliRunner().invoke(keys_app, [*map(str, arguments), "--keys", str(keys)])

    return run


def test_a_key_is_made_trusted_and_listed(run: Run, keys: Path) -> None:
    made = run("new")
    assert made.exit_code == 0, made.output
    name, public, advice = made.stdout.splitlines()
    fingerprint = name.removeprefix("key default, fingerprint ")
    assert len(fingerprint) == 64
    assert public == f"public half, to distribute: {keys}/public/default.pem"
    assert run("list").stdout.splitlines() == [
        f"{'NAME':<9}{'SIGNS':<7}{'TRUSTED':<9}FINGERPRINT",
        f"{'default':<9}{'yes':<7}{'-':<9}{fingerprint}",
    ]
    trusted = run(*advice.removeprefix("to trust it here: flambeau keys ").split())
    assert trusted.stdout == f"trusted: default, fingerprint {fingerprint}\n"
    (listed,) = json.loads(run("list", "--json").stdout)
    assert listed == {
        "name": "default", "fingerprint": fingerprint, "is_private": True, "is_trusted": True,
    }  # fmt: skip


def test_no_command_shows_a_private_key(run: Run, keys: Path) -> None:
    shown = [run("new", "ada"), run("list"), run("list", "--json"), run("new", "ada")]
    shown.append(run("trust", keys / "private/ada.pem"))
    secret = (keys / "private/ada.pem").read_text().splitlines()[1]
    assert all(secret not in result.output for result in shown)


def test_somebody_elses_key_is_trusted_by_the_name_it_is_given(
    run: Run, keys: Path, tmp_path: Path
) -> None:
    run("new", "ada")
    (keys / "public/ada.pem").rename(tmp_path / "k.pem")
    assert run("trust", tmp_path / "k.pem", "--name", "grace").exit_code == 0
    assert (keys / "trusted/grace.pem").exists()


def test_what_fails_says_why(run: Run, tmp_path: Path) -> None:
    result = run("new", "../x")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: key name '../x' is not allowed")
    assert result.stderr.count("\n") == 1
    result = run("trust", "none.pem")
    assert (result.exit_code, "'none.pem' does not exist" in result.stderr) == (2, True)
    (tmp_path / "broken.pem").write_text("no key")
    result = run("trust", tmp_path / "broken.pem")
    assert (result.exit_code, result.stderr.startswith("error: ")) == (1, True)


def test_an_empty_folder_says_what_to_do(run: Run, keys: Path) -> None:
    assert run("list").stdout == f"{keys} holds no key yet; make one with flambeau keys new\n"
