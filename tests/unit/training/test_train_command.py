"""`flambeau train`: errors that are found before any work is done."""

import sys
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from flambeau.commands.train import train
from model_store.host.install_advice import install_command
from model_store.signatures.key_folder import KeyFolder

DIGITS = str(Path(__file__).parents[3] / "training/recipes/digits_cnn.yaml")


def run(*arguments: str) -> Result:
    app = typer.Typer()
    app.command()(train)
    return CliRunner().invoke(app, list(arguments))


def test_a_bad_recipe_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    result = run(DIGITS, "--set", "optmi.clip=1", "--store", str(tmp_path / "store"))
    assert result.exit_code == 2
    assert result.stderr == (f"error: {DIGITS}: unknown key 'optmi' (did you mean 'optim'?)\n")
    assert not (tmp_path / "store").exists()


def test_a_store_that_cannot_be_opened_fails_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run(DIGITS, "--store", str(tmp_path / "file"), "--runs-dir", str(tmp_path / "runs"))
    assert result.exit_code == 1
    assert result.stderr.startswith(f"error: cannot open the store '{tmp_path / 'file'}'")
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "runs").exists()


def test_a_key_that_cannot_sign_fails_before_training(tmp_path: Path) -> None:
    places = ("--store", str(tmp_path / "s"), "--runs-dir", str(tmp_path / "runs"))
    keys = KeyFolder(tmp_path / "keys")
    ada = keys.new("ada")
    for chosen, reason in (
        (["--sign-with", "adda"], "there is no private key 'adda'"),
        (["--sign-with", str(ada.file)], f"cannot sign with {ada.file}"),
    ):
        result = run(DIGITS, *places, "--keys", str(keys.folder), *chosen)
        assert result.exit_code == 1
        assert result.stderr.startswith(f"error: {reason}")
        assert not (tmp_path / "runs").exists()
        assert not (tmp_path / "s").exists()


@pytest.mark.parametrize(
    ("rows", "part", "words"),
    [
        ("", "path: houses.csv, label: kind", "there is no houses.csv"),
        ("area,kind\n1,2\n", "path: rows.csv, label: sort", "no column 'sort'"),
        ("area,kind\n1,2\nx,3\n", "path: rows.csv, label: kind", "column 'area' has 'x'"),
        ("area,kind\n1,0\n2,1\n", "path: rows.csv, label: kind", "class 0 has 1 rows"),
    ],
)
def test_wrong_data_are_exit_code_2_as_a_wrong_recipe_is(
    rows: str, part: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "rows.csv").write_text(rows)
    (tmp_path / "recipe.yaml").write_text(
        "name: rows\nmodel: {target: 'torch.nn:Linear', args: {in_features: 1, out_features: 2}}\n"
        f"data: {{csv: {{{part}}}}}\npublish: {{model: rows}}\n"
    )
    result = run("recipe.yaml")
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_recipe_without_training_has_nothing_to_resume(tmp_path: Path) -> None:
    (tmp_path / "net.pt").touch()
    options = ("--set", f"weights={tmp_path / 'net.pt'}", "--set", "train=none")
    keys = ("--set", "optim={}", "--set", "stop={}", "--set", "schedule={}")
    result = run(DIGITS, *options, *keys, "--store", str(tmp_path / "store"), "--resume")
    assert result.exit_code == 2
    assert (
        result.stderr == "error: train is none, so there is no training to resume; drop --resume\n"
    )
    assert not (tmp_path / "store").exists()


def test_a_missing_file_of_weights_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "net.pt").touch()
    options = ("--set", f"weights={tmp_path / 'nett.pt'}", "--set", "train=none")
    result = run(DIGITS, *options, "--set", "optim={}", "--set", "stop={}", "--set", "schedule={}")
    assert result.exit_code == 2
    assert "error: weights: there is no " in result.stderr
    assert "(did you mean 'net.pt'?)" in result.stderr


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "training.pipeline", raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    result = run(DIGITS)
    assert result.exit_code == 1
    assert result.output.endswith(f"install it with {install_command('train')}\n")


def test_the_help_names_every_option() -> None:
    text = run("--help").stdout
    options = ("--set", "--store", "--resume", "--runs-dir", "--sign-with", "--keys")
    assert all(option in text for option in options)
