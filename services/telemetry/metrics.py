"""All metrics, with Prometheus names: base units, `_total` for counters.

Labels are few: model, version, protocol, code. A label never contains a request id or a name that a
caller chose: a request for an unknown model counts under the model `unknown`.
"""

import contextlib
import math
import platform

from prometheus_client import CollectorRegistry, Counter, Gauge, Info
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector

from services.telemetry.access_metrics import AccessMetrics
from services.telemetry.loop_metrics import LoopCounter, LoopGauge, LoopHistogram
from services.telemetry.model_figures import ModelFigures
from services.telemetry.rollout_metrics import RolloutMetrics
from services.telemetry.triton_metrics import TritonMetrics

SECONDS = (
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10
)  # fmt: skip
LOAD_SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)
LAG_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

LANE = ("model", "version")

DROPPED = ("cancelled", "expired", "infeasible", "failed")
RESTARTED = ("blocked", "died")
FINISHED = ("done", "failed", "expired")
SEQUENCE_ENDS = ("ended", "restarted", "idle", "expired", "lost", "unloaded")
PROCESS_KINDS = ("model", "edge")
UNSAMPLED = ("rate_limited", "queue_full", "store_failed", "failed")
"""Values of the labels `reason`, `state` and `kind`."""

UNKNOWN = "unknown"
"""Label value of requests for a model or version that is not served."""


