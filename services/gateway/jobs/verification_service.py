"""Runs verifications: one at a time, shared by all callers that ask for the same version.

In: a model and a version, and a function that verifies them, on this machine or a worker's. Out:
the progress, and in the end a certificate.

Rules: unauthenticated clients are refused without a reason (operators have docs); a second version
is refused while the first is verified, since serving has priority on the machine over both.
"""

import asyncio
import itertools
import uuid
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Literal

from services.errors import (
    ForbiddenError,
    InvalidRequestError,
    OverloadedError,
    ServingError,
    UnknownJobError,
)
from services.queueing.verification_records import Verified, Verify

VerifyFor = Literal["nobody", "this_machine"]

MAX_WAIT_S = 10.0
"""The longest a caller may wait in one call."""
MAX_WAITING = 4
"""Calls that may wait at once; further ones are answered at once."""
KEPT = 8
"""Finished verifications that can still be queried."""

REFUSED = "this server takes no verifications from you; ask its operator"
"""Does not name the permission that is missing: operators have the docs."""
_LOCAL_PEERS = ("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "unix:")
"""Prefixes of gRPC peer names on this machine."""


@dataclass(slots=True, kw_only=True)
class Verification:
    """A running or finished verification."""

    id: str
    asked: tuple[str, int | None]
    """The model, and the version as requested."""
    artifact: str = ""
    done: int = 0
    total: int = 0
    outcome: Verified | ServingError | None = None
    """None while it runs."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and replaced, at every step."""

    def step(self) -> None:
        """Wakes all waiting callers."""
        self.changed.set()
        self.changed = asyncio.Event()


class VerificationService:
    """Begins and finds verifications. Runs on the event loop.

    Args:
        verify: function that verifies a version.
        allowed: callers that may ask.
    """

    def __init__(self, verify: Verify, allowed: VerifyFor) -> None:
        self._verify = verify
        self._allowed = allowed
        self._running: Verification | None = None
        self._kept: OrderedDict[str, Verification] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0

    def check(self, peer: str, *, is_known: bool = False) -> None:
        """Refuses callers without permission.

        Args:
            peer: gRPC's name of the caller.
            is_known: True if it has sent a credential, whose scope `manage` then decides.

        Raises:
            ForbiddenError: it may not ask.
        """
        if self._allowed == "this_machine" and (is_known or peer.startswith(_LOCAL_PEERS)):
            return
        raise ForbiddenError(REFUSED)

    def begin(self, model: str, version: str) -> Verification:
        """Begins a verification, or returns the running one of the same version.

        Raises:
            InvalidRequestError: the version is not a number.
            OverloadedError: another version is being verified.
        """
        if version and not (version.isascii() and version.isdecimal() and len(version) < 10):
            raise InvalidRequestError(f"version {version[:40]!r} is no version number")
        asked = (model, int(version) if version else None)
        running = self._running
        if running is not None and running.asked == asked:
            return running
        if running is not None:
            name, number = running.asked
            raise OverloadedError(
                f"'{name}' version {number or 'in production'} is being verified, artifact "
                f"{running.done + 1} of {running.total}; one at a time, so try again"
            )
        begun = self._running = Verification(id=uuid.uuid4().hex, asked=asked)
        self._kept[begun.id] = begun
        for old in list(itertools.islice(self._kept, max(len(self._kept) - KEPT, 0))):
            del self._kept[old]
        task = asyncio.get_running_loop().create_task(self._run(begun))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return begun

    def find(self, verification_id: str) -> Verification:
        """Returns a verification that was begun before.

        Raises:
            UnknownJobError: it is unknown, or no longer kept.
        """
        found = self._kept.get(verification_id)
        if found is None:
            raise UnknownJobError(
                f"there is no verification {verification_id[:40]!r} here, or not any more; the "
                "server may have been started anew, so begin again"
            )
        return found

    async def wait(self, verification: Verification, seconds: float) -> None:
        """Waits for its next step, for at most `seconds`."""
        if verification.outcome is not None or seconds <= 0 or self._waiting >= MAX_WAITING:
            return
        self._waiting += 1
        try:
            async with asyncio.timeout(min(seconds, MAX_WAIT_S)):
                await verification.changed.wait()
        except TimeoutError:
            return
        finally:
            self._waiting -= 1

    async def _run(self, begun: Verification) -> None:
        def progress(artifact: str, done: int, total: int) -> None:
            begun.artifact, begun.done, begun.total = artifact, done, total
            begun.step()

        try:
            begun.outcome = await self._verify(*begun.asked, progress)
            begun.done = begun.total
        except ServingError as error:
            begun.outcome = error
        except BaseException:
            begun.outcome = ServingError("the verification failed in the server; see its log")
            raise
        finally:
            self._running = None
            begun.step()
