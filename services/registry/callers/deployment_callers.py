"""Callers of all processes of a deployment, for the refusal of a version that breaks some of them.

In: requests that this process has counted, and reports of the others. Out: words about the callers
that a version breaks, and about reports that are missing, old or malformed; and the own reports.

A board keeps the newest report of each process by model. Two ship: Redis keeps those of gateways
(`redis_board.py`), and a supervisor those of its edge processes (`services/standalone`).
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from flambeau.protocol.signature import Signature
from services.interpreter_lock import lend_lock
from services.low_priority_thread import beside_loop
from services.registry.callers.broken_callers import callers_text
from services.registry.callers.caller_reports import (
    InvalidReportError,
    decode_report,
    encode_report,
    together,
)
from services.registry.callers.recent_callers import RecentCallers, SeenCaller

logger = logging.getLogger("flambeau.registry")

SEND_EVERY_S = 5.0
"""Interval of reports. One of 32 callers with four kinds of requests takes 0.25 ms of the event
loop, 0.1 ms of a thread, and one call of Redis."""
LAST_WITHIN_S = 2.0
"""Time for the last reports of a process that drains."""
OLD_S = 30.0
"""Age from which a message tells that of a report."""
MAX_REPORTS = 256
"""Reports of a model that are kept and read, those of ended processes included; newest first."""
MAX_READ_BYTES = 4 * 2**20
"""Reports of a model that are read at once."""
MOST_REPORTS_TOLD = 4
"""Reports that are old or left out, in a message."""
MAX_COMPLAINTS = 1_000
"""Malformed reports that are logged."""

InThread = Callable[[Callable[[], "_Findings"]], Awaitable["_Findings"]]


class ReportsUnavailableError(Exception):
    """A board does not answer; the message says so in words of a refusal."""


class KeptReport(NamedTuple):
    """The report of a process, as a board has it."""

    process: str
    """Name of the process, unique for all time."""
    age_s: float
    data: bytes
    """See `decode_report`."""


class ReportBoard(Protocol):
    """Keeps the newest report of each process, for an hour."""

    async def put(self, process: str, reports: Mapping[str, bytes]) -> None:
        """Replaces the reports of a process, by model.

        Raises:
            ReportsUnavailableError: the board is out of reach.
        """

    async def read(self, model: str) -> Sequence[KeptReport]:
        """Returns the reports of a model.

        Raises:
            ReportsUnavailableError: the board is out of reach.
        """


class ReportSender:
    """Puts the reports of this process on a board.

    Args:
        board: the board.
        process: name of this process, unique for all time.
        callers: requests that it has counted.
    """

    def __init__(self, board: ReportBoard, process: str, callers: RecentCallers) -> None:
        self._board, self._process, self._callers = board, process, callers

    async def run(self) -> None:
        """Sends until cancelled, then a last time; no failure ends it."""
        try:
            while True:
                await asyncio.sleep(SEND_EVERY_S)
                await self._try_to_send()
        finally:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WITHIN_S):
                    await self._try_to_send()

    async def _try_to_send(self) -> None:
        """Sends; requests in flight must not end for want of a report."""
        try:
            await self.send()
        except Exception:
            logger.exception("reports of callers could not be sent")

    async def send(self) -> None:
        """Sends the reports of all models; they are lost if the board is out of reach."""
        seen = {}
        for model in self._callers.models():
            seen[model] = self._callers.seen(model)
            await asyncio.sleep(0)  # the event loop goes on between two models
        if seen:
            reports = await beside_loop(
                lambda: {model: encode_report(callers) for model, callers in seen.items()}
            )
            with contextlib.suppress(ReportsUnavailableError):
                await self._board.put(self._process, reports)


class _Findings(NamedTuple):
    text: str
    malformed: dict[str, str]
    """Reasons by process."""


class DeploymentCallers:
    """The callers of all processes.

    Args:
        where: place of their requests, in words.
        own: requests that this process has counted; None where it answers none.
        board: reports of other processes; None where there are none.
        process: name of this process on the board.
    """

    def __init__(
        self,
        where: str,
        own: RecentCallers | None,
        board: ReportBoard | None = None,
        process: str = "",
    ) -> None:
        self._where, self._own, self._board, self._process = where, own, board, process
        self._complaints: set[str] = set()

    async def broken_by(
        self, model: str, live: Signature, version: Signature, in_thread: InThread
    ) -> str:
        """Returns the callers that a version breaks, in words; see `callers_text`.

        Args:
            model: the model's name.
            live: signature of the live version, as callers see it.
            version: signature of the new one, likewise.
            in_thread: runs blocking work.
        """
        own = () if self._own is None else self._own.seen(model)
        kept: Sequence[KeptReport] = ()
        missing = ""
        if self._board is not None:
            try:
                kept = await self._board.read(model)
            except ReportsUnavailableError as error:
                missing = str(error)
        others = [report for report in kept if report.process != self._process]
        found = await in_thread(lambda: _findings(own, others, live, version, self._where))
        for process, reason in found.malformed.items():
            self._complain(process, reason)
        return "; ".join(filter(None, [found.text, missing]))

    def _complain(self, process: str, reason: str) -> None:
        if process not in self._complaints and len(self._complaints) < MAX_COMPLAINTS:
            self._complaints.add(process)
            logger.error(
                "a report of callers was left out", extra={"reporter": process, "reason": reason}
            )


def _findings(
    own: Sequence[SeenCaller],
    kept: Sequence[KeptReport],
    live: Signature,
    version: Signature,
    where: str,
) -> _Findings:
    reports, told, malformed = [own], [], {}
    for process, age_s, data in kept:
        try:
            report = decode_report(data)
        except InvalidReportError as error:
            malformed[process] = str(error)
            told.append(f"the report of {process} cannot be read")
            continue
        reports.append(report.callers)
        if report.left_out:
            told.append(f"the report of {process} lacks {report.left_out} of its callers")
        if age_s > OLD_S:
            told.append(f"the report of {process} is {_age(age_s)} old")
        lend_lock()
    if len(told) > MOST_REPORTS_TOLD:
        told[MOST_REPORTS_TOLD:] = [f"and {len(told) - MOST_REPORTS_TOLD} more such reports"]
    text = callers_text(together(reports), live, version, where)
    return _Findings("; ".join(filter(None, [text, *told])), malformed)


def _age(age_s: float) -> str:
    return f"{age_s:.0f} s" if age_s < 120 else f"{age_s / 60:.0f} min"
