"""Journals that are continued, and reports."""

import json
from pathlib import Path
from typing import Any

import pytest

from flambeau.replay.errors import ReportFolderError
from flambeau.replay.records import Difference, Result
from flambeau.replay.report_folder import JOURNAL, PAGE, REPORT, ReportFolder
from flambeau.replay.report_text import page, report_lines
from flambeau.replay.tally import MAX_KEPT, Tally

SETTINGS: dict[str, Any] = {"to": "http://new", "headers": ("a",)}


def result(number: int, outcome: str = "equal", **fields: Any) -> Result:
    given: dict[str, Any] = {
        "old_status": 200,
        "new_status": 200,
        "old_ms": number,
        "new_ms": 2 * number,
    }
    given |= {"number": number, "name": f"r{number}", "outcome": outcome}
    return Result.model_validate({**given, **fields})


def differing(number: int, old: str = "1", **fields: Any) -> Result:
    found = (Difference(kind="body", place="a", old=old, new="2"),)
    return result(number, "different", differences=found, count=1, **fields)


def interrupted(path: Path) -> None:
    """Leaves a journal of two results and a torn line."""
    reports = ReportFolder(path, SETTINGS)
    with reports.opened(None):
        reports.add(result(1))
        reports.add(differing(2))
        reports.add(result(3, "not compared", old_status=0))
    with (path / JOURNAL).open("ab") as file:
        file.write(b'{"number": 4, "na')


def opened(path: Path, resume: bool | None, **settings: Any) -> Tally:
    with ReportFolder(path, {**SETTINGS, **settings}).opened(resume) as tally:
        return tally


def test_an_interrupted_replay_goes_on_where_it_was(tmp_path: Path) -> None:
    interrupted(tmp_path)
    reports = ReportFolder(tmp_path, SETTINGS)
    with reports.opened(True) as tally:
        assert tally.done == {1, 2}, "what was not compared is tried again"
        assert [one.number for one in tally.kept] == [2]
        reports.add(result(4))
    reports.write({"finished": True}, "page")
    assert opened(tmp_path, True).done == {1, 2, 4}
    assert (tmp_path / PAGE).read_text() == "page"


def test_an_interrupted_replay_is_not_lost_by_mistake(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with pytest.raises(ReportFolderError, match="--resume"):
        opened(tmp_path, None)
    assert opened(tmp_path, False).done == set()
    ReportFolder(tmp_path, SETTINGS).write({"finished": False}, "")
    with pytest.raises(ReportFolderError, match="--resume"):
        opened(tmp_path, None)


def test_a_finished_replay_is_replaced(tmp_path: Path) -> None:
    reports = ReportFolder(tmp_path, SETTINGS)
    with reports.opened(None):
        reports.add(result(1))
    reports.write({"finished": True}, "")
    assert opened(tmp_path, None).done == set()
    assert not (tmp_path / REPORT).exists(), "the old report is not that of this replay"


def test_a_replay_with_other_settings_is_not_continued(tmp_path: Path) -> None:
    interrupted(tmp_path)
    with pytest.raises(ReportFolderError, match=r"other settings \(to\)"):
        opened(tmp_path, True, to="http://other")


def test_a_folder_without_a_journal_is_not_continued(tmp_path: Path) -> None:
    with pytest.raises(ReportFolderError, match="leave out --resume"):
        opened(tmp_path, True)


@pytest.mark.parametrize("text", ["", "[]\n", "nonsense\n", "{}\n"])
def test_a_wrong_journal_is_not_continued(tmp_path: Path, text: str) -> None:
    (tmp_path / JOURNAL).write_text(text)
    with pytest.raises(ReportFolderError, match="--restart"):
        opened(tmp_path, True)


def test_a_damaged_line_is_named(tmp_path: Path) -> None:
    interrupted(tmp_path)
    journal = tmp_path / JOURNAL
    head, first, *_ = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(head + first + b'{"number": "x"}\n')
    with pytest.raises(ReportFolderError, match=f"behind byte {len(head) + len(first)}"):
        opened(tmp_path, True)


def test_latencies_are_of_requests_that_both_answered() -> None:
    tally = Tally()
    for number in range(1, 101):
        tally.add(result(number))
    tally.add(result(101, "not compared", new_status=0))
    found = tally.latencies()
    assert found["old"] == {"mean": 50.5, "p50": 50.0, "p90": 90.0, "p99": 99.0, "max": 100.0}
    assert found["new"]["max"] == 200.0
    assert Tally().latencies() == {}


def test_percentiles_of_few_requests_are_the_nearest_rank() -> None:
    tally = Tally()
    for number in range(1, 4):
        tally.add(result(number))
    assert tally.latencies()["old"] == {"mean": 2.0, "p50": 2.0, "p90": 3.0, "p99": 3.0, "max": 3.0}


def test_the_first_requests_with_differences_are_kept() -> None:
    tally = Tally()
    for number in range(2 * MAX_KEPT, 0, -1):
        tally.add(differing(number))
    assert [one.number for one in tally.kept] == list(range(1, MAX_KEPT + 1))
    assert tally.outcomes == {"different": 2 * MAX_KEPT}


def test_a_report_tells_counts_and_differences() -> None:
    tally = Tally()
    tally.add(result(1))
    tally.add(result(2, "equal by the rules", by_rules=("tolerance",), largest=0.25))
    tally.add(differing(3, old="\x1b[31m```\n", new_status=404))
    tally.add(differing(4))
    lines = report_lines({"from": "http://old", "headers": ("a", "b")}, tally, 1)
    told = "\n".join(lines)
    assert "headers  a, b" in told
    counts = [line.split() for line in lines]
    assert ["by", "tolerance", "1"] in counts
    assert ["with", "statuses", "200,", "200", "3"] in counts
    assert ["largest", "difference", "0.25"] in counts
    assert "differences of 1 of 2 requests" in told
    assert "r3 (statuses 200, 404)" in told
    assert "  body  a  \\x1b[31m```\\x0a  ->  2" in lines
    assert "r4" not in told
    assert page(lines).count("```") == 2, "an answer cannot end the block"
    assert json.loads(json.dumps(tally.facts()))["outcomes"]["different"] == 2
