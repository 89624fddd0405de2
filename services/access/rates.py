"""Token buckets for the rates of tenants. Pure, except for the callback on spending.

Source: the token bucket of RFC 2697's single rate, without colours. A request larger than the
bucket passes when the bucket is full, and leaves a debt, so that no limit refuses it for ever.
"""

from collections.abc import Callable

BURST_S = 2.0
"""Capacity of a bucket in seconds of its rate, but at least one token: arrivals are bursty."""


class Bucket:
    """A token bucket. Belongs to the event loop.

    Args:
        rate: tokens refilled per second.
        now: current time, in seconds of a monotonic clock.
        spending: called with the bucket at the first use since `take_spent`.

    Attributes:
        rate: tokens refilled per second.
        burst: capacity.
        tokens: tokens left at the last `take`; below 0 is a debt.
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
        """Takes an amount if it is available.

        Returns:
            0 if it was taken; else the seconds until it may be available.
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

    def spend(self, amount: float, now: float) -> float:
        """Takes an amount that was spent elsewhere. Returns the tokens left; below 0 is a debt."""
        self.tokens = min(self.burst, self.tokens + (now - self._at) * self.rate) - amount
        self._at = now
        return self.tokens

    def take_spent(self) -> float:
        """Returns the tokens spent since the last call."""
        spent, self._spent = self._spent, 0.0
        return spent

    def learn(self, shared: float) -> None:
        """Lowers the tokens to those left for all processes, minus those spent here since."""
        self.tokens = min(self.tokens, shared - self._spent)
