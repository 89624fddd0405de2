"""Options of `flambeau serve` that do not fit each other: the message names the wrong one."""

import pytest
from typer.testing import CliRunner

from flambeau.cli import app


@pytest.mark.parametrize(
    ("options", "name", "words"),
    [
        (["--ts-config", "c"], "--ts-config", "needs --torchserve"),
        (["--model-store", "d"], "--model-store", "needs --torchserve"),
        (["--models", "all"], "--models", "needs --torchserve"),
        (["--disable-token-auth"], "--disable-token-auth", "needs --torchserve"),
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
