"""The lease of a rollout: at most one process controls it at a time, by numbered files.

    <model>/rollouts/<id>/lease/<number>.json     one for each holder so far

In: the numbers of the files and the newest one's content, at each look. Out: whether this process
may act. Rules:

- The lease is the file with the highest number of those that follow each other from 1; a file
  beyond a gap is none. It is created only if absent, so that of several contenders one gets it.
- The holder rewrites its file at every look. A contender that has seen no change of it for
  `TAKEN_AFTER` intervals creates the next number.
- A holder acts until `HELD_FOR` intervals after it began a look at which its file was the newest.
  A new holder acts only that long after it has created its file: until then the one before may.
  So two never act at once, however slow the store or a process is.
- Only durations by a process's own monotonic clock count, so clocks may differ.
"""

import itertools
import json
import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from model_store.errors import ConflictError, StorageError, TooLargeError
from model_store.storage.storage import MissingFileError, Storage

TAKEN_AFTER = 3
HELD_FOR = 3
"""Intervals; a store that takes longer to list and write two files allows no rollout to move."""
MAX_LEASE_BYTES = 4_096
_FILE = re.compile(r"([1-9][0-9]{0,14})\.json")

Act = Literal["renew", "take", "wait"]


@dataclass(slots=True)
class LeaseRule:
    """Knowledge of one process about the lease. Pure; all times are seconds of its own clock."""

    interval_s: float
    own: int = 0
    """Number of its own file; 0 for none."""
    acts_from: float = math.inf
    acts_until: float = -math.inf
    seen: tuple[int, bytes] = (0, b"")
    """The newest number, and the content of its file."""
    since: float = -math.inf
    """When that was first seen."""

    def look(self, newest: int, content: bytes, began: float) -> Act:
        """Decides what to do next.

        Args:
            newest: the highest number; 0 if there is no file.
            content: that of its file; any value for an own file.
            began: time before the files were listed.
        """
        if newest and newest == self.own:
            self.acts_until = began + HELD_FOR * self.interval_s
            return "renew"
        self.own = 0
        if self.seen != (newest, content):
            self.seen, self.since = (newest, content), began
        waited = began - self.since >= TAKEN_AFTER * self.interval_s
        return "take" if waited or not newest else "wait"

    def took(self, number: int, began: float, now: float) -> None:
        """Notes that an own file was created.

        Args:
            number: that of the file.
            began: time before the files were listed.
            now: time after it was created.
        """
        self.own = number
        self.acts_until = began + HELD_FOR * self.interval_s
        # The first holder has no predecessor that may still act.
        self.acts_from = now + HELD_FOR * self.interval_s if number > 1 else now

    def may_act(self, now: float) -> bool:
        """Returns True while this process holds the lease, and nobody before it may still act."""
        return bool(self.own) and self.acts_from <= now < self.acts_until


class Lease:
    """The lease of one rollout, as one process sees it.

    Args:
        storage: that of the model store.
        folder: folder of the rollout.
        process: name of this process.
        interval_s: seconds between two looks, the same in all processes.
        clock: monotonic clock.
    """

    def __init__(
        self,
        storage: Storage,
        folder: str,
        process: str,
        interval_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._storage = storage
        self._folder = f"{folder}/lease/"
        self._process = process
        self._clock = clock
        self._rule = LeaseRule(interval_s)
        self._looks = 0

    def look(self) -> bool:
        """Renews the lease, or takes it if it is free; returns whether to act. Blocks.

        Raises:
            StorageError: the store failed or is too slow; `may_act` knows how long an earlier look
                holds.
        """
        began = self._clock()
        newest = self._newest()
        content = b"" if newest in (0, self._rule.own) else self._content(newest)
        act = self._rule.look(newest, content, began)
        self._looks += 1
        if act == "renew":
            self._storage.replace(self._path(newest), self._own_content())
            self._check_time(self._clock() - began)
        elif act == "take":
            try:
                self._storage.create(self._path(newest + 1), self._own_content())
            except ConflictError:
                return False
            self._rule.took(newest + 1, began, self._clock())
        return self.may_act()

    def may_act(self) -> bool:
        """Returns True while this process holds the lease."""
        return self._rule.may_act(self._clock())

    def _check_time(self, took_s: float) -> None:
        """Checks that a renewed lease is not over already.

        Raises:
            StorageError: it is.
        """
        longest_s = HELD_FOR * self._rule.interval_s
        if took_s >= longest_s:
            raise StorageError(
                f"renewing the lease of a rollout took {took_s:.1f} s, and it lasts "
                f"{longest_s:g} s: the store is too slow to control rollouts from here"
            )

    def _path(self, number: int) -> str:
        return f"{self._folder}{number}.json"

    def _newest(self) -> int:
        names = (path.removeprefix(self._folder) for path in self._storage.list(self._folder))
        numbers = {int(found[1]) for name in names if (found := _FILE.fullmatch(name))}
        return next(number for number in itertools.count() if number + 1 not in numbers)

    def _content(self, number: int) -> bytes:
        """Returns the content of a file; one that is gone or too large never changes."""
        try:
            return self._storage.get(self._path(number), MAX_LEASE_BYTES)
        except (MissingFileError, TooLargeError):
            return b""

    def _own_content(self) -> bytes:
        return json.dumps({"process": self._process, "look": self._looks}).encode()
