"""A replay from its requests to its report: what a command line asks for.

In: servers, requests and rules. Out: the report, in the folder and returned.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flambeau.replay.comparison.compare import Comparer
from flambeau.replay.comparison.findings import Rules
from flambeau.replay.errors import RequestFileError, UnreachableError
from flambeau.replay.records import RecordedRequest, Result
from flambeau.replay.replaying import Caller, Plan, RecordedAnswers, Replay
from flambeau.replay.report_folder import ReportFolder
from flambeau.replay.report_text import page, report_lines
from flambeau.replay.request_source import Checked, RequestSource
from flambeau.replay.server_connection import CallLimits, ServerConnection
from flambeau.replay.server_url import ServerUrl
from flambeau.replay.tally import Tally

if TYPE_CHECKING:
    from flambeau.channel import Tls

EQUAL, DIFFERENT, NOT_DONE = 0, 1, 2
"""Exit codes."""
FINISHED = "finished"
RECORDED = "recorded answers"

Servers = tuple[ServerUrl | None, ServerUrl]
"""The old server, or None for recorded answers; and the new one."""
Watched = Callable[[int], AbstractContextManager[Callable[[], None]]]
"""Shows progress: takes the number of steps, and yields what counts one."""


def servers_of(old: str, new: str, tls: "Tls | None") -> Servers:
    """Parses the URLs of both servers; the old one's may be empty.

    Raises:
        ServerUrlError: one is no such URL.
    """
    return ServerUrl.parse(old, tls) if old else None, ServerUrl.parse(new, tls)


@dataclass(frozen=True, slots=True)
class Report:
    """A report: as JSON, as lines of text, and as an exit code."""

    facts: dict[str, Any]
    lines: list[str]
    exit_code: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """A replay.

    Attributes:
        servers: both servers.
        tokens: credentials for them, in place of recorded ones; empty for none.
        requests: a capture, or a folder of requests.
        rules: how answers are compared.
        limits: limits of each request.
        methods: methods that are sent; with `PREDICTING`, predictions by PUT, too.
        concurrency: requests in flight.
        rate: most requests a second; 0 for no limit.
        skip_bad: True to leave out requests that cannot be read.
    """

    servers: Servers
    tokens: tuple[str, str]
    requests: Path
    rules: Rules
    limits: CallLimits
    methods: frozenset[str]
    concurrency: int
    rate: float
    skip_bad: bool

    def run(self, folder: Path, resume: bool | None, shown: int, watched: Watched) -> Report:
        """Replays, until all is done or SIGINT or SIGTERM comes, and writes the report.

        Args:
            folder: folder of the report.
            resume: see `ReportFolder.opened`.
            shown: number of requests whose differences are in the lines.
            watched: shows progress.

        Raises:
            ReplayError: nothing was sent: a wrong rule or request, a server that is not there, or
                another replay in the folder.
        """
        source = RequestSource(self.requests)
        checked = source.check()
        count = self._count(checked)
        plan = self._plan()
        asyncio.run(self._reach())
        reports = ReportFolder(folder, self._settings(checked))
        with contextlib.ExitStack() as stack:
            tally = stack.enter_context(reports.opened(resume))
            step = stack.enter_context(watched(count - len(tally.done)))
            requests = self._chosen(source, tally.done.copy())

            def take(result: Result) -> None:
                reports.add(result)
                tally.add(result)
                step()

            state = asyncio.run(_until_stopped(Replay(plan, requests, take)))
        head = self._head(checked, count, tally, state)
        lines = report_lines(head, tally, shown)
        facts = {**head, "finished": state == FINISHED, **tally.facts()}
        reports.write(facts, page(lines))
        is_whole = state == FINISHED and not _left_out(checked, count)
        return Report(facts, lines, _exit_code(tally, is_whole))

    def _count(self, checked: Checked) -> int:
        """Returns the number of requests to send.

        Raises:
            RequestFileError: some cannot be read, or none has a method that is sent.
        """
        if checked.fault_count and not self.skip_bad:
            more = checked.fault_count - len(checked.faults)
            told = "; ".join([*checked.faults, *([f"and {more} more"] if more else [])])
            raise RequestFileError(f"{told}; correct '{self.requests}', or give --skip-bad")
        count = sum(n for method, n in checked.methods.items() if method in self.methods)
        if not count:
            raise RequestFileError(
                f"no request of '{self.requests}' is sent: their methods are "
                f"{', '.join(sorted(checked.methods)) or 'unknown'}; see --methods"
            )
        return count

    def _plan(self) -> Plan:
        old, new = self.servers
        origins = (old.text if old else "", new.text)
        return Plan(
            old=lambda: _caller(old, self.limits, self.tokens[0]),
            new=lambda: _caller(new, self.limits, self.tokens[1]),
            comparer=Comparer(replace(self.rules, origins=origins)),
            concurrency=self.concurrency,
            rate=self.rate,
        )

    async def _reach(self) -> None:
        """Connects to both servers once.

        Raises:
            UnreachableError: one takes no connections.
        """
        for server in filter(None, self.servers):
            _, writer = await server.connect()
            writer.transport.abort()

    def _settings(self, checked: Checked) -> dict[str, Any]:
        """Returns what an interrupted replay must have in common with its continuation."""
        old, new = self.servers
        return {
            "from": old.text if old else RECORDED,
            "to": new.text,
            "requests": checked.digest,
            "methods": sorted(self.methods),
            "rules": asdict(self.rules),
        }

    def _chosen(self, source: RequestSource, done: set[int]) -> Iterator[RecordedRequest]:
        for request in source.requests():
            if request.act in self.methods and request.number not in done:
                yield request

    def _head(self, checked: Checked, count: int, tally: Tally, state: str) -> dict[str, Any]:
        old, new = self.servers
        left_out = _left_out(checked, count)
        return {
            "from": old.text if old else RECORDED,
            "to": new.text,
            "requests": f"{self.requests} ({count} to send, {left_out} left out)",
            "tolerance": f"{self.rules.absolute:g} + {self.rules.relative:g} * |old|",
            "headers": self.rules.headers,
            "ignored": self.rules.ignored or "nothing",
            "ids and times": "ignored" if self.rules.normalises else "compared",
            "state": f"{state}, {len(tally.done)} of {count} compared",
        }


def _caller(server: ServerUrl | None, limits: CallLimits, token: str) -> Caller:
    return RecordedAnswers() if server is None else ServerConnection(server, limits, token)


async def _until_stopped(replay: Replay) -> str:
    """Runs a replay until its end or a signal. Returns how it ended."""
    loop = asyncio.get_running_loop()
    running = loop.create_task(replay.run())
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, running.cancel)
    try:
        await running
    except asyncio.CancelledError:
        return "interrupted"
    except (UnreachableError, RequestFileError) as error:
        return f"given up ({error})"
    return FINISHED


def _left_out(checked: Checked, count: int) -> int:
    """Returns the number of requests that are not sent."""
    return checked.count - count + checked.fault_count


def _exit_code(tally: Tally, is_whole: bool) -> int:
    if is_whole and tally.outcomes["different"]:
        return DIFFERENT
    proves = is_whole and not tally.outcomes["not compared"] and not tally.only_refusal
    return EQUAL if proves else NOT_DONE
