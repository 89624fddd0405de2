"""Callers of a deployment: what a refusal says of all processes, and of their reports."""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import pytest

from services.registry.callers import deployment_callers
from services.registry.callers.caller_reports import decode_report, encode_report
from services.registry.callers.deployment_callers import (
    MOST_REPORTS_TOLD,
    OLD_S,
    DeploymentCallers,
    KeptReport,
    ReportSender,
    ReportsUnavailableError,
)
from services.registry.callers.recent_callers import RecentCallers
from tests.fixtures.redis_servers import until
from tests.unit.registry.test_recent_callers import LIVE, Sender, signed

T = TypeVar("T")
SMALL = signed(*LIVE.inputs, outputs=LIVE.outputs, rows=4)


async def in_thread(work: Callable[[], T]) -> T:
    return await asyncio.to_thread(work)


class Board:
    """Keeps reports in this process."""

    def __init__(self) -> None:
        self.kept: dict[str, KeptReport] = {}
        self.has_report = asyncio.Event()
        self.fault = ""
        self.bug: Exception | None = None

    async def put(self, process: str, reports: Mapping[str, bytes]) -> None:
        if self.bug is not None:
            raise self.bug
        if self.fault:
            raise ReportsUnavailableError(self.fault)
        self.kept[process] = KeptReport(process, 0.0, reports["m"])
        self.has_report.set()

    async def read(self, model: str) -> Sequence[KeptReport]:
        if self.fault:
            raise ReportsUnavailableError(self.fault)
        return list(self.kept.values())

    def keep(self, process: str, rows: int, age_s: float = 0.0) -> None:
        """Keeps the report of a process whose caller of its own name has sent some rows."""
        sender = Sender()
        sender.send(f"key:{process}", x=(rows, 4))
        data = encode_report(sender.callers.seen("m", sender.now))
        self.kept[process] = KeptReport(process, age_s, data)


def own(rows: int) -> RecentCallers:
    """Returns a request of now, with some rows."""
    callers, now = RecentCallers(), asyncio.get_running_loop().time()
    assert callers.is_due("m", "key:own", now)
    callers.look(
        "m", "key:own", [("x", "FP32", (rows, 4))], (), is_step=False, signature=LIVE, now=now
    )
    return callers


async def told(callers: DeploymentCallers) -> str:
    return await callers.broken_by("m", LIVE, SMALL, in_thread)


async def test_callers_of_all_processes_are_told() -> None:
    board = Board()
    board.keep("a", 8)
    board.keep("b", 9)
    board.keep("c", 2)
    board.keep("here", 7)  # older than what this process knows of itself
    text = await told(DeploymentCallers("at this server", own(6), board, "here"))
    assert text.startswith("callers of the last hour seen at this server whose requests break: ")
    for caller, rows in (("a", 8), ("b", 9), ("own", 6)):
        assert f"key:{caller} (about 1 request): the batch has {rows} rows" in text
    assert "key:here" not in text
    assert "key:c" not in text


async def test_one_caller_of_several_processes_is_told_once() -> None:
    board = Board()
    for process in ("a", "b"):
        board.keep(process, 8)
        data = board.kept[process].data.replace(f"key:{process}".encode(), b"key:x")
        board.kept[process] = KeptReport(process, 0.0, data)
    text = await told(DeploymentCallers("at the gateways", None, board))
    assert text.count("key:x") == 1
    assert "key:x (about 2 requests)" in text


async def test_none_is_told_without_requests() -> None:
    assert await told(DeploymentCallers("at the gateways", None, Board())) == ""
    assert await told(DeploymentCallers("at this server", RecentCallers())) == ""


async def test_a_board_out_of_reach_is_told_with_what_is_known() -> None:
    board = Board()
    board.fault = "the other processes of this server did not answer within 2 s"
    text = await told(DeploymentCallers("at this server", own(2), board, "here"))
    assert text == (
        "no request of the last hour seen at this server breaks, of 1 caller; the other "
        "processes of this server did not answer within 2 s"
    )
    assert await told(DeploymentCallers("at the gateways", None, board)) == board.fault


