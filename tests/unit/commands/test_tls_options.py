"""TLS on the command line: options before a verb apply to it, and to no other."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from flambeau.channel import Tls
from flambeau.cli import app
from flambeau.commands.options import tls as tls_options
from tests.fixtures.certificates import Authority


def test_what_is_asked_for_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = Authority(tmp_path)
    pair = authority.issue("ours")
    seen: list[Tls | None] = []
    monkeypatch.setattr(
        "flambeau.training_jobs.TrainingClient", lambda *_, tls, **__: seen.append(tls)
    )
    files = {"--ca-file": authority.file, "--certificate-file": pair.certificate}
    files["--key-file"] = pair.key
    options = [str(word) for option in files.items() for word in option]
    for given in (options, ["--tls"], []):
        CliRunner().invoke(app, [*given, "train", "list"])
    wanted = Tls(ca_file=authority.file, certificate_file=pair.certificate, key_file=pair.key)
    assert seen == [wanted, Tls(), None]
    assert tls_options.chosen_tls() is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--certificate-file", "ours.crt"], "ours.crt"),
        (["--key-file", "ours.key"], "give both"),
        (["--ca-file", "nowhere.pem"], "nowhere.pem"),
    ],
)
def test_what_cannot_be_used_is_refused(options: list[str], words: str) -> None:
    found = CliRunner().invoke(app, [*options, "train", "list"])
    assert found.exit_code == 2
    assert words in found.output
