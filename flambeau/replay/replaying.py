"""Sends requests to two servers, and compares the answers.

One request is sent to the old server, then to the new one, so that neither slows the other down.
The old answers may also be those that were recorded with the requests.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol

from flambeau.replay.comparison.compare import Comparer
from flambeau.replay.errors import NoAnswerError, UnreachableError
from flambeau.replay.records import Answer, Difference, Outcome, RecordedRequest, Result

GONE_AFTER = 10
"""Requests in a row that a server takes no connection for, until the replay is given up."""
SMALL_BYTES = 2**16
"""Bodies up to this size are compared on the event loop, others in a thread."""


Asked = Answer | NoAnswerError


class Caller(Protocol):
    """Source of the answers to requests: a server, or a recording."""

    async def call(self, request: RecordedRequest) -> Answer:
        """Returns the answer; raises `NoAnswerError`."""

    def close(self) -> None:
        """Releases what it holds."""


class RecordedAnswers:
    """Answers with what was recorded."""

    async def call(self, request: RecordedRequest) -> Answer:
        """Returns the recorded answer.

        Raises:
            NoAnswerError: none was recorded.
        """
        if request.answer is None:
            raise NoAnswerError("no answer was recorded; capture with --answers, or give --from")
        return request.answer

    def close(self) -> None:
        """Does nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A replay.

    Attributes:
        old: makes a connection to the old server.
        new: makes a connection to the new one.
        comparer: compares their answers.
        concurrency: requests in flight.
        rate: most requests a second; 0 for no limit.
    """

    old: Callable[[], Caller]
    new: Callable[[], Caller]
    comparer: Comparer
    concurrency: int = 1
    rate: float = 0.0


class Replay:
    """A running replay.

    Args:
        plan: what to do.
        requests: the requests; taken from a thread, one at a time.
        take: receives every result, in the order in which they are known.
    """

    def __init__(
        self, plan: Plan, requests: Iterator[RecordedRequest], take: Callable[[Result], None]
    ) -> None:
        self._plan, self._requests, self._take = plan, requests, take
        self._turn = asyncio.Lock()
        self._reading = threading.Lock()
        self._next_s = 0.0
        self._refused: Counter[str] = Counter()

    async def run(self) -> None:
        """Sends all requests.

        Raises:
            UnreachableError: a server takes no connections any more.
            RequestFileError: the requests changed meanwhile.
        """
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._plan.concurrency):
                    group.create_task(self._work())
        except BaseExceptionGroup as errors:
            raise _first(errors) from None

    async def _work(self) -> None:
        old, new = self._plan.old(), self._plan.new()
        try:
            while (request := await self._next()) is not None:
                self._take(await self._result(request, old, new))
        finally:
            old.close()
            new.close()

    async def _next(self) -> RecordedRequest | None:
        """Waits for the time of the next request."""
        async with self._turn:
            found = await asyncio.to_thread(self._read)
            if self._plan.rate and found is not None:
                now = asyncio.get_running_loop().time()
                self._next_s = max(self._next_s, now)
                await asyncio.sleep(self._next_s - now)
                self._next_s += 1 / self._plan.rate
            return found

    def _read(self) -> RecordedRequest | None:
        with self._reading:  # the thread of a cancelled task may still read
            return next(self._requests, None)

    async def _result(self, request: RecordedRequest, old: Caller, new: Caller) -> Result:
        one = await self._ask("old", old, request)
        other = await self._ask("new", new, request)
        if not isinstance(one, Answer) or not isinstance(other, Answer):
            return _unanswered(request, one, other)
        compare = self._plan.comparer.compare
        is_small = len(one.body) + len(other.body) <= SMALL_BYTES
        found = compare(one, other) if is_small else await asyncio.to_thread(compare, one, other)
        equal: Outcome = "equal by the rules" if found.by_rules else "equal"
        return Result(
            number=request.number,
            name=request.name,
            outcome="different" if found.count else equal,
            old_status=one.status,
            new_status=other.status,
            old_ms=one.seconds * 1000,
            new_ms=other.seconds * 1000,
            differences=tuple(found.differences),
            count=found.count,
            largest=found.largest,
            by_rules=tuple(sorted(found.by_rules)),
        )

    async def _ask(self, side: str, server: Caller, request: RecordedRequest) -> Asked:
        try:
            answer = await server.call(request)
        except UnreachableError as error:
            self._refused[side] += 1
            if self._refused[side] >= GONE_AFTER:
                raise
            return error
        except NoAnswerError as error:
            return error
        self._refused[side] = 0
        return answer


def _unanswered(request: RecordedRequest, old: Asked, new: Asked) -> Result:
    """Returns the result of a request that a server has not answered.

    It differs if the old server answered it and the new one failed to; it is not compared if there
    is no old answer, or the new server took no connection.
    """
    texts = [str(x.status) if isinstance(x, Answer) else str(x) for x in (old, new)]
    is_failure = isinstance(old, Answer) and not isinstance(new, UnreachableError)
    return Result(
        number=request.number,
        name=request.name,
        outcome="different" if is_failure else "not compared",
        old_status=old.status if isinstance(old, Answer) else 0,
        new_status=new.status if isinstance(new, Answer) else 0,
        differences=(Difference(kind="no answer", place="answer", old=texts[0], new=texts[1]),),
        count=1,
    )


def _first(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Returns the first error of a group that tasks raised."""
    found = errors.exceptions[0]
    return _first(found) if isinstance(found, BaseExceptionGroup) else found
