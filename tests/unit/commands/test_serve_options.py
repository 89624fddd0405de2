"""Options of `flambeau serve` that do not fit each other: the message names the wrong one."""

import importlib
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from flambeau.cli import app
from flambeau.commands.options.torchserve import TorchserveOptions


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        (["--ts-config", "c"], "--ts-config", "needs --torchserve"),
        (["--model-store", "d"], "--model-store", "needs --torchserve"),
        (["--models", "all"], "--models", "needs --torchserve"),
        (["--disable-token-auth"], "--disable-token-auth", "needs --torchserve"),
        (["--start"], "--start", "needs --torchserve"),
        (["--enable-model-api"], "--enable-model-api", "needs --torchserve"),
        (["--torchserve", "--store", "s"], "--store", "no meaning with --torchserve"),
        (["--torchserve", "--model", "m"], "--model", "no meaning with --torchserve"),
        (["--torchserve", "--http-port", "1"], "--http-port", "no meaning with --torchserve"),
    ],
)
def test_an_option_in_the_wrong_place_is_named(options: list[str], name: str, words: str) -> None:
    found = CliRunner().invoke(app, ["serve", *options])
    output = " ".join(found.output.replace("│", "").split())
    assert found.exit_code == 2
    assert f"Invalid value for {name}:" in output
    assert words in output


def test_words_of_torchserves_command_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[TorchserveOptions] = []
    command = importlib.import_module("flambeau.commands.serve")
    monkeypatch.setattr(command, "serve_torchserve", lambda options, *_: asked.append(options))
    words = "--torchserve --start --ncs --foreground --model-store s --models a=a.mar b=b.mar c.mar"
    found = CliRunner().invoke(app, ["serve", *words.split()])
    assert found.exit_code == 0, found.output
    (options,) = asked
    assert (options.models, options.start) == (["a=a.mar", "b=b.mar", "c.mar"], True)


@pytest.mark.parametrize("name", ["/dev/zero", "pipe", "."])
def test_a_configuration_that_is_no_regular_file_is_refused_at_once(
    tmp_path: Path, name: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    path = tmp_path / name
    found = CliRunner().invoke(app, ["serve", "--torchserve", "--ts-config", str(path)])
    assert found.exit_code == 2
    assert f"{path} is no regular file" in " ".join(found.output.split())
