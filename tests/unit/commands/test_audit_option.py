"""Management actions on the command line: each leaves a line, on standard error or in a file."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from flambeau.cli import app
from model_store.host.this_user import this_user


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def acts(text: str) -> list[tuple[str, str, str, str]]:
    found: list[dict[str, Any]] = [json.loads(x) for x in text.splitlines() if x.startswith("{")]
    assert {x["who"] for x in found} <= {this_user()}
    return [(x["act"], x["target"], x["outcome"], x.get("reason", "")) for x in found]


def test_keys_given_out_and_taken_back_are_written_down(tmp_path: Path) -> None:
    keys, audit = str(tmp_path / "keys.yaml"), tmp_path / "audit.jsonl"
    given = ("--file", keys, "--audit-log", str(audit))
    made = run("access", "add", "ci", "--grant", "infer", *given)
    assert made.exit_code == 0, made.output
    assert acts(made.stderr) == []
    assert run("access", "revoke", "cj", *given).exit_code == 1
    assert run("access", "revoke", "ci", *given).exit_code == 0
    assert acts(audit.read_text()) == [
        ("add key", "ci", "done", ""),
        ("revoke key", "cj", "failed", "KeysFileError"),
        ("revoke key", "ci", "done", ""),
    ]
    assert made.stdout.strip() not in audit.read_text()
    assert audit.stat().st_mode & 0o777 == 0o600


def test_without_a_file_the_line_is_on_standard_error(tmp_path: Path) -> None:
    store = str(tmp_path)
    deleted = run("samples", "delete", "digits", "--request-id", "r1", "--store", store)
    assert acts(deleted.stderr) == [("delete samples", "digits r1", "done", "")]
    assert acts(deleted.stdout) == []
    logger = logging.getLogger("flambeau.audit")
    assert (logger.handlers, logger.propagate) == ([], True), "a process may go on after it"


@pytest.mark.parametrize(
    "command",
    [
        ("access", "add", "ci", "--grant", "infer", "--file", "keys.yaml"),
        ("access", "revoke", "ci", "--file", "keys.yaml"),
        ("samples", "delete", "digits", "--store", "store"),
        ("queue", "dead", "drop", "1-0"),
        ("queue", "dead", "retry", "1-0"),
    ],
)
def test_what_cannot_be_written_down_is_not_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*command, "--audit-log", "missing/audit.jsonl")
    assert result.exit_code == 2
    assert "audit_log missing/audit.jsonl cannot be written" in result.stderr
    assert list(tmp_path.iterdir()) == []
