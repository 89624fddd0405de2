"""Takes in verifications: one at a time, and everybody who asks for the same one shares it.

In: a model and a version, and a function that proves them, on this machine or a worker's. Out: how
far it is, and in the end a certificate.

Rules kept here: strangers ask for none, and are not told who may (operators have docs); a second
version is refused while the first is verified, for what is served has the machine before both.
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
"""Calls that may wait at once; those beyond get an answer at once."""
KEPT = 8
"""Verifications that are over and can still be asked for."""

REFUSED = "this server takes no verifications from you; ask its operator"
"""Not what would have been right: operators know where to look."""
_LOCAL_PEERS = ("ipv4:127.", "ipv6:[::1]", "ipv6:%5B::1%5D", "unix:")
"""How gRPC names callers on this machine."""


@dataclass(slots=True, kw_only=True)
class Verification:
    """One that runs, or ran."""

    id: str
    asked: tuple[str, int | None]
    """The model, and the version as it was asked for."""
    artifact: str = ""
    done: int = 0
    total: int = 0
    outcome: Verified | ServingError | None = None
    """None while it runs."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set, and made anew, at every step."""

    def step(self) -> None:
        """Tells everybody who waits."""
        self.changed.set()
        self.changed = asyncio.Event()


class VerificationService:
    """Where verifications are asked for. Runs on the event loop.

    Args:
        verify: proves a version.
        allowed: who may ask.
    """

    def __init__(self, verify: Verify, allowed: VerifyFor) -> None:
        self._verify = verify
        self._allowed = allowed
        self._running: Verification | None = None
        self._kept: OrderedDict[str, Verification] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()
        self._waiting = 0

    def check(self, peer: str, *, is_known: bool = False) -> None:
        """Refuses strangers.

        Args:
            peer: the caller, as gRPC names it.
            is_known: whether it has shown a credential, whose scope `manage` then decides.

        Raises:
            ForbiddenError: it may not ask.
        """
        if self._allowed == "this_machine" and (is_known or peer.startswith(_LOCAL_PEERS)):
            return
        raise ForbiddenError(REFUSED)

    def begin(self, model: str, version: str) -> Verification:
        """Begins one, or gives the one of the same version that runs.

        Raises:
            InvalidRequestError: the version is no number.
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
        """One that was begun before.

        Raises:
            UnknownJobError: it is not known, or not any more.
        """
        found = self._kept.get(verification_id)
        if found is None:
            raise UnknownJobError(
                f"there is no verification {verification_id[:40]!r} here, or not any more; the "
                "server may have been started anew, so begin again"
            )
        return found

    async def wait(self, verification: Verification, seconds: float) -> None:
        """Waits for its next step, or until the time is over."""
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