class Metrics:
    """All metrics of one process, in a separate registry.

    Args:
        version: version of this software.
        with_triton_names: True for the metrics of models under Triton's names, too.
    """

    def __init__(self, version: str, *, with_triton_names: bool = False) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        PlatformCollector(registry=self.registry)
        Info("flambeau_build", "What runs.", registry=self.registry).info(
            {"version": version, "python": platform.python_version()}
        )
        self._make_request_metrics(self.registry)
        self._make_batch_metrics(self.registry)
        self._make_server_metrics(self.registry)
        self._make_model_metrics(self.registry)
        self._make_export_metrics(self.registry)
        self._make_traffic_metrics(self.registry)
        self._make_stream_metrics(self.registry)
        self.tls = TlsMetrics(self.registry)
        self._make_failure_metrics(self.registry)
        self.access = AccessMetrics(self.registry)
        self.rollouts = RolloutMetrics(self.registry)
        self.figures = ModelFigures()
        if with_triton_names:
            TritonMetrics(self.figures, self.queue_depth, self.registry)

    def _make_request_metrics(self, registry: CollectorRegistry) -> None:
        self.requests = LoopCounter(
            "flambeau_requests",
            "Requests answered, by model, version, protocol and status code.",
            (*LANE, "protocol", "code"),
            registry=registry,
        )
        self.refusals = LoopCounter(
            "flambeau_refusals",
            "Requests refused before they ran, by error class.",
            ("reason",),
            registry=registry,
        )
        self.http2_floods = LoopCounter(
            "flambeau_http2_floods",
            "gRPC connections closed for a flood of frames, by the kind of the last frame.",
            ("reason",),
            registry=registry,
        )
        self.degraded = LoopCounter(
            "flambeau_degraded_requests",
            "Requests answered by a faster artifact than the default one, because of overload.",
            LANE,
            registry=registry,
        )
        self.request_seconds = LoopHistogram(
            "flambeau_request_duration_seconds",
            "Seconds from the last byte of a request to the first byte of its response.",
            (*LANE, "protocol"),
            buckets=SECONDS,
            registry=registry,
        )

    def _make_batch_metrics(self, registry: CollectorRegistry) -> None:
        self.queue_seconds = LoopHistogram(
            "flambeau_queue_duration_seconds",
            "Seconds from admission to the start of the batch.",
            LANE,
            buckets=SECONDS,
            registry=registry,
        )
        self.execution_seconds = LoopHistogram(
            "flambeau_execution_duration_seconds",
            "Seconds of one backend run on one batch.",
            LANE,
            buckets=SECONDS,
            registry=registry,
        )
        self.batch_rows = LoopHistogram(
            "flambeau_batch_size",
            "Rows in one batch; the sum is the number of rows, the count the number of batches.",
            LANE,
            buckets=ROWS,
            registry=registry,
        )
        self.loop_batches = LoopCounter(
            "flambeau_loop_batches",
            "Batches that ran on the event loop, because a thread would have cost more than the "
            "run; flambeau_batch_size counts all.",
            LANE,
            registry=registry,
        )
        self.dropped = LoopCounter(
            "flambeau_dropped_requests",
            "Accepted requests dropped before they reached the backend, by reason: cancelled, "
            "expired, infeasible (they could no longer meet their deadline) or failed (an error of "
            "the server).",
            (*LANE, "reason"),
            registry=registry,
        )
        self.worker_restarts = LoopCounter(
            "flambeau_worker_restarts",
            "Restarts of a version's backend, by reason: blocked or died.",
            (*LANE, "reason"),
            registry=registry,
        )
        self.open_sequences = LoopGauge(
            "flambeau_open_sequences",
            "Sequences of a model with state that are open: begun, and neither ended nor idle for "
            "too long.",
            LANE,
            registry=registry,
        )
        self.ended_sequences = LoopCounter(
            "flambeau_ended_sequences",
            "Sequences that are open no more, by reason: ended (by their last step), restarted (a "
            "first step began them anew), idle, expired (their lifetime was over), lost (their "
            "state was in an instance that was replaced) or unloaded (with their version).",
            (*LANE, "reason"),
            registry=registry,
        )

    def _make_server_metrics(self, registry: CollectorRegistry) -> None:
        self.loop_lag_seconds = LoopHistogram(
            "flambeau_event_loop_lag_seconds",
            "Seconds a callback waited for the event loop, sampled four times a second.",
            (),
            buckets=LAG_SECONDS,
            registry=registry,
        )
        self.in_flight = Gauge(
            "flambeau_in_flight_requests",
            "Accepted requests that are not answered yet.",
            registry=registry,
        )
        self.buffered_bytes = Gauge(
            "flambeau_buffered_bytes",
            "Bytes of requests and responses held in memory: requests that arrive or wait for a "
            "response, and responses that a client has not read; max_buffered_bytes is the limit.",
            registry=registry,
        )
        self.link_bytes = Gauge(
            "flambeau_link_bytes",
            "Bytes of large tensors in the memory that edges and the model process share "
            "(`--processes`): on their way, or in a batch that runs. 0 when nothing is in flight.",
            registry=registry,
        )

    def _make_model_metrics(self, registry: CollectorRegistry) -> None:
        self.memory_bytes = Gauge(
            "flambeau_model_memory_bytes",
            "Memory of a loaded version on its device, as measured at load.",
            LANE,
            registry=registry,
        )
        self.queue_depth = Gauge(
            "flambeau_queue_depth", "Requests waiting for a batch.", LANE, registry=registry
        )
        self.model_ready = Gauge(
            "flambeau_model_ready",
            "1 if the version is loaded and verified on this machine, else 0.",
            LANE,
            registry=registry,
        )
        self.load_seconds = LoopHistogram(
            "flambeau_model_load_duration_seconds",
            "Seconds from reading the manifest to ready: read, check, open, replay, warm up.",
            LANE,
            buckets=LOAD_SECONDS,
            registry=registry,
        )
        self.store_away = Gauge(
            "flambeau_store_away",
            "1 while a process cannot list its store, or the store's folder is not there, else 0.",
            registry=registry,
        )
        self.served_from_cache = Gauge(
            "flambeau_served_from_cache",
            "1 while a process that started without its store serves what its cache knows, else 0.",
            registry=registry,
        )
        self.store_cache_reads = Counter(
            "flambeau_store_cache_reads",
            "Files of versions that were looked for in the cache of a bucket, by outcome: hit, "
            "miss (read from the bucket), or damaged (removed, and read from the bucket).",
            ("outcome",),
            registry=registry,
        )

    def _make_export_metrics(self, registry: CollectorRegistry) -> None:
        """Makes the metrics of spans and samples; threads update them, beside the event loop."""
        self.spans = Counter(
            "flambeau_spans",
            "Trace spans, by outcome: exported, or dropped if the collector is unreachable or too "
            "slow (dropped ones are counted before they are built).",
            ("outcome",),
            registry=registry,
        )
        self.payload_samples = Counter(
            "flambeau_payload_samples",
            "Requests whose payloads were written to the sample store.",
            LANE,
            registry=registry,
        )
        self.dropped_payload_samples = Counter(
            "flambeau_dropped_payload_samples",
            "Requests selected for sampling and not written, by reason: rate_limited, queue_full "
            "(the store is too slow), store_failed, or failed (see the log).",
            ("reason",),
            registry=registry,
        )

    def _make_traffic_metrics(self, registry: CollectorRegistry) -> None:
        """Makes the metrics of rollouts and shadows; requests by version are counted anyway."""
        self.mirrored_pairs = LoopCounter(
            "flambeau_mirrored_pairs",
            "Requests repeated at the candidate of a rollout or a shadow, by result: agreed, "
            "differed, or failed (the candidate gave an error).",
            (*LANE, "result"),
            registry=registry,
        )
        self.dropped_mirrors = LoopCounter(
            "flambeau_dropped_mirrors",
            "Requests drawn to be repeated at a candidate and not compared, by reason: busy "
            "(callers wait), in_flight (the limit), too_large, not_ready, sequence, stream, "
            "refused, or internal (see the log).",
            (*LANE, "reason"),
            registry=registry,
        )
        self.drawn_fallbacks = LoopCounter(
            "flambeau_drawn_fallbacks",
            "Requests drawn for a version of a rollout or a split that the live version answered "
            "instead, by reason: not_ready, or refused_inputs (its signature does not take them).",
            (*LANE, "reason"),
            registry=registry,
        )

    def _make_stream_metrics(self, registry: CollectorRegistry) -> None:
        """Makes the metrics of a shared queue: all workers of a lane report the same values."""
        self.stream_waiting = Gauge(
            "flambeau_stream_waiting_requests",
            "Requests in Redis that no worker has taken.",
            LANE,
            registry=registry,
        )
        self.stream_taken = Gauge(
            "flambeau_stream_taken_requests",
            "Requests in Redis that a worker has taken and not answered yet.",
            LANE,
            registry=registry,
        )
        self.stream_oldest_seconds = Gauge(
            "flambeau_stream_oldest_age_seconds",
            "Age of the oldest request in Redis; 0 if there is none.",
            LANE,
            registry=registry,
        )

        self.waiting_jobs = Gauge(
            "flambeau_waiting_jobs",
            "Jobs in Redis that no worker has taken.",
            LANE,
            registry=registry,
        )
        self.running_jobs = Gauge(
            "flambeau_running_jobs",
            "Jobs that a worker has taken and not finished.",
            LANE,
            registry=registry,
        )

    def _make_failure_metrics(self, registry: CollectorRegistry) -> None:
        """Makes the metrics of failures that an operator must investigate; each has an alert."""
        self.failed_loads = LoopCounter(
            "flambeau_failed_loads",
            "Failed loads of a version on this machine, for any reason.",
            LANE,
            registry=registry,
        )
        self.failed_verifications = LoopCounter(
            "flambeau_failed_verifications",
            "Artifacts whose golden outputs exceeded their tolerance on this machine, at a load.",
            LANE,
            registry=registry,
        )
        self.dead_letters = LoopCounter(
            "flambeau_dead_letters",
            "Requests and jobs moved to the dead letters because two workers crashed while running "
            "them.",
            LANE,
            registry=registry,
        )
        self.finished_jobs = LoopCounter(
            "flambeau_finished_jobs",
            "Jobs that finished on this worker, by state: done, failed or expired.",
            (*LANE, "state"),
            registry=registry,
        )
        self.fleet_workers = Gauge(
            "flambeau_fleet_workers",
            "Workers registered in Redis, as this process sees it; NaN in a process that does not "
            "use Redis.",
            registry=registry,
        )
        self.fleet_workers.set(math.nan)
        self.lost_workers = LoopCounter(
            "flambeau_lost_workers",
            "Workers that disappeared without shutting down; each is counted by one process only.",
            (),
            registry=registry,
        )
        self.lost_workers.labels()

    def expect_lane(self, model: str, version: int) -> None:
        """Initializes the counters of a version loaded here to 0.

        Otherwise the first event would create a series that starts at 1, which `rate` cannot see.
        """
        labels = (model, str(version))
        for reason in DROPPED:
            self.dropped.labels(*labels, reason)
        for reason in RESTARTED:
            self.worker_restarts.labels(*labels, reason)
        self.failed_loads.labels(*labels)
        self.failed_verifications.labels(*labels)

    def expect_stream(self, model: str, version: int) -> None:
        """Initializes the counters of a version whose requests come through Redis to 0."""
        labels = (model, str(version))
        self.dead_letters.labels(*labels)
        for state in FINISHED:
            self.finished_jobs.labels(*labels, state)

    def set_jobs(self, model: str, version: int, *, waiting: int, running: int) -> None:
        """Sets the gauges of a lane's jobs in Redis."""
        self.waiting_jobs.labels(model, str(version)).set(waiting)
        self.running_jobs.labels(model, str(version)).set(running)

    def set_stream(
        self, model: str, version: int, *, waiting: int, taken: int, oldest_s: float
    ) -> None:
        """Sets the gauges of a lane's requests in Redis."""
        labels = (model, str(version))
        self.stream_waiting.labels(*labels).set(waiting)
        self.stream_taken.labels(*labels).set(taken)
        self.stream_oldest_seconds.labels(*labels).set(oldest_s)

    def forget_lane(self, model: str, version: int) -> None:
        """Removes the gauges of a lane that is no longer served; counters stay."""
        for gauge in (
            self.queue_depth,
            self.model_ready,
            self.memory_bytes,
            self.stream_waiting,
            self.stream_taken,
            self.stream_oldest_seconds,
            self.waiting_jobs,
            self.running_jobs,
            self.open_sequences,
        ):
            with contextlib.suppress(
                KeyError
            ):  # not set for a version that did not load, or not by this kind of process
                gauge.remove(model, str(version))


