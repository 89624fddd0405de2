"""Rate limiters, and the shares of tenants on one server."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from services.access import tenants as tenants_of_a_process
from services.access.rates import Bucket
from services.access.tenants import Tenant, Tenants
from services.errors import OverShareError, RateLimitedError
from services.telemetry.access_metrics import AccessMetrics


@given(
    st.floats(0.5, 1000),
    st.lists(st.tuples(st.floats(0, 3), st.floats(0.1, 50)), max_size=60),
)
def test_over_time_the_rate_holds(rate: float, asked: list[tuple[float, float]]) -> None:
    bucket = Bucket(rate, now=0.0)
    now, taken, largest = 0.0, 0.0, 0.0
    for pause, amount in asked:
        now += pause
        wait_s = bucket.take(amount, now)
        if wait_s:
            assert bucket.take(amount, now + wait_s * 0.99) > 0, "not before it says"
            now += wait_s * 0.99
        else:
            taken, largest = taken + amount, max(largest, amount)
    assert taken <= bucket.burst + rate * now + largest + 1e-6


def test_what_is_larger_than_the_bucket_passes_once_and_leaves_a_debt() -> None:
    bucket = Bucket(10, now=0.0)
    assert bucket.take(1000, 0.0) == 0
    assert bucket.take(1, 0.0) == pytest.approx(98.1)
    assert bucket.take(1, 98.2) == 0


def refusals(registry: CollectorRegistry) -> float | None:
    return registry.get_sample_value("flambeau_access_refusals_total", {"reason": "rate_limited"})


def test_who_asks_for_too_much_is_told_when_to_come_again() -> None:
    registry = CollectorRegistry()
    tenant = Tenants(AccessMetrics(registry)).find("key:ci", 1, 4)
    tenant.take_request()
    tenant.take_request()
    with pytest.raises(RateLimitedError, match="1 requests a second") as refused:
        tenant.take_request()
    assert 0.9 < refused.value.wait_s <= 1
    tenant.take_rows(8)
    with pytest.raises(RateLimitedError, match="4 rows a second"):
        tenant.take_rows(1)
    assert refusals(registry) == 2


def test_limits_that_did_not_change_keep_what_is_left() -> None:
    tenants = Tenants(AccessMetrics(CollectorRegistry()))
    tenant = tenants.find("a", 1, 0)
    tenant.take_request()
    tenant.take_request()
    assert tenants.find("a", 1, 0) is tenant
    with pytest.raises(RateLimitedError):
        tenant.take_request()
    tenants.find("a", 50, 0)
    tenant.take_request()


def test_a_request_and_its_rows_are_taken_at_once() -> None:
    registry = CollectorRegistry()
    tenant = Tenants(AccessMetrics(registry)).find("key:ci", 2, 10)
    now = time.monotonic()
    tenant.take(20, now)  # all the rows there are
    with pytest.raises(RateLimitedError, match="10 rows a second, and this request has 1;"):
        tenant.take(1, now)
    tenant.take(0, now)
    tenant.take(0, now)
    with pytest.raises(RateLimitedError, match="2 requests a second"):
        tenant.take(0, now)
    assert refusals(registry) == 2


def enter(tenant: Tenant) -> None:
    if not tenant.in_flight:
        tenant.activate()
    tenant.in_flight += 1


def test_a_tenant_alone_may_fill_the_server_and_shares_it_with_others() -> None:
    tenants = Tenants(AccessMetrics(CollectorRegistry()))
    greedy, modest = tenants.find("greedy", 0, 0), tenants.find("modest", 0, 0)
    for _ in range(10):
        greedy.check_share(10)
        enter(greedy)
    modest.check_share(10)
    enter(modest)
    with pytest.raises(OverShareError, match="2 callers share"):
        greedy.check_share(10)
    modest.in_flight = 0
    modest.rest()
    greedy.check_share(10)


@pytest.mark.parametrize(
    ("active", "forgotten"),
    [((), "first"), (("first",), "second"), (("first", "second"), "third")],
)
def test_beyond_the_limit_the_oldest_tenant_without_requests_in_flight_is_forgotten(
    monkeypatch: pytest.MonkeyPatch, active: tuple[str, ...], forgotten: str
) -> None:
    monkeypatch.setattr(tenants_of_a_process, "MAX_TENANTS", 2)
    tenants = Tenants(AccessMetrics(CollectorRegistry()))
    known = {}
    for name in ("first", "second", "third"):
        known[name] = tenants.find(name, 1, 0)
        if name in active:
            enter(known[name])
    kept = [name for name in known if name != forgotten]
    for name in [*kept, forgotten]:  # looking for the forgotten one changes which are known
        assert (tenants.find(name, 1, 0) is known[name]) is (name in kept)
