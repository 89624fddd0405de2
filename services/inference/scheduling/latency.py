"""Estimates the latency of a batch from the batches that ran. Pure: no clock, no I/O.

In: seconds by batch size, first from the version's certificate and its warm-up, then from every
batch. Out: expected seconds of a batch, and the batch size with the highest throughput in rows/s.

A curve is kept at powers of two and interpolated between them. An observation scales its two
neighbours by the ratio of measured to expected time. The ratio is bounded, so that one interrupted
run does not undo what a thousand taught. All other sizes are scaled by nearly as much, because a
machine that becomes faster or slower does so for all sizes. Without this, the size that ran in the
fastest minute stayed the best for ever: no other size ran to show that it was faster now, too.
"""

import itertools
import math
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from operator import itemgetter

LEARNING_RATE = 0.2
"""Share of a run's error that is corrected at once: ten runs correct nine tenths."""
CROSS_SIZE_WEIGHT = 0.9
"""Share of a run's correction that also applies to the other sizes, on a logarithmic scale.

The remainder distinguishes the sizes, and so is learned ten times slower than the machine's speed:
runs differ by 5 %, the throughput of sizes near the best one by 1 to 2 %. Of 0.5, 0.7, 0.9 and
0.95 the largest that still corrects wrong seeds, by the simulated minute of `test_latency.py`.
"""
MAX_OBSERVATION_RATIO = 2.0
"""One observation counts as at most twice, and at least half, of the expected time: one run in
ten is interrupted."""
FIRST_SPREAD = 0.1
"""Relative mean deviation until runs are observed; those of one size differ by half as much."""
SPREADS_OF_CAUTION = 2.0
"""Safety margin between a cautious estimate and the expected time, in mean deviations. Deviations
are rarely larger, and a wider margin would make batches under a deadline smaller."""
MAX_CURVES = 64
"""Shapes of one model that are remembered; the least recently used is forgotten. Padding makes a
few shapes of many; without it, callers choose them."""
DOUBT = 0.9
"""Factor of one decay of an estimate: small, so that few requests run that cannot be in time; a
tenth of the estimate is reached within 22 s (`worker.DOUBT_EVERY_S`)."""
MAX_DOUBTS = 44
"""Most decays in a row that count: together they reduce an estimate to a hundredth."""
PROBE_EVERY = 64
"""Runs from one probe of a size next to the best to the next probe: under 2 % of all runs."""
SURVEY_RUNS = 2
"""Runs of a size that replace a guess: without seeds, the best size of a slow model is found within
some ten batches, and not after hours. The faster one counts: one run in ten is interrupted."""
FAMILIAR = 100
"""Largest ratio of a row's elements to those of the seeds' rows for which the seeds are used.
Beyond it, the overhead of a small row, scaled, made the first large request hopeless."""
HANDLING_S = 1e-4
"""Cost of a batch in the event loop beside its run, for tiny models: a fourth of what it costs
beside a model that evicts the loop's data from the CPU caches (docs/adr/0045)."""
COLD_SHARE = 0.05
"""Additional cost where a run evicts the event loop's data from the CPU caches, as a share of the
run. Served ÷ raw of `make bench`, CNN in INT8: 0.965 with it, 0.955 without (docs/adr/0045)."""
MOST_COLD_S = 4e-4
"""Limit of that cost: beside such a model, the event loop takes 0.44 ms a batch (docs/adr/0045)."""
SHORTEST_S = 1e-9
"""Least seconds of a run: a coarse clock measures 0, and estimates divide by each other."""


