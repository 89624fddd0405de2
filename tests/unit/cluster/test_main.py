"""`make e2e-cluster` where no cluster can be made: nobody may take that for a proof."""

import sys

import pytest

from tests.cluster import __main__ as command


def test_a_run_that_is_skipped_says_why_and_is_no_success(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "why_no_cluster", lambda: "envoy is not installed")
    monkeypatch.setattr(sys, "argv", ["tests.cluster"])
    assert command.main() == command.SKIPPED == 77
    assert "skipped" in (said := capsys.readouterr().out)
    assert "envoy is not installed" in said
