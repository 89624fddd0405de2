"""Tenants of a server: the rate of each, and its fair share of the requests in flight.

In: a tenant's name and limits. Out: permits, or the error that refuses one. A tenant is a key, or
a subject of the identity provider, however many tokens it has.

Rules:
- limits are per tenant, and keep their state if a reload of the keys does not change them;
- a single tenant may fill the server; if others have requests in flight and it is half full, none
  gets more than an equal share, so that the tenant with excessive load is refused first.

All of it belongs to the event loop.
"""

import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from services.access.rates import Bucket
from services.errors import OverShareError, RateLimitedError
from services.telemetry.access_metrics import AccessMetrics

if TYPE_CHECKING:
    from services.access.link_rates import LinkRates
    from services.access.shared_rates import SharedRates

MAX_TENANTS = 10_000
"""Limit beyond which the oldest tenants without requests in flight are forgotten."""


class Tenant:
    """One tenant of the server; made by `Tenants`.

    Attributes:
        name: name in logs.
        in_flight: number of its unanswered requests.
    """

    __slots__ = ("_requests", "_rows", "_tenants", "in_flight", "name")

    def __init__(self, name: str, tenants: "Tenants") -> None:
        self.name = name
        self.in_flight = 0
        self._tenants = tenants
        self._requests: Bucket | None = None
        self._rows: Bucket | None = None

    def set_limits(self, requests_per_s: float, rows_per_s: float) -> None:
        """Sets the limits, 0 for none; the buckets of unchanged limits keep their state."""
        open_bucket = self._tenants.open_bucket
        if requests_per_s != (self._requests.rate if self._requests else 0):
            self._requests = open_bucket(f"{self.name} requests", requests_per_s)
        if rows_per_s != (self._rows.rate if self._rows else 0):
            self._rows = open_bucket(f"{self.name} rows", rows_per_s)

    def take(self, rows: int, now: float) -> None:
        """Counts a request and its rows against the rates: in one call, as this is the hot path.

        Args:
            rows: number of rows; 0 for a request without rows, or one that is refused anyway.
            now: current `time.monotonic()`, in seconds.

        Raises:
            RateLimitedError: the request or its rows exceed a rate.
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
        """Counts a request without rows.

        Raises:
            RateLimitedError: it exceeds the rate.
        """
        self.take(0, time.monotonic())

    def take_rows(self, rows: int) -> None:
        """Counts the rows of a request that is already counted.

        Raises:
            RateLimitedError: they exceed the rate.
        """
        bucket = self._rows
        if bucket is not None and (wait_s := bucket.take(rows, time.monotonic())):
            raise self._too_many(rows, bucket, wait_s)

    def check_share(self, room: int) -> None:
        """Refuses a request of a tenant at its fair share if other tenants are active.

        Called only if the server is at least half full.

        Args:
            room: limit of the requests in flight.

        Raises:
            OverShareError: the tenant has its share in flight already.
        """
        active = self._tenants.active + (not self.in_flight)
        if active > 1 and self.in_flight * active >= room:
            raise OverShareError(
                f"{self.in_flight} of your requests are in flight, your share of {room} while "
                f"{active} callers share this server; retry later"
            )

    def activate(self) -> None:
        """Marks the tenant active before its first request; the caller updates `in_flight`."""
        self._tenants.active += 1

    def rest(self) -> None:
        """Marks the tenant inactive after its last request in flight."""
        self._tenants.active -= 1

    def _too_many(self, rows: int, bucket: Bucket, wait_s: float) -> RateLimitedError:
        self._tenants.count_refusal()
        return RateLimitedError(
            f"you may send {bucket.rate:g} rows a second, and this request has {rows}; "
            f"wait {wait_s:.3g} s",
            wait_s,
        )


class Tenants:
    """All tenants of a process.

    Args:
        metrics: counts refusals by rates.
        shared: exchange of spent tokens between processes; None in a single process.

    Attributes:
        active: tenants with requests in flight.
    """

    def __init__(
        self, metrics: AccessMetrics, shared: "SharedRates | LinkRates | None" = None
    ) -> None:
        self.active = 0
        self.count_refusal = metrics.refused.labels("rate_limited").inc
        self._shared = shared
        self._by_name: OrderedDict[str, Tenant] = OrderedDict()

    def find(self, name: str, requests_per_s: float, rows_per_s: float) -> Tenant:
        """Returns the tenant of a name, with these limits; 0 for no limit."""
        tenant = self._by_name.get(name)
        if tenant is None:
            tenant = self._by_name[name] = Tenant(name, self)
            if len(self._by_name) > MAX_TENANTS:
                self._forget_one()
        tenant.set_limits(requests_per_s, rows_per_s)
        return tenant

    def open_bucket(self, name: str, rate: float) -> Bucket | None:
        """Returns a bucket, shared if rates are shared; None for no limit."""
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
