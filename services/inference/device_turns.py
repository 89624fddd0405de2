"""Who may run next on a device that several lanes share: fair by measured time, not by count.

In: lanes that ask, and how long their batches took. Out: turns. Pure but for calling the lanes.

Start-time fair queueing (Goyal, Vin, Cheng 1996): each lane has a virtual time that grows by the
seconds it used; the one with the least goes next; a lane that was idle starts from the present
virtual time, so that it cannot save up turns. A lane alone is never held back.
"""

from typing import Protocol


class Runner(Protocol):
    """A lane, as the device sees it."""

    def take_turn(self) -> float | None:
        """Starts one batch.

        Returns:
            The seconds it should take, or None when there is nothing to run now.
        """

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
        self._now_s = 0.0

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
            took_s: what it took.
            asks: whether the lane asks for another turn.
        """
        self.free += 1
        self._running[lane] -= 1
        if not self._running[lane]:
            del self._running[lane]
        if lane in self._virtual_s:  # else it left meanwhile
            self._virtual_s[lane] += took_s - expected_s
        if asks and lane not in self._asking:
            self._asking[lane] = None
        self._grant()

    def leave(self, lane: Runner) -> None:
        """Forgets a lane, which asks no more."""
        self._asking.pop(lane, None)
        self._virtual_s.pop(lane, None)

    def share_of(self, lane: Runner) -> float:
        """The slots a lane gets for itself beside the lanes that run or wait for a turn now."""
        if not self._asking and self._running.keys() <= {lane}:
            return self.slots
        return self.slots / len(self._asking.keys() | self._running.keys() | {lane})

    def frees_at(self) -> float:
        """The `time.monotonic()` second at which a slot should be free; 0 when one is."""
        if self.free:
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
            self._running[lane] = self._running.get(lane, 0) + 1
            self._now_s = max(self._now_s, self._virtual_s[lane])
            self._virtual_s[lane] += expected_s
