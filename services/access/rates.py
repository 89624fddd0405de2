"""How much a tenant may ask for: token buckets. Pure but for who is told of what was spent.

Source: the token bucket of RFC 2697's single rate, without colours. A request that is larger than
the bucket passes when the bucket is full, and leaves a debt; so that no limit refuses it for ever.
"""

from collections.abc import Callable

BURST_S = 2.0
"""Seconds of its rate that a bucket holds, and never less than one request: callers are uneven."""


class Bucket:
    """What is left of a rate. Belongs to the event loop.

    Args:
        rate: that comes back a second.
        now: the time, in seconds of a clock that does not jump.
        spending: called with the bucket at the first use since `take_spent`.

    Attributes:
        rate: as given.
        burst: the most it holds.
        tokens: what was left at `at`; below 0 is a debt.
    """

    __slots__ = ("_at", "_spending", "_spent", "burst", "rate", "tokens")

    def __init__(
        self, rate: float, now: float, spending: "Callable[[Bucket], None] | None" = None
    ) -> None:
        self.rate = rate
        self.burst = max(1.0, rate * BURST_S)
        self.tokens = self.burst
        self._at = now
        self._spending = spending
        self._spent = 0.0

    def take(self, amount: float, now: float) -> float:
        """Takes an amount if it is there.

        Returns:
            0 if it was taken; else the seconds until it may be there.
        """
        tokens, burst = self.tokens + (now - self._at) * self.rate, self.burst
        if tokens > burst:
            tokens = burst
        self._at = now
        if tokens < amount and tokens < burst:
            self.tokens = tokens
            return (min(amount, burst) - tokens) / self.rate
        self.tokens = tokens - amount
        if self._spending is not None:
            if not self._spent:
                self._spending(self)
            self._spent += amount
        return 0.0

    def take_spent(self) -> float:
        """What was spent since the last call of this."""
        spent, self._spent = self._spent, 0.0
        return spent

    def learn(self, shared: float) -> None:
        """Takes over what is left for all: less what was spent here since that was asked."""
        self.tokens = min(self.tokens, shared - self._spent)
