"""Those who share a server: how much each may ask for, and its fair part of what is in flight.

In: a tenant's name and limits. Out: permits, or the error that refuses one. A tenant is a key, or
a subject of the identity provider, however many tokens it has.

Rules kept here:
- limits are by tenant, and survive the reload of a file of keys that does not change them;
- a tenant alone may fill the server; when others have requests in flight and it is half full, none
  holds more than its equal part, so that the one that asks for too much is refused first.

All of it belongs to the event loop.
"""

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from services.access.rates import Bucket
from services.errors import OverShareError, RateLimitedError
from services.telemetry.access_metrics import AccessMetrics

if TYPE_CHECKING:
    from services.access.shared_rates import SharedRates

MAX_TENANTS = 10_000
"""Beyond it those that came first, and have nothing in flight, are forgotten."""


class Tenant:
    """One who shares the server; made by `Tenants`.

    Attributes:
        name: as in logs.
        in_flight: its requests without an answer.
    """

    __slots__ = ("_requests", "_rows", "_tenants", "in_flight", "name")

    def __init__(self, name: str, tenants: "Tenants") -> None:
        self.name = name
        self.in_flight = 0
        self._tenants = tenants
        self._requests: Bucket | None = None
        self._rows: Bucket | None = None

    def set_limits(self, requests_per_s: float, rows_per_s: float) -> None:
        """Limits that did not change keep what is left of them; 0 is none."""
        open_bucket = self._tenants.open_bucket
        if requests_per_s != (self._requests.rate if self._requests else 0):
            self._requests = open_bucket(f"{self.name} requests", requests_per_s)
        if rows_per_s != (self._rows.rate if self._rows else 0):
            self._rows = open_bucket(f"{self.name} rows", rows_per_s)

    def take(self, rows: int, now: float) -> None:
        """Counts a request and its rows against the rates: both in one, for most come this way.

        Args:
            rows: 0 for a request that has none, or is refused anyway.
            now: `time.monotonic()` second.

        Raises:
            RateLimitedError: it is one too many, or they are.
        """
        bucket = self._requests
        if bucket is not None and (wait_s := bucket.take(1, now)):
            self._tenants.count_refusal()
            raise RateLimitedError(
                f"you may send {bucket.rate:g} requests a second; wait {wait_s:.3g} s", wait_s
            )
        bucket = self._rows
        if bucket is not None and rows and (wait_s := bucket.take(rows, now)):
            raise self._too_many(rows, bucket, wait_s)

    def take_request(self) -> None:
        """Counts a request that has no rows.

        Raises:
            RateLimitedError: it is one too many.
        """
        self.take(0, time.monotonic())

    def take_rows(self, rows: int) -> None:
        """Counts the rows of a request that has been counted.

        Raises:
            RateLimitedError: they are too many.
        """
        bucket = self._rows
        if bucket is not None and (wait_s := bucket.take(rows, time.monotonic())):
            raise self._too_many(rows, bucket, wait_s)

    def check_share(self, room: int) -> None:
        """Refuses a request of a tenant that holds its part already, where others wait.

        To be asked once the server is half full.

        Args:
            room: how many may be in flight.

        Raises:
            OverShareError: it does.
        """
        active = self._tenants.active + (not self.in_flight)
        if active > 1 and self.in_flight * active >= room:
            raise OverShareError(
                f"{self.in_flight} of your requests are in flight, your part of {room} while "
                f"{active} callers share this server; retry later"
            )

    def activate(self) -> None:
        """The first is about to be in flight; who lets requests in counts them itself."""
        self._tenants.active += 1

    def rest(self) -> None:
        """None is in flight any more."""
        self._tenants.active -= 1

    def _too_many(self, rows: int, bucket: Bucket, wait_s: float) -> RateLimitedError:
        self._tenants.count_refusal()
        return RateLimitedError(
            f"you may send {bucket.rate:g} rows a second, and this request has {rows}; "
            f"wait {wait_s:.3g} s",
            wait_s,
        )


class Tenants:
    """All of a process.

    Args:
        metrics: counts what rates refuse.
        shared: where gateways tell each other what was spent; None in one process.

    Attributes:
        active: tenants with requests in flight.
    """

    def __init__(self, metrics: AccessMetrics, shared: "SharedRates | None" = None) -> None:
        self.active = 0
        self.count_refusal = metrics.refused.labels("rate_limited").inc
        self._shared = shared
        self._by_name: OrderedDict[str, Tenant] = OrderedDict()

    def find(self, name: str, requests_per_s: float, rows_per_s: float) -> Tenant:
        """The tenant of this name, with these limits; 0 is none."""
        tenant = self._by_name.get(name)
        if tenant is None:
            tenant = self._by_name[name] = Tenant(name, self)
            if len(self._by_name) > MAX_TENANTS:
                self._forget_one()
        tenant.set_limits(requests_per_s, rows_per_s)
        return tenant

    def open_bucket(self, name: str, rate: float) -> Bucket | None:
        """A bucket, shared if rates are; None for no limit."""
        if not rate:
            return None
        if self._shared is None:
            return Bucket(rate, time.monotonic())
        return self._shared.open_bucket(name, rate)

    def _forget_one(self) -> None:
        for name, tenant in self._by_name.items():
            if not tenant.in_flight:
                del self._by_name[name]
                return
