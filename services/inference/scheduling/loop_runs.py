"""Decides which batches run on the event loop itself, not in the thread of their instance.

In: batches about to run, and reports of those that ran. Out: the choice for each batch.

A hand-over to a thread and back wakes two threads, which then compete for the interpreter lock:
for a tiny model that costs more than the run. A long run on the loop would delay every caller.

Rules: only backends whose time depends on shapes alone (`Backend.fits_loop`); only if the CPU time
of this shape and size, as measured or scaled up from sizes that ran (`LatencyCurve.most_cpu_s`), is
shorter than what a hand-over costs here, as learned, within `LEAST_BOUND_S` and `MOST_BOUND_S`; at
most `MOST_BOOKED_S` in one turn of the loop; and after a run that took `STALL_S` of CPU time, none
of that lane for `STALL_PAUSE_S` (docs/adr/0057).
"""

from services.inference.scheduling.batch_rules import Batch
from services.inference.scheduling.instance import BatchReport

LEAST_BOUND_S = 100e-6
"""A hand-over costs at least this where more than one thread runs."""
MOST_BOUND_S = 300e-6
"""Longest run on the loop: three of them and a turn's requests fit in the millisecond within which
the loop must look again."""
MOST_BOOKED_S = 500e-6
"""Expected seconds of all runs of one turn: each lane may have a batch in it."""
STALL_S = 1e-3
"""CPU time of a run on the loop that is not what was expected: the values of the inputs (subnormal
numbers, for one) make the model slow. Time in which the machine ran others does not count."""
STALL_PAUSE_S = 1.0
"""Pause after it: a client that causes one stall causes one in this time."""
LEARNING_RATE = 0.05
"""Of a hand-over's cost: it varies from batch to batch, and the bound need not."""


class LoopRuns:
    """The runs of all lanes on one event loop.

    Attributes:
        bound_s: longest expected run that goes on the loop.
        booked_s: expected seconds of the runs of this turn.
    """

    def __init__(self) -> None:
        self.booked_s = 0.0
        self._hand_over_s = (LEAST_BOUND_S + MOST_BOUND_S) / 2
        self.bound_s = self._hand_over_s

    def observe(self, hand_over_s: float) -> None:
        """Learns from a batch that ran in a thread.

        Args:
            hand_over_s: its time without the CPU time of its run.
        """
        seconds = min(hand_over_s, 2 * MOST_BOUND_S)  # a batch may have waited for a core
        self._hand_over_s += LEARNING_RATE * (seconds - self._hand_over_s)
        self.bound_s = min(max(self._hand_over_s, LEAST_BOUND_S), MOST_BOUND_S)


class LaneLoopRuns:
    """The choice for the batches of one lane.

    Args:
        shared: runs of all lanes of the loop.
    """

    def __init__(self, shared: LoopRuns) -> None:
        self._shared = shared
        self.fits = False
        """True if the backends of the lane fit the loop."""
        self._not_before = 0.0
        self._booked_s = 0.0

    def takes(self, batch: Batch, now: float) -> bool:
        """Returns True if the batch is to run on the loop, and books its time."""
        if not self.fits or now < self._not_before:
            return False
        shared = self._shared
        run_s = batch.curve.most_cpu_s(batch.padded_rows)
        if run_s > shared.bound_s or shared.booked_s + run_s > MOST_BOOKED_S:
            return False
        self._booked_s += run_s
        shared.booked_s += run_s
        return True

    def ran(self, batch: Batch, report: BatchReport, took_s: float, now: float) -> None:
        """Learns from a batch.

        Args:
            batch: what ran.
            report: of the batch.
            took_s: its time with the hand-over.
            now: `time.monotonic()` second.
        """
        # The next turn has begun: what ran in the last one is over, or failed and went on in a
        # thread.
        self._shared.booked_s -= self._booked_s
        self._booked_s = 0.0
        if report.on_loop:
            if report.cpu_s >= STALL_S:
                self._not_before = now + STALL_PAUSE_S
        elif self.fits:
            self._shared.observe(took_s - report.cpu_s)
        if report.together:
            batch.curve.observe_cpu(batch.padded_rows, report.cpu_s)
