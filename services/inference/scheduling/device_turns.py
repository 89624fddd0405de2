"""Who may run next on a device that several lanes share: fair by measured time, not by count.

In: lanes that ask, and how long their batches took. Out: turns. Pure but for calling the lanes.

Start-time fair queueing (Goyal, Vin, Cheng 1996): each lane has a virtual time that grows by the
seconds it used; the one with the least goes next; a lane that was idle starts from the present
virtual time, so that it cannot save up turns. A lane alone is never held back.

A batch cannot be interrupted, so a lane of short ones would wait many times its own length for a
long one. One batch that takes a small part of what runs may therefore go beside it; the system's
scheduler shares the device between the two, and its time counts as ever (docs/adr/0007).
"""

import math
from typing import Protocol

LATELY_S = 60.0
"""For so long after a request that had little time, batches that may wait are kept short."""
EXPRESS_SHARE = 0.1
"""The most a batch may take, of the shortest that runs, to go beside it."""


class Runner(Protocol):
    """A lane, as the device sees it."""

    def next_s(self) -> float:
        """Seconds the next batch should run; infinity when none may go beside another's now."""

    def take_turn(self) -> float | None:
        """Starts one batch.

        Returns:
            The seconds it should run, or None when there is nothing to run now.
        """

    def take_background_turn(self) -> float | None:
        """Starts one batch of what may wait for an idle device; otherwise as `take_turn`."""

    def frees_at(self) -> float:
        """The `time.monotonic()` second at which the first of its batches that run should end."""


class DeviceTurns:
    """The turns of one device.

    Args:
        slots: batches that run at once.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.free = slots
        """Slots in which nothing runs."""
        self._asking: dict[Runner, None] = {}
        self._virtual_s: dict[Runner, float] = {}
        self._running: dict[Runner, int] = {}
        self._expected_s: dict[Runner, float] = {}
        """Of the last batch each running lane began."""
        self._express: Runner | None = None
        """Whose batch goes beside the slots."""
        self._background: dict[Runner, None] = {}
        """Lanes that have what may wait for an idle device."""
        self.tightest_s = math.inf
        """The least time that any request had lately, when it came."""
        self.tight_until = -math.inf
        """Until when that is what there was lately; a `time.monotonic()` second."""
        self._now_s = 0.0

    @property
    def wanted(self) -> bool:
        """Whether any lane waits for a turn."""
        return bool(self._asking)

    def ask(self, lane: Runner) -> None:
        """Gives the lane its turns, now if a slot is free and nobody is before it."""
        if lane not in self._asking:
            self._asking[lane] = None
            self._virtual_s[lane] = max(self._virtual_s.get(lane, 0.0), self._now_s)
        self._grant()

    def done(self, lane: Runner, expected_s: float, took_s: float, *, asks: bool = False) -> None:
        """A batch has ended; the slot goes to whoever is due.

        Args:
            lane: whose batch it was.
            expected_s: what `take_turn` said.
            took_s: what it ran, or held its slot where that is not known.
            asks: whether the lane asks for another turn.
        """
        if lane is self._express:
            self._express = None
        else:
            self.free += 1
        self._running[lane] -= 1
        if not self._running[lane]:
            del self._running[lane], self._expected_s[lane]
        if lane in self._virtual_s:  # else it left meanwhile
            self._virtual_s[lane] += took_s - expected_s
        if asks and lane not in self._asking:
            self._asking[lane] = None
        self._grant()

    def ask_background(self, lane: Runner) -> None:
        """Gives the lane turns for what may wait, whenever nobody else asks for one."""
        self._background[lane] = None
        self._virtual_s[lane] = max(self._virtual_s.get(lane, 0.0), self._now_s)
        self._grant()

    def tighten(self, slack_s: float, now: float) -> None:
        """Notes that a request came which had less time than any lately.

        Args:
            slack_s: seconds until its deadline.
            now: `time.monotonic()` second.
        """
        self.tightest_s, self.tight_until = slack_s, now + LATELY_S

    def background_s(self, now: float) -> float:
        """Seconds a batch that may wait may take: half of what the tightest request had lately.

        The other half is for that request's own run, should one like it come meanwhile.

        Args:
            now: `time.monotonic()` second.
        """
        if now > self.tight_until:
            self.tightest_s = math.inf
        return self.tightest_s / 2

    def leave(self, lane: Runner) -> None:
        """Forgets a lane, which asks no more."""
        self._asking.pop(lane, None)
        self._background.pop(lane, None)
        self._virtual_s.pop(lane, None)

    def share_of(self, lane: Runner) -> float:
        """The slots a lane gets for itself beside the lanes that run or wait for a turn now."""
        if not self._asking and self._running.keys() <= {lane}:
            return self.slots
        return self.slots / len(self._asking.keys() | self._running.keys() | {lane})

    def frees_at(self, run_s: float) -> float:
        """The `time.monotonic()` second at which a batch of `run_s` may start; 0 for now."""
        if self.free or self._may_express(run_s):
            return 0.0
        return min((lane.frees_at() for lane in self._running), default=0.0)

    def _grant(self) -> None:
        while self.free and self._asking:
            lane = min(self._asking, key=self._virtual_s.__getitem__)
            expected_s = lane.take_turn()
            if expected_s is None:
                del self._asking[lane]
                continue
            self.free -= 1
            self._begin(lane, expected_s)
        if self._asking:
            if self._express is None:
                self._grant_express()
        elif self._background and self.free:
            self._grant_background()

    def _grant_background(self) -> None:
        """Fills idle slots with what may wait, a batch of each lane in turn."""
        while self.free and self._background:
            lane = next(iter(self._background))
            del self._background[lane]
            expected_s = lane.take_background_turn()
            if expected_s is not None:
                self._background[lane] = None
                self.free -= 1
                self._begin(lane, expected_s)

    def _grant_express(self) -> None:
        """Lets the first lane whose batch is short enough go beside those that run."""
        # Not one that has had more of the device than who runs: that would be more than its share.
        most_s = min(self._virtual_s.get(lane, 0.0) for lane in self._running)
        for lane in sorted(self._asking, key=self._virtual_s.__getitem__):
            if self._virtual_s[lane] < most_s and self._may_express(lane.next_s()):
                expected_s = lane.take_turn()
                if expected_s is not None:
                    self._express = lane
                    self._begin(lane, expected_s)
                    return
                del self._asking[lane]

    def _may_express(self, run_s: float) -> bool:
        shortest_s = min(self._expected_s.values(), default=0.0)
        return self._express is None and run_s <= EXPRESS_SHARE * shortest_s

    def _begin(self, lane: Runner, expected_s: float) -> None:
        self._running[lane] = self._running.get(lane, 0) + 1
        self._expected_s[lane] = expected_s
        self._now_s = max(self._now_s, self._virtual_s[lane])
        self._virtual_s[lane] += expected_s