async def test_ages_of_old_reports_are_told() -> None:
    board = Board()
    board.keep("fresh", 2, OLD_S)
    board.keep("late", 2, OLD_S + 1)
    board.keep("ended", 2, 1_800)
    text = await told(DeploymentCallers("at the gateways", None, board))
    assert text == (
        "no request of the last hour seen at the gateways breaks, of 3 callers; the report of "
        "late is 31 s old; the report of ended is 30 min old"
    )


async def test_few_of_many_old_reports_are_told() -> None:
    board = Board()
    for number in range(MOST_REPORTS_TOLD + 3):
        board.keep(f"p{number}", 2, 600)
    text = await told(DeploymentCallers("at the gateways", None, board))
    assert text.count("is 10 min old") == MOST_REPORTS_TOLD
    assert text.endswith("; and 3 more such reports")


async def test_a_malformed_report_is_left_out_and_logged_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = Board()
    board.keep("a", 8)
    board.kept["evil"] = KeptReport("evil", 0.0, b"\xc1")
    callers = DeploymentCallers("at the gateways", None, board)
    with caplog.at_level(logging.ERROR, "flambeau.registry"):
        for _ in range(3):
            text = await told(callers)
            assert "key:a (about 1 request)" in text
            assert text.endswith("; the report of evil cannot be read")
        [record] = caplog.records
        assert (record.__dict__["reporter"], "malformed" in record.__dict__["reason"]) == (
            "evil", True,
        )  # fmt: skip
        monkeypatch.setattr(deployment_callers, "MAX_COMPLAINTS", 1)
        board.kept["worse"] = KeptReport("worse", 0.0, b"")
        assert "the report of worse cannot be read" in await told(callers)
        assert len(caplog.records) == 1


async def test_callers_without_room_in_a_report_are_told() -> None:
    board = Board()
    sender = Sender(signed(*LIVE.inputs, outputs=LIVE.outputs))
    sender.send(x=(8, 4))
    [caller] = sender.callers.seen("m", sender.now)
    large = caller._replace(kinds=(caller.kinds[0]._replace(outputs=("y" * 256,) * 200),))
    board.kept["a"] = KeptReport("a", 0.0, encode_report([caller, large]))
    text = await told(DeploymentCallers("at the gateways", None, board))
    assert text.endswith("; the report of a lacks 1 of its callers")


async def test_a_process_reports_again_and_again_and_at_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(deployment_callers, "SEND_EVERY_S", 0.0)
    board, callers = Board(), own(8)
    sending = asyncio.create_task(ReportSender(board, "a", callers).run())
    await board.has_report.wait()
    board.fault = "out of reach"
    await asyncio.sleep(0)
    board.fault = ""
    board.has_report.clear()
    await board.has_report.wait()
    monkeypatch.setattr(deployment_callers, "SEND_EVERY_S", 3_600)
    await asyncio.sleep(0)
    board.kept.clear()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    [caller] = decode_report(board.kept["a"].data).callers
    assert caller.name == "key:own"


async def test_no_failure_ends_the_reports(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(deployment_callers, "SEND_EVERY_S", 0.0)
    board = Board()
    board.bug = RuntimeError("can't start new thread")
    sending = asyncio.create_task(ReportSender(board, "a", own(8)).run())
    await until(lambda: "reports of callers could not be sent" in caplog.messages)
    board.bug = None
    await board.has_report.wait()
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)


async def test_a_model_without_requests_is_reported_as_such() -> None:
    """Else its last report would grow old, as if its process had ended."""
    board, sender = Board(), Sender()  # its requests are of long ago
    sender.now = -10_000.0
    sender.send()
    await ReportSender(board, "a", sender.callers).send()
    assert decode_report(board.kept["a"].data).callers == ()
