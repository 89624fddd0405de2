"""The metrics of the training service."""

import platform
from typing import ClassVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from services.telemetry.access_metrics import AccessMetrics
from services.telemetry.loop_metrics import CounterChild, LoopCounter
from services.telemetry.metrics import TlsMetrics
from services.trainer.records import OVER, STATES, State

ATTEMPT_SECONDS = (1, 10, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 72 * 3600)


class ClosedConnections(LoopCounter):
    """Counter of connections that limits ended; counts the other refusals of the port nowhere."""

    REASONS: ClassVar = {
        "ReceiveTimeoutError": "slow",
        "UnreadAnswersError": "slow",
        "TooManyConnectionsError": "full",
    }

    def labels(self, *values: str) -> CounterChild:
        """Returns the counter of an error's reason."""
        reason = self.REASONS.get(values[0])
        return super().labels(reason) if reason else CounterChild()


class TrainerMetrics:
    """All metrics at `/metrics`.

    Args:
        version: version of flambeau.
    """

    def __init__(self, version: str) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)
        Info("flambeau_build", "Versions of flambeau and Python.", registry=registry).info(
            {"version": version, "python": platform.python_version()}
        )
        self._jobs = Gauge(
            "flambeau_training_jobs", "Jobs of all workers, by state.", ["state"], registry=registry
        )
        self.running = Gauge(
            "flambeau_training_running_jobs", "Jobs running on this worker.", registry=registry
        )
        self.finished = Counter(
            "flambeau_training_finished_jobs_total",
            "Jobs that finished on this worker, by state.",
            ["state"],
            registry=registry,
        )
        self.takeovers = Counter(
            "flambeau_training_takeovers_total",
            "Jobs taken over by this worker because their own worker had died.",
            registry=registry,
        )
        self.attempt_seconds = Histogram(
            "flambeau_training_attempt_duration_seconds",
            "Seconds of one attempt on this worker, whatever its outcome.",
            buckets=ATTEMPT_SECONDS,
            registry=registry,
        )
        self.refusals = ClosedConnections(
            "flambeau_training_closed_connections",
            "REST connections closed by a limit, by reason: slow (a peer took too long to send or "
            "to read) or full (max_connections was reached).",
            ("reason",),
            registry=registry,
        )
        self.tls = TlsMetrics(registry)
        self.access = AccessMetrics(registry)
        for state in STATES:
            self._jobs.labels(state)
        for state in OVER:
            self.finished.labels(state)
        for error in ClosedConnections.REASONS:
            self.refusals.labels(error)

    def set_jobs(self, counts: dict[State, int]) -> None:
        """Sets the number of jobs in each state."""
        for state, count in counts.items():
            self._jobs.labels(state).set(count)
