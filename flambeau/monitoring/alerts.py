"""The alerts that do not depend on the objectives of a model.

Severities: `page` wakes the person on call, because clients are affected or soon will be; `ticket`
waits for working hours. An alert on a counter's increase over a window stays active for the window;
the first event of a new series counts, too (`risen`).

Every aggregation keeps `namespace`, so that one Prometheus can watch several installations: the
traffic of one neither silences nor dilutes the alerts of another. Series without that label, as
outside Kubernetes, are a separate installation.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Alert:
    """One alerting rule."""

    name: str
    severity: Literal["page", "ticket"]
    summary: str
    """One line; may use Prometheus' templates. The namespace is appended if there is one."""
    expression: str
    """PromQL; the alert fires for every series that it returns."""
    lasting: str
    """Duration for which it must hold first; empty for none."""
    dashboard: str
    """Uid of the dashboard to open."""


def risen(counter: str, window: str) -> str:
    """Returns PromQL for the increase of each series of a counter within a window.

    `increase` misses events before the first scrape of a series: a version that fails verification
    at load starts at 1. So a series that is new in the window counts in full. The hour before is
    searched for samples, so that a series with a gap of scrapes does not look new.
    """
    whole = f"max_over_time({counter}[{window}]) > 0"  # the process may have restarted since
    new = f"{whole} unless count_over_time({counter}[1h] offset {window})"
    return f"(({new}) or increase({counter}[{window}]))"


LANE = "{{ $labels.model }} version {{ $labels.version }}"
_JOBS = 'flambeau_finished_jobs_total{state=~"failed|expired"}'
_TRAINING_JOBS = 'flambeau_training_finished_jobs_total{state="failed"}'

BUDGET_ALERTS = ("FlambeauErrorBudgetBurn", "FlambeauLatencyBudgetBurn")
"""Alerts that depend on a model's objectives; `rules` makes them."""
ALERTS = (
    Alert(
        "FlambeauProcessDown", "page",
        "Prometheus cannot scrape {{ $labels.job }} on {{ $labels.instance }}",
        'up{job=~"flambeau.*"} == 0',
        "2m", "flambeau-overview",
    ),
    Alert(
        "FlambeauNoWorkers", "page",
        "No worker serves any model: requests are answered with 503",
        "max by (namespace) (flambeau_fleet_workers) == 0 "
        "and on (namespace) sum by (namespace) (rate(flambeau_requests_total[5m])) > 0",
        "1m", "flambeau-queue",
    ),
    Alert(
        "FlambeauWorkerLost", "ticket",
        "{{ $value | humanize }} workers disappeared without shutting down within 15 minutes",
        f"sum by (namespace) {risen('flambeau_lost_workers_total', '15m')} >= 0.5",
        "", "flambeau-queue",
    ),
    Alert(
        "FlambeauModelNotReady", "page",
        f"{LANE} is ready in no process",
        "max by (namespace, model, version) (flambeau_model_ready) == 0",
        "5m", "flambeau-overview",
    ),
    Alert(
        "FlambeauQueueAge", "page",
        f"The oldest request to {LANE} has waited {{{{ $value | humanizeDuration }}}}",
        "max by (namespace, model, version) (flambeau_stream_oldest_age_seconds) > 5",
        "2m", "flambeau-queue",
    ),
    Alert(
        "FlambeauOverloaded", "ticket",
        "{{ $value | humanizePercentage }} of all requests are refused because a limit is reached",
        # A model without a server is not overload; other alerts report it.
        'sum by (namespace) (rate(flambeau_refusals_total{reason!="ModelNotReadyError"}[10m])) '
        "/ sum by (namespace) (rate(flambeau_requests_total[10m])) > 0.01",
        "10m", "flambeau-overview",
    ),
    Alert(
        "FlambeauDeadLetters", "ticket",
        f"{{{{ $value | humanize }}}} requests to {LANE} crashed two workers within an hour",
        f"sum by (namespace, model, version) {risen('flambeau_dead_letters_total', '1h')} >= 0.5",
        "", "flambeau-queue",
    ),
    Alert(
        "FlambeauVerificationFailed", "page",
        f"An artifact of {LANE} fails its golden outputs on {{{{ $labels.instance }}}}",
        "sum by (namespace, model, version, instance) "
        f"{risen('flambeau_failed_verifications_total', '1h')} >= 0.5",
        "", "flambeau-queue",
    ),
    Alert(
        "FlambeauLoadFailed", "ticket",
        f"{LANE} cannot be loaded on {{{{ $labels.instance }}}}",
        "sum by (namespace, model, version, instance) "
        f"{risen('flambeau_failed_loads_total', '1h')} >= 0.5",
        "", "flambeau-queue",
    ),
    Alert(
        "FlambeauBackendRestarts", "ticket",
        f"The backend of {LANE} was restarted {{{{ $value | humanize }}}} times within 15 minutes",
        "sum by (namespace, model, version, reason) "
        f"{risen('flambeau_worker_restarts_total', '15m')} > 2",
        "", "flambeau-model",
    ),
    Alert(
        "FlambeauProcessRestarts", "ticket",
        "{{ $labels.instance }} replaced {{ $labels.kind }} processes "
        "{{ $value | humanize }} times within 15 minutes",
        "sum by (namespace, instance, kind) "
        f"{risen('flambeau_process_restarts_total', '15m')} > 2",
        "", "flambeau-overview",
    ),
    Alert(
        "FlambeauJobsFailed", "ticket",
        f"{{{{ $value | humanize }}}} jobs of {LANE} failed or expired within an hour",
        "sum by (namespace, model, version) "
        f"{risen(_JOBS, '1h')} >= 0.5",
        "", "flambeau-queue",
    ),
    Alert(
        "FlambeauTrainingJobsFailed", "ticket",
        "{{ $value | humanize }} training jobs failed within an hour",
        f"sum by (namespace) {risen(_TRAINING_JOBS, '1h')} >= 0.5",
        "", "flambeau-training",
    ),
    Alert(
        "FlambeauTrainingWorkerLost", "ticket",
        "{{ $value | humanize }} training jobs lost their worker within an hour",
        f"sum by (namespace) {risen('flambeau_training_takeovers_total', '1h')} >= 0.5",
        "", "flambeau-training",
    ),
    Alert(
        "FlambeauCertificateExpires", "ticket",
        "A certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
        "flambeau_tls_certificate_not_after_timestamp_seconds - time() < 14 * 86400",
        "1h", "flambeau-overview",
    ),
    Alert(
        "FlambeauCertificateExpiresSoon", "page",
        "A certificate of {{ $labels.instance }} expires in {{ $value | humanizeDuration }}",
        "flambeau_tls_certificate_not_after_timestamp_seconds - time() < 2 * 86400",
        "5m", "flambeau-overview",
    ),
)  # fmt: skip
