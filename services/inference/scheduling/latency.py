"""How long a batch takes, learned from the batches that ran. Pure: no clock, no I/O.

In: seconds by batch size, first from the version's certificate and its warm-up, then from every
batch. Out: expected seconds of a batch, and the size at which the most rows a second come out.

A curve is kept at powers of two and interpolated between. An observation scales its two
neighbours by how far it lay from the expectation, bounded, so that one interrupted run does not
unteach what a thousand taught; and all others by nearly as much, for a machine that has become
faster or slower is that for all sizes. Without this, whichever size ran in the fastest minute
looked best ever after: no other one ran any more to show that it, too, was faster now.
"""

import itertools
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Hashable, Mapping

LEARNING_RATE = 0.2
CROSS_SIZE_WEIGHT = 0.9
"""How much of what a run teaches its own size counts for the others, on a logarithmic scale.

What is left tells the sizes apart, and so is learned ten times slower than the machine's speed:
runs differ by a twentieth, sizes near the best one by a hundredth or two.
"""
MAX_OBSERVATION_RATIO = 2.0
"""One observation counts as at most twice, and at least half, of what was expected."""
FIRST_SPREAD = 0.1
SPREADS_OF_CAUTION = 2.0
"""How many mean deviations a promise is kept clear of its deadline."""
MAX_CURVES = 64
DOUBT = 0.9
MAX_DOUBTS = 44
"""Doubts in a row that still count: together they come to a hundredth of what was learned."""
PROBE_EVERY = 64
"""Runs from one try of a size beside the best to the next."""
FAMILIAR = 100
HANDLING_S = 1e-4
"""What a batch costs beside its run, in the event loop, where models are tiny."""
COLD_SHARE = 0.05
MOST_COLD_S = 4e-4
"""And more where a run pushes what the loop needs out of the caches: that share of the run, up to
so many seconds (docs/adr/0035)."""
SHORTEST_S = 1e-9


class LatencyCurve:
    """Seconds of one run by batch size, for inputs of one shape.

    Args:
        max_rows: the largest batch there can be.
        seeds: seconds by batch size; empty when nothing is known yet, and then every expectation
            is 0 until the first observation.
    """

    def __init__(self, max_rows: int, seeds: Mapping[int, float]) -> None:
        sizes = {2**power for power in range(max_rows.bit_length()) if 2**power < max_rows}
        self._sizes: list[int] = sorted(sizes | {max_rows})
        self.begin_anew(seeds)

    def begin_anew(self, seeds: Mapping[int, float]) -> None:
        """Forgets every run, for other ones come now; see the class."""
        self._seconds: list[float] = []
        self._spread = FIRST_SPREAD
        self._doubts = [0] * len(self._sizes)
        self.runs = 0
        """Runs learned from."""
        self._probe_at = PROBE_EVERY - 1
        self._probe_step = 1
        self.best_rows = self._sizes[-1]
        """The size with the most rows a second, with what a batch costs beside its run."""
        self.best_s = 0.0
        """Expected seconds of a batch of `best_rows`."""
        known = sorted((rows, s) for rows, s in seeds.items() if rows > 0 and s > 0)
        if known:
            self._seconds = [_interpolate(known, size) for size in self._sizes]
            self._choose_best()

    def expected_s(self, rows: int) -> float:
        """Seconds that a batch of so many rows should take; 0 while nothing is known."""
        seconds = self._seconds
        if not seconds:
            return 0.0
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
        """Seconds within which a batch of so many rows finishes nearly always."""
        return self.expected_s(rows) * self._caution

    def longest_s(self) -> float:
        """Seconds within which any batch finishes nearly always.

        Not always those of the largest: what was learned of sizes that seldom run may be old.
        """
        return max(self._seconds, default=0.0) * self._caution

    def rows_within(self, limit_s: float) -> int:
        """The largest size up to the best that nearly always finishes in so long; 1 if none does.

        Args:
            limit_s: seconds one batch may take.
        """
        caution = self._caution
        for rows, seconds in zip(reversed(self._sizes), reversed(self._seconds), strict=False):
            if rows <= self.best_rows and seconds * caution <= limit_s:
                return rows
        return 1 if self._seconds else self.best_rows

    def rows_to_run(self, waiting: int) -> int:
        """The best size; now and then, where as much waits, one beside it: machines change.

        Args:
            waiting: rows there are.
        """
        if self.runs < self._probe_at:
            return self.best_rows
        at = bisect_left(self._sizes, self.best_rows)
        for step in (self._probe_step, -self._probe_step):
            beside = at + step
            if 0 <= beside < len(self._sizes) and self._sizes[beside] <= waiting:
                self._probe_at, self._probe_step = self.runs + PROBE_EVERY, -step
                return self._sizes[beside]
        return self.best_rows

    def observe(self, rows: int, seconds: float) -> None:
        """Learns from one run.

        Args:
            rows: of the batch, padding included.
            seconds: what it took.
        """
        self.runs += 1
        seconds = max(seconds, SHORTEST_S)
        if self._seconds:
            self._correct(rows, seconds / self.expected_s(rows))
        else:
            # Half fixed cost, half by the row: wrong, and soon corrected where it matters.
            self._seconds = [seconds * (0.5 + 0.5 * size / rows) for size in self._sizes]
        self._choose_best()

    def decay_estimate(self, rows: int) -> None:
        """Expects a tenth less of batches about as large, which are refused and so teach nothing.

        What was learned wrongly, or from a slower machine, is so tried again some day.
        """
        for index, share in self._neighbours(rows) if self._seconds else ():
            if share and self._doubts[index] < MAX_DOUBTS:
                self._doubts[index] += 1
                self._seconds[index] *= DOUBT
        if self._seconds:
            self._choose_best()

    @property
    def _caution(self) -> float:
        """By how much a promise is longer than what is expected."""
        return 1 + SPREADS_OF_CAUTION * self._spread

    def _correct(self, rows: int, ratio: float) -> None:
        """Scales all sizes by what a run took, as a multiple of what was expected."""
        bounded = min(max(ratio, 1 / MAX_OBSERVATION_RATIO), MAX_OBSERVATION_RATIO)
        shares = dict(self._neighbours(rows))
        for index, share in shares.items():
            if self._doubts[index] and share >= 0.5:
                # A guess is not worth a slow change; with one, many a run would come late.
                self._doubts[index] = 0
                self._seconds[index] *= ratio
                bounded = 1.0
        # Powers of one factor: with sums, noise that leaves the size that runs where it is would
        # move the others a little each time, and there are thousands of runs a second.
        factor = 1 + LEARNING_RATE * (bounded - 1)
        for index in range(len(self._seconds)):
            share = CROSS_SIZE_WEIGHT + (1 - CROSS_SIZE_WEIGHT) * shares.get(index, 0.0)
            self._seconds[index] *= factor**share
        self._spread += LEARNING_RATE * (abs(bounded - 1) - self._spread)

    def _neighbours(self, rows: int) -> tuple[tuple[int, float], ...]:
        """The sizes of the curve beside a number of rows, as indices, and each one's share."""
        sizes = self._sizes
        right = min(bisect_left(sizes, rows), len(sizes) - 1)
        if sizes[right] <= rows:
            return ((right, 1.0),)
        share = (rows - sizes[right - 1]) / (sizes[right] - sizes[right - 1])
        return ((right - 1, 1 - share), (right, share))

    def _choose_best(self) -> None:
        pairs = zip(self._sizes, self._seconds, strict=True)
        rates = [size / (s + HANDLING_S + min(COLD_SHARE * s, MOST_COLD_S)) for size, s in pairs]
        best = rates.index(max(rates))
        self.best_rows, self.best_s = self._sizes[best], self._seconds[best]


