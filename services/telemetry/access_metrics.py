"""Metrics of authentication: refused calls, and the state of the sources of credentials."""

from prometheus_client import CollectorRegistry, Counter, Gauge

REASONS = ("unauthenticated", "forbidden", "rate_limited", "unavailable")
SOURCES = ("api_keys", "jwt_keys")


class AccessMetrics:
    """Metrics of access control; updated from several threads, so the library's own counters.

    Args:
        registry: registry of the process.
    """

    def __init__(self, registry: CollectorRegistry) -> None:
        self.refused = Counter(
            "flambeau_access_refusals_total",
            "Calls refused by access control: unauthenticated (no credential, or an unknown one), "
            "forbidden (a model or a scope not granted), rate_limited (too many requests or "
            "rows), unavailable (the keys that verify a token were not available).",
            ["reason"],
            registry=registry,
        )
        self.reloads = Counter(
            "flambeau_access_reloads_total",
            "Reloads of a changed source of credentials, by source and outcome; after a failure "
            "the previous credentials stay in force.",
            ["source", "outcome"],
            registry=registry,
        )
        self.stale = Gauge(
            "flambeau_access_source_stale",
            "1 if the last reload of a source of credentials failed, else 0.",
            ["source"],
            registry=registry,
        )
        for reason in REASONS:
            self.refused.labels(reason)
        for source in SOURCES:
            self.stale.labels(source)
            for outcome in ("ok", "failed"):
                self.reloads.labels(source, outcome)

    def read(self, source: str, succeeded: bool) -> None:
        """Counts a read of a source."""
        self.reloads.labels(source, "ok" if succeeded else "failed").inc()
        self.stale.labels(source).set(not succeeded)
