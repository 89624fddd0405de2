"""Words of the command line that name no version."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flambeau.cli import app


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["promote", "digits", "two"], "'two' is not a version number, such as 2"),
        (["promote", "digits/two"], "'two' is not a version number, such as 2"),
        (["promote", "digits"], "which version of 'digits'? Give MODEL/VERSION"),
        (["show", "digits", "0"], "'0' is not a version number"),
        (["show", "digits/1", "2"], "'digits/1' and 2: give one version"),
        (["show", "digits@1", "2"], "'digits@1' and 2: give one version, as in digits 2"),
    ],
)
def test_what_names_no_version_is_told_in_words(
    tmp_path: Path, arguments: list[str], told: str
) -> None:
    result = CliRunner().invoke(app, ["models", *arguments, "--store", str(tmp_path)])
    assert result.exit_code == 2
    assert told in " ".join(result.stderr.replace("│", " ").split())
