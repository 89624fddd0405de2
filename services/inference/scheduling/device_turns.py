"""Schedules the batches of several lanes on one device: fair by measured time, not by count.

In: lanes that ask, and durations of their batches. Out: turns. Pure, except that it calls lanes.

Start-time fair queueing (Goyal, Vin, Cheng 1996): each lane has a virtual time that grows by the
seconds it used; the lane with the smallest runs next; a lane that was idle starts at the current
virtual time, so that it cannot accumulate turns. A lane that is alone is never delayed.

A batch cannot be preempted, so a lane of short batches would wait many times its own run time for a
long one. One batch that is much shorter than those that run may therefore run concurrently; the
operating system shares the device between them, and its time is counted as usual (docs/adr/0007).
"""

import math
from typing import Protocol

from services.inference.scheduling.loop_runs import LoopRuns

LATELY_S = 60.0
"""Background batches are kept short for this long after a request with a tight deadline: a caller
that sent one is likely to send another, and jobs can wait for a minute."""
EXPRESS_SHARE = 0.1
"""Longest run time of an express batch, as a share of the shortest running batch's, which it delays
by as much at most. Measured with three models on one core (docs/adr/0007)."""


class Runner(Protocol):
    """The device's view of a lane."""

    @property
    def waiting(self) -> int:
        """Requests that wait for a batch, without background ones."""

    def next_s(self) -> float:
        """Returns the next batch's expected seconds; infinity if it may not run as express now."""

    def take_turn(self) -> float | None:
        """Starts one batch.

        Returns:
            The expected seconds of its run, or None if there is nothing to run now.
        """

    def take_background_turn(self) -> float | None:
        """Starts one background batch, on an idle device; otherwise as `take_turn`."""

    def frees_at(self) -> float:
        """Returns the expected end of its first running batch; a `time.monotonic()` second."""


class DeviceTurns:
    """The turns of one device.

    Args:
        slots: maximum number of batches that run at once.
    """

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.free = slots
        """Number of free slots."""
        self._asking: dict[Runner, None] = {}
        self._virtual_s: dict[Runner, float] = {}
        self._running: dict[Runner, int] = {}
        self._expected_s: dict[Runner, float] = {}
        """Expected seconds of the last batch that each running lane started."""
        self._express: Runner | None = None
        """Lane whose batch runs outside the slots."""
        self._background: dict[Runner, None] = {}
        """Lanes with background batches, which wait for an idle device."""
        self.tightest_s = math.inf
        """The shortest time to a deadline that any recent request had on arrival."""
        self.tight_until = -math.inf
        """Expiry of `tightest_s`; a `time.monotonic()` second."""
        self._now_s = 0.0
        self.loop_runs = LoopRuns()
        """The runs on the event loop."""

    @property
    def wanted(self) -> bool:
        """True if any lane waits for a turn."""
        return bool(self._asking)

    @property
    def has_backlog(self) -> bool:
        """True if requests of any lane wait for a batch."""
        return any(lane.waiting for lane in self._asking)

    def ask(self, lane: Runner) -> None:
        """Requests turns for a lane; grants one at once if a slot is free and no lane is ahead."""
        if lane not in self._asking:
            self._asking[lane] = None
            self._virtual_s[lane] = max(self._virtual_s.get(lane, 0.0), self._now_s)
        self._grant()

    def done(self, lane: Runner, expected_s: float, took_s: float, *, asks: bool = False) -> None:
        """Frees the slot of a batch that ended, and grants it to the next lane.

        Args:
            lane: the lane of the batch.
            expected_s: the value that `take_turn` returned.
            took_s: duration of the run, or of holding the slot if that is unknown.
            asks: True if the lane asks for another turn.
        """
        if lane is self._express:
            self._express = None
        else:
            self.free += 1
        self._running[lane] -= 1
        if not self._running[lane]:
            del self._running[lane], self._expected_s[lane]
        if lane in self._virtual_s:  # else the lane has left meanwhile
            self._virtual_s[lane] += took_s - expected_s
        if asks and lane not in self._asking:
            self._asking[lane] = None
        self._grant()

    def ask_background(self, lane: Runner) -> None:
        """Requests turns for a lane's background batches, granted while no lane asks for a turn."""
        self._background[lane] = None
        self._virtual_s[lane] = max(self._virtual_s.get(lane, 0.0), self._now_s)
        self._grant()

    def tighten(self, slack_s: float, now: float) -> None:
        """Records a request with a tighter deadline than any recent one.

        Args:
            slack_s: seconds until its deadline.
            now: `time.monotonic()` second.
        """
        self.tightest_s, self.tight_until = slack_s, now + LATELY_S

    def background_s(self, now: float) -> float:
        """Returns the most seconds of a background batch: half of the tightest recent slack.

        The other half is for the run of a similar request that may arrive meanwhile.

        Args:
            now: `time.monotonic()` second.
        """
        if now > self.tight_until:
            self.tightest_s = math.inf
        return self.tightest_s / 2

    def leave(self, lane: Runner) -> None:
        """Removes a lane that asks for no more turns."""
        self._asking.pop(lane, None)
        self._background.pop(lane, None)
        self._virtual_s.pop(lane, None)

    def share_of(self, lane: Runner) -> float:
        """Returns a lane's share of the slots among the lanes that run or wait for a turn now."""
        if not self._asking and self._running.keys() <= {lane}:
            return self.slots
        return self.slots / len(self._asking.keys() | self._running.keys() | {lane})

    def frees_at(self, run_s: float) -> float:
        """Returns the `time.monotonic()` second when a batch of `run_s` may start; 0 for now."""
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
        """Fills idle slots with background batches, one of each lane in turn."""
        while self.free and self._background:
            lane = next(iter(self._background))
            del self._background[lane]
            expected_s = lane.take_background_turn()
            if expected_s is not None:
                self._background[lane] = None
                self.free -= 1
                self._begin(lane, expected_s)

    def _grant_express(self) -> None:
        """Starts the first sufficiently short batch concurrently with those that run."""
        # A lane that used more of the device than the running ones would exceed its fair share.
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
