"""A recipe key that is given as an option gets an error that shows the right form."""

import pytest
from typer.testing import CliRunner

from flambeau.cli import app


@pytest.mark.parametrize(
    ("arguments", "form"),
    [
        (("train", "r.yaml", "--epochs", "3"), "--set train.epochs=3"),
        (("train", "r.yaml", "--lr=0.1"), "--set optim.adamw.lr=0.1"),
        (("train", "r.yaml", "--from", "a@1"), "--set model.from=a@1"),
        (("sweep", "r.yaml", "--batch-size"), "--set data.batch_size=VALUE"),
    ],
)
def test_the_right_form_is_told(arguments: tuple[str, ...], form: str) -> None:
    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200"})
    assert result.exit_code == 2
    words = " ".join(result.stderr.split())
    assert f"it is a key of the recipe, given as {form} " in words


def test_other_options_keep_their_own_words() -> None:
    for option, told in (("--trails", "--trials"), ("--zzz", "No such option: --zzz")):
        result = CliRunner().invoke(app, ["sweep", "r.yaml", option], env={"COLUMNS": "200"})
        assert told in result.stderr
        assert "key of the recipe" not in result.stderr