class SupervisorMetrics:
    """Metrics of the supervisor of a server of several processes, in a separate registry."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.restarts = LoopCounter(
            "flambeau_process_restarts",
            "Processes of `flambeau serve --processes` that ended by themselves and were replaced, "
            "by kind: edge, or model, which runs the models.",
            ("kind",),
            registry=self.registry,
        )
        for kind in PROCESS_KINDS:
            self.restarts.labels(kind)


class TlsMetrics:
    """Metrics of TLS, at the ports and to Redis, in every process; updated from any thread."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.not_after = Gauge(
            "flambeau_tls_certificate_not_after_timestamp_seconds",
            "Earliest expiry of the certificates in a file, by use: server (the ports' own), "
            "client_ca (verifies client certificates), redis_client (presented to Redis) or "
            "redis_ca (verifies Redis' certificate).",
            ("use",),
            registry=registry,
        )
        self.reloads = Counter(
            "flambeau_tls_reloads",
            "Reloads of changed certificate files, by outcome: taken, or refused (the old ones "
            "stay in use).",
            ("outcome",),
            registry=registry,
        )
        self.handshake_failures = Counter(
            "flambeau_tls_handshake_failures",
            "Failed TLS handshakes, such as with a client whose certificate is missing or not "
            "signed by a trusted authority.",
            registry=registry,
        )