class LatencyCurve:
    """Seconds of one run by batch size, for inputs of one shape.

    Args:
        max_rows: the maximum batch size.
        seeds: seconds by batch size; empty if nothing is known yet, and then every expectation
            is 0 until the first observation.
    """

    def __init__(self, max_rows: int, seeds: Mapping[int, float]) -> None:
        sizes = {2**power for power in range(max_rows.bit_length()) if 2**power < max_rows}
        self._sizes: list[int] = sorted(sizes | {max_rows})
        self.begin_anew(seeds)

    def begin_anew(self, seeds: Mapping[int, float]) -> None:
        """Discards every observation and starts from new seeds; see the class."""
        self._seconds: list[float] = []
        self._hand_over_s = 0.0
        """Time of a batch to and from its thread, which grows with what the event loop does."""
        self._spread = FIRST_SPREAD
        self._doubts = [0] * len(self._sizes)
        self._guesses = [SURVEY_RUNS] * len(self._sizes)
        """Runs until the estimate of a size is no guess."""
        self._has_guesses = True
        self.runs = 0
        """Number of runs observed."""
        self._cpu_s = [0.0] * len(self._sizes)
        """CPU time of runs of at most so many rows, and more than the next smaller size; 0 before
        the first."""
        self._probe_at = PROBE_EVERY - 1
        self._probe_step = 1
        self.best_rows = self._sizes[-1]
        """The size with the most rows a second, including the cost of a batch beside its run."""
        self.best_s = 0.0
        """Expected seconds of a batch of `best_rows`."""
        known = sorted((rows, s) for rows, s in seeds.items() if rows > 0 and s > 0)
        if known:
            self._seconds = [_interpolate(known, size) for size in self._sizes]
            self._guesses, self._has_guesses = [0] * len(self._sizes), False
            self._choose_best()

    def expected_s(self, rows: int) -> float:
        """Returns the expected seconds of a batch of `rows` rows; 0 while nothing is known."""
        return self._run_s(rows) + self._hand_over_s if self._seconds else 0.0

    def _run_s(self, rows: int) -> float:
        seconds = self._seconds
        sizes = self._sizes
        right = bisect_left(sizes, rows)
        if right == len(sizes):  # a single request larger than any batch does not exist
            return seconds[-1] * rows / sizes[-1]
        if sizes[right] == rows:
            return seconds[right]
        low, high = sizes[right - 1], sizes[right]
        share = (rows - low) / (high - low)
        return seconds[right - 1] + share * (seconds[right] - seconds[right - 1])

    def cautious_s(self, rows: int) -> float:
        """Returns the seconds within which a batch of `rows` rows finishes nearly always."""
        return self.expected_s(rows) * self._caution

    def longest_s(self) -> float:
        """Returns the seconds within which any batch finishes nearly always.

        This need not be the time of the largest size: estimates of sizes that seldom run get old.
        """
        return (max(self._seconds, default=0.0) + self._hand_over_s) * self._caution

    def rows_within(self, limit_s: float) -> int:
        """Returns the largest size up to the best that nearly always finishes in time, or else 1.

        Args:
            limit_s: seconds that one batch may take.
        """
        caution, hand_over_s = self._caution, self._hand_over_s
        for rows, seconds in zip(reversed(self._sizes), reversed(self._seconds), strict=False):
            if rows <= self.best_rows and (seconds + hand_over_s) * caution <= limit_s:
                return rows
        return 1 if self._seconds else self.best_rows

    def rows_to_run(self, waiting: int) -> int:
        """Returns the best size, or at times a neighbouring one as a probe: machines change.

        A neighbour whose estimate is a guess is probed at once, after the best size itself.

        Args:
            waiting: rows in the queue; a larger size is not probed.
        """
        is_time = self.runs >= self._probe_at
        if not is_time and not self._has_guesses:
            return self.best_rows
        at = bisect_left(self._sizes, self.best_rows)
        for step in (self._probe_step, -self._probe_step):
            beside = at + step
            if not 0 <= beside < len(self._sizes) or self._sizes[beside] > waiting:
                continue
            if is_time:
                self._probe_at, self._probe_step = self.runs + PROBE_EVERY, -step
                return self._sizes[beside]
            if self._guesses[beside] and not self._guesses[at]:
                return self._sizes[beside]
        return self.best_rows

    def observe(self, rows: int, seconds: float, hand_over_s: float = 0.0) -> None:
        """Learns from one run.

        Args:
            rows: rows of the batch, padding included.
            seconds: duration of the run.
            hand_over_s: time of the batch to and from its thread, in addition.
        """
        self.runs += 1
        seconds, known_s = max(seconds, SHORTEST_S), self._hand_over_s
        if self._seconds:
            expected_s = self._run_s(rows)
            together = (seconds + hand_over_s) / (expected_s + known_s)
            self._correct(rows, seconds / expected_s, together)
        else:
            # Half fixed cost, half per row: a guess, soon corrected for the sizes that run.
            expected_s = seconds
            self._seconds = [seconds * (0.5 + 0.5 * size / rows) for size in self._sizes]
            self._survey(self._nearest(rows), 1.0)
        bounded_s = min(hand_over_s, (expected_s + known_s) * MAX_OBSERVATION_RATIO)
        self._hand_over_s = known_s + LEARNING_RATE * (bounded_s - known_s)
        self._choose_best()

    def observe_cpu(self, rows: int, seconds: float) -> None:
        """Learns the CPU time of one run, which other sizes do not teach.

        Args:
            rows: rows of the batch, padding included.
            seconds: of the thread that ran it.
        """
        at = min(bisect_left(self._sizes, rows), len(self._sizes) - 1)
        known_s, seconds = self._cpu_s[at], max(seconds, SHORTEST_S)
        bounded_s = min(seconds, known_s * MAX_OBSERVATION_RATIO)
        self._cpu_s[at] = known_s + LEARNING_RATE * (bounded_s - known_s) if known_s else seconds

    def most_cpu_s(self, rows: int) -> float:
        """Returns the CPU time that a run of `rows` rows takes at most, as far as runs tell.

        It is that of the next larger size that ran, or else the next smaller one's in proportion;
        infinite before the first run.
        """
        sizes, known_s = self._sizes, self._cpu_s
        at = min(bisect_left(sizes, rows), len(sizes) - 1)
        for seconds in known_s[at:]:
            if seconds:
                return seconds
        for below in range(at - 1, -1, -1):
            if known_s[below]:
                return known_s[below] * sizes[at] / sizes[below]
        return math.inf

    def decay_estimate(self, rows: int) -> None:
        """Lowers the estimate of this size by a tenth: refused requests give no observations.

        So an estimate that is wrong, or from a slower machine, is eventually tried again.
        """
        for index, share in self._neighbours(rows) if self._seconds else ():
            if share and self._doubts[index] < MAX_DOUBTS:
                self._doubts[index] += 1
                self._seconds[index] *= DOUBT
                self._hand_over_s *= DOUBT
        if self._seconds:
            self._choose_best()

    @property
    def _caution(self) -> float:
        """Factor between a cautious estimate and the expected time."""
        return 1 + SPREADS_OF_CAUTION * self._spread

    def _correct(self, rows: int, ratio: float, together: float) -> None:
        """Scales all sizes by the ratio of a run's measured to its expected time.

        Args:
            rows: rows of the batch.
            ratio: the ratio of the run.
            together: the ratio of run and hand-over, whose deviations deadlines allow for.
        """
        bounded, together = _bounded(ratio), _bounded(together)
        neighbours = self._neighbours(rows)
        if self._has_guesses and self._guesses[nearest := self._nearest(rows)]:
            self._survey(nearest, ratio)
            return
        for index, share in neighbours:
            if self._doubts[index] and share >= 0.5:
                # A decayed estimate is a guess: correcting it slowly would make many runs late.
                self._doubts[index] = 0
                self._seconds[index] *= ratio
                bounded = together = 1.0
        # Powers of one factor: with sums, noise that cancels out for the size that runs would
        # shift the others a little each time, and there are thousands of runs a second.
        factor = 1 + LEARNING_RATE * (bounded - 1)
        for_all = factor**CROSS_SIZE_WEIGHT
        self._seconds = [seconds * for_all for seconds in self._seconds]
        for index, share in neighbours:
            self._seconds[index] *= factor ** ((1 - CROSS_SIZE_WEIGHT) * share)
        self._spread += LEARNING_RATE * (abs(together - 1) - self._spread)

    def _survey(self, index: int, ratio: float) -> None:
        """Takes a run of a size whose estimate is a guess, as other guesses are with it.

        Args:
            index: the size.
            ratio: measured to expected time of the run.
        """
        is_first = self._guesses[index] == SURVEY_RUNS
        self._guesses[index] -= 1
        self._has_guesses = any(self._guesses)
        if is_first or ratio < 1:
            for other, left in enumerate(self._guesses):
                if other == index or left == SURVEY_RUNS:
                    self._seconds[other] *= ratio

    def _nearest(self, rows: int) -> int:
        """Returns the index of the size nearest to a number of rows."""
        return max(self._neighbours(rows), key=itemgetter(1))[0]

    def _neighbours(self, rows: int) -> tuple[tuple[int, float], ...]:
        """Returns the curve's sizes next to a number of rows, as indices, with their weights."""
        sizes = self._sizes
        right = min(bisect_left(sizes, rows), len(sizes) - 1)
        if sizes[right] <= rows:
            return ((right, 1.0),)
        share = (rows - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return ((right - 1, 1 - share), (right, share))

    def _choose_best(self) -> None:
        pairs = zip(self._sizes, self._seconds, strict=True)
        each_s = HANDLING_S + self._hand_over_s
        rates = [size / (s + each_s + min(COLD_SHARE * s, MOST_COLD_S)) for size, s in pairs]
        best = rates.index(max(rates))
        self.best_rows = self._sizes[best]
        self.best_s = self._seconds[best] + self._hand_over_s


def _bounded(ratio: float) -> float:
    return min(max(ratio, 1 / MAX_OBSERVATION_RATIO), MAX_OBSERVATION_RATIO)


class LatencyModel:
    """The curves of one model version, one for each shape of its rows.

    Args:
        max_rows: the maximum batch size.
        seeds: seconds by batch size for rows of `seed_elements` elements.
        seed_elements: input elements of the rows that the seeds were measured with.
    """

    def __init__(
        self, max_rows: int, seeds: Mapping[int, float] | None = None, seed_elements: int = 1
    ) -> None:
        self._max_rows = max_rows
        self._seeds = dict(seeds or {})
        self._seed_elements = max(seed_elements, 1)
        self._curves: OrderedDict[Hashable, LatencyCurve] = OrderedDict()
        self._elements: dict[Hashable, int] = {}
        """Input elements of a row of each curve."""

    def begin_anew(self, seeds: Mapping[int, float], seed_elements: int) -> None:
        """Discards all observations because another artifact runs from now on; see the class."""
        self._seeds, self._seed_elements = dict(seeds), max(seed_elements, 1)
        for shape, curve in self._curves.items():
            curve.begin_anew(self._seeds_for(self._elements[shape]))

    def curve(self, shape: Hashable, elements: int) -> LatencyCurve:
        """Returns the curve of one shape; a new curve starts from the seeds.

        The cost per row is scaled by the row's elements. The fixed cost of a batch is not, since a
        tiny row's overhead would make a large row infeasible. The seeds are not used for rows more
        than `FAMILIAR` times as large.

        Args:
            shape: key of the shape.
            elements: input elements of one row of that shape.
        """
        curve = self._curves.get(shape)
        if curve is not None:
            self._curves.move_to_end(shape)
        else:
            curve = self._curves[shape] = LatencyCurve(self._max_rows, self._seeds_for(elements))
            self._elements[shape] = elements
            if len(self._curves) > MAX_CURVES:
                oldest, _ = self._curves.popitem(last=False)
                del self._elements[oldest]
        return curve

    def _seeds_for(self, elements: int) -> dict[int, float]:
        """Returns the seeds, scaled to rows of `elements` elements."""
        scale = elements / self._seed_elements
        known = self._seeds if scale <= FAMILIAR else {}
        fixed_s = _fixed_s(known)
        return {rows: fixed_s + (s - fixed_s) * scale for rows, s in known.items()}


def _fixed_s(seeds: Mapping[int, float]) -> float:
    """Returns the fixed cost of a batch in seconds, from the smallest and the largest size."""
    if not seeds:
        return 0.0
    fewest, most = min(seeds), max(seeds)
    if fewest == most:
        return seeds[most] / 2  # a guess: one size does not separate the two costs
    row_s = max((seeds[most] - seeds[fewest]) / (most - fewest), 0.0)
    return max(min(seeds.values()) - row_s * fewest, 0.0)


def _interpolate(known: list[tuple[int, float]], size: int) -> float:
    """Returns the seconds at a size: interpolated, or in proportion beyond the largest seed."""
    for (low, low_s), (high, high_s) in itertools.pairwise(known):
        if low <= size <= high:
            return low_s + (size - low) / (high - low) * (high_s - low_s)
    nearest, seconds = known[0] if size < known[0][0] else known[-1]
    return seconds if size <= nearest else seconds * size / nearest
