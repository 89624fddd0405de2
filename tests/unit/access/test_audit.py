"""The audit log: its file is readable by its owner only, and no line is lost."""

import contextlib
import json
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from services.access import audit
from services.access.audit import close_audit_log, open_audit_log, record
from services.errors import (
    InvalidRequestError,
    RateLimitedError,
    ServingError,
    UnauthenticatedError,
)
from services.settings import ConfigError


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """Opens an audit log, under a umask that makes files readable for all."""
    mask = os.umask(0o022)
    (tmp_path / "logs").mkdir()
    path = tmp_path / "logs" / "audit.jsonl"
    open_audit_log(str(path))
    yield path
    os.umask(mask)
    close_audit_log()


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_file_is_its_owners_also_after_it_was_rotated(log: Path) -> None:
    record("cancel", "a", "key:ci", "10.0.0.1", "done")
    log.rename(log.with_suffix(".1"))
    record("cancel", "b", "key:ci", "10.0.0.1", "done")
    for path, target in ((log.with_suffix(".1"), "a"), (log, "b")):
        assert [line["target"] for line in lines(path)] == [target]
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_line_that_its_file_cannot_take_is_in_the_log_of_the_process(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.parent.rename(log.parent.with_name("away"))
    record("cancel", "a", "key:ci", "10.0.0.1", "done")
    found = {r.message: r for r in caplog.records}
    assert found["act"].target == "a"  # type: ignore[attr-defined]
    assert "No such file" in found["the audit log cannot be written"].reason  # type: ignore[attr-defined]
    log.parent.with_name("away").rename(log.parent)
    record("cancel", "b", "key:ci", "10.0.0.1", "done")
    assert [line["target"] for line in lines(log)] == ["b"]


def test_a_pipe_in_the_place_of_the_file_is_not_waited_for(
    log: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log.unlink()
    os.mkfifo(log)
    record("cancel", "a", "key:ci", "10.0.0.1", "done")
    found = {r.message: r for r in caplog.records}
    assert found["act"].target == "a"  # type: ignore[attr-defined]
    log.unlink()
    record("cancel", "b", "key:ci", "10.0.0.1", "done")
    assert [line["target"] for line in lines(log)] == ["b"]


def test_refusals_are_kept_and_those_of_strangers_some_a_second(
    log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [100.0]
    monkeypatch.setattr("services.access.audit.time.monotonic", lambda: clock[0])

    def refuse(who: str, error: ServingError, times: int) -> None:
        for _ in range(times):
            with (
                pytest.raises(type(error)),
                audit.refusals_audited("submit", "", who, "10.0.0.9"),
            ):
                raise error

    refuse("", UnauthenticatedError("who?"), 15)
    refuse("key:ci", RateLimitedError("too many", 1), 15)
    refuse("key:ci", InvalidRequestError("no recipe"), 15)
    clock[0] += 1
    refuse("", UnauthenticatedError("who?"), 2)
    found = [(line["who"], line["reason"], line.get("left_out")) for line in lines(log)]
    assert found == [
        *[("anonymous", "who?", None)] * 10,
        *[("key:ci", "no recipe", None)] * 15,
        ("anonymous", "who?", 20),
        ("anonymous", "who?", None),
    ]
    with audit.refusals_audited("submit", "", "", ""), contextlib.suppress(KeyError):
        raise KeyError
    assert len(lines(log)) == 27, "only what was refused"


def test_a_file_that_cannot_be_written_stops_start_up(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be written"):
        open_audit_log(str(tmp_path / "missing" / "audit.jsonl"))
    assert not logging.getLogger("flambeau.audit").handlers