class LatencyModel:
    """The curves of one version, one for each shape its rows come in.

    Args:
        max_rows: the largest batch there can be.
        seeds: seconds by batch size for rows of `seed_elements` elements.
        seed_elements: input elements of the rows the seeds were measured with.
    """

    def __init__(
        self, max_rows: int, seeds: Mapping[int, float] | None = None, seed_elements: int = 1
    ) -> None:
        self._max_rows = max_rows
        self._seeds = dict(seeds or {})
        self._seed_elements = max(seed_elements, 1)
        self._curves: OrderedDict[Hashable, LatencyCurve] = OrderedDict()
        self._elements: dict[Hashable, int] = {}
        """Of a row of each curve."""

    def begin_anew(self, seeds: Mapping[int, float], seed_elements: int) -> None:
        """Forgets what was learned: another artifact runs from now on; see the class."""
        self._seeds, self._seed_elements = dict(seeds), max(seed_elements, 1)
        for shape, curve in self._curves.items():
            curve.begin_anew(self._seeds_for(self._elements[shape]))

    def curve(self, shape: Hashable, elements: int) -> LatencyCurve:
        """The curve of one shape; a new one starts from the seeds.

        Of these, what each row adds is scaled by its elements, and what every batch costs is not:
        or a tiny row's overhead would make a large one hopeless. Of rows more than `FAMILIAR` times
        as large the seeds say nothing.

        Args:
            shape: what tells shapes apart.
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
        """The seeds, scaled to rows of so many elements."""
        scale = elements / self._seed_elements
        known = self._seeds if scale <= FAMILIAR else {}
        fixed_s = _fixed_s(known)
        return {rows: fixed_s + (s - fixed_s) * scale for rows, s in known.items()}


def _fixed_s(seeds: Mapping[int, float]) -> float:
    """Of the seconds by batch size, those that no row adds; by the smallest and the largest."""
    if not seeds:
        return 0.0
    fewest, most = min(seeds), max(seeds)
    if fewest == most:
        return seeds[most] / 2  # nobody knows
    row_s = max((seeds[most] - seeds[fewest]) / (most - fewest), 0.0)
    return max(min(seeds.values()) - row_s * fewest, 0.0)


def _interpolate(known: list[tuple[int, float]], size: int) -> float:
    """Seconds at a size: between its neighbours, or in proportion beyond the known ones."""
    for (low, low_s), (high, high_s) in itertools.pairwise(known):
        if low <= size <= high:
            return low_s + (size - low) / (high - low) * (high_s - low_s)
    nearest, seconds = known[0] if size < known[0][0] else known[-1]
    return seconds if size <= nearest else seconds * size / nearest
