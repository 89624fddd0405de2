"""The dashboards, in the order in which the person on call needs them.

Every expression is run against a real Prometheus while a fleet serves (`python -m
tests.dashboards`, and shorter `tests/e2e/test_dashboards.py`), and must return data there.
"""

from flambeau.monitoring.panels import Dashboard, Panel, PanelRow, Query, Unit, Variable
from flambeau.monitoring.rules import FAILURES

WHERE = 'namespace=~"$namespace"'
LANE = f'{WHERE},model=~"$model"'
VERSION = f'{LANE},version=~"$version"'
RATE = "[$__rate_interval]"

NAMESPACE = Variable("namespace", "Namespace", "label_values(flambeau_build_info, namespace)")
MODEL = Variable(
    "model", "Model", 'label_values(flambeau_requests_total{namespace=~"$namespace"}, model)'
)
ONE_VERSION = Variable(
    "version",
    "Version",
    'label_values(flambeau_requests_total{namespace=~"$namespace",model=~"$model"}, version)',
)


def quantile(share: float, metric: str, labels: str, by: str = "") -> str:
    """Returns PromQL for a quantile of a histogram's recent values.

    Args:
        share: quantile, from 0 to 1.
        metric: name of the histogram.
        labels: label matchers.
        by: comma-separated labels that get a line each; empty for one line of all.
    """
    names = f"le, {by}" if by else "le"
    return (
        f"histogram_quantile({share:g}, sum by ({names}) (rate({metric}_bucket{{{labels}}}{RATE})))"
    )


def rate(metric: str, labels: str, by: str = "") -> str:
    """Returns PromQL for the rate of a counter per second, summed over processes."""
    summed = f"sum by ({by})" if by else "sum"
    return f"{summed} (rate({metric}{{{labels}}}{RATE}))"


def grown(metric: str, labels: str, by: str) -> str:
    """Returns PromQL for the increase of a counter per interval of the time shown."""
    return f"sum by ({by}) (increase({metric}{{{labels}}}{RATE}))"


def grown_in_all(metric: str, labels: str) -> str:
    """Returns PromQL for the increase of a counter over the whole time shown."""
    return f"sum(increase({metric}{{{labels}}}[$__range]))"


def of_redis(metric: str) -> str:
    """Returns PromQL for a metric of Redis' contents for each version.

    All workers of a namespace report the same value, so the largest counts; namespaces are summed.
    """
    return f"sum by (model, version) (max by (namespace, model, version) ({metric}{{{LANE}}}))"


def failing(labels: str, by: str = "") -> str:
    """Returns PromQL for the share of requests that failed on the server's side."""
    metric = "flambeau_requests_total"
    return f"{rate(metric, f'{labels},{FAILURES}', by)} / {rate(metric, labels, by)}"


def burning(ratio: str, objective: str) -> str:
    """Returns PromQL for the highest burn rate of the error budget among the selected models."""
    return (
        f"max(model:flambeau_requests_{ratio}:ratio_rate1h{{{LANE}}} / on (namespace, model) "
        f"(1 - model:flambeau_{objective}:objective))"
    )


def lines(title: str, unit: Unit, about: str, *queries: tuple[str, str], stacked: bool = False,
          quiet: bool = False) -> Panel:  # fmt: skip
    """Builds a panel of lines from pairs of expression and legend."""
    made = tuple(Query(expression, legend, quiet) for expression, legend in queries)
    return Panel(title, about, unit, made, stacked=stacked)


def figure(title: str, unit: Unit, about: str, expression: str, warn_above: float | None = None
           ) -> Panel:  # fmt: skip
    """Builds a panel of one number."""
    query = Query(expression, "")
    return Panel(title, about, unit, (query,), "stat", warn_above=warn_above)


DURATION = "flambeau_request_duration_seconds"
PROCESS = 'job=~"flambeau.*"'

OVERVIEW = Dashboard(
    uid="flambeau-overview",
    title="flambeau: overview",
    description="Rate, errors and duration of all models, and saturation of the processes.",
    variables=(NAMESPACE,),
    rows=(
        PanelRow("Now", (
            figure("Requests a second", "reqps", "Requests answered by all gateways together.",
                   rate("flambeau_requests_total", WHERE)),
            figure("Failing", "percentunit", "Share of requests that failed on the server's "
                   "side: 5xx, and the equivalent gRPC codes.", failing(WHERE), 0.001),
            figure("99 % within", "s", "99th percentile of the duration, over all models.",
                   quantile(0.99, DURATION, WHERE)),
            figure("Versions ready", "none", "Versions that at least one process serves.",
                   "count(max by (namespace, model, version) "
                   f"(flambeau_model_ready{{{WHERE}}}) == 1)"),
            figure("Versions refused", "none", "Versions that a process could not load, or whose "
                   "golden outputs exceeded their tolerance there.",
                   f"sum(flambeau_model_ready{{{WHERE}}} == bool 0)", 1),
            figure("Processes down", "none", "Processes that Prometheus cannot scrape.",
                   f"sum(up{{{PROCESS},{WHERE}}} == bool 0)", 1),
        )),
        PanelRow("Rate, errors, duration", (
            lines("Requests by model", "reqps", "Answered requests per second, of any status.",
                  (rate("flambeau_requests_total", WHERE, "model"), "{{model}}"), stacked=True),
            lines("Failing by model", "percentunit", "Share of each model's requests that failed "
                  "on the server's side. The runbook of FlambeauErrorBudgetBurn continues here.",
                  (failing(WHERE, "model"), "{{model}}")),
            lines("Duration of all requests", "s", "From the last byte of a request to the first "
                  "byte of its response.",
                  (quantile(0.5, DURATION, WHERE), "50 %"),
                  (quantile(0.95, DURATION, WHERE), "95 %"),
                  (quantile(0.99, DURATION, WHERE), "99 %")),
            lines("Answers by code", "reqps", "By protocol and status code.",
                  (rate("flambeau_requests_total", WHERE, "protocol, code"),
                   "{{protocol}} {{code}}"),
                  stacked=True),
            lines("99 % by model", "s", "99th percentile of the duration, by model.",
                  (quantile(0.99, DURATION, WHERE, "model"), "{{model}}")),
            lines("Refused before they ran", "reqps", "By the limit that refused them, or "
                  "ModelNotReadyError if no worker serves the model; all of them may be retried.",
                  (rate("flambeau_refusals_total", WHERE, "reason"), "{{reason}}"), stacked=True),
        )),
        PanelRow("Saturation", (
            lines("In flight", "none", "Accepted requests that are not answered yet, by process; "
                  "the limit is max_in_flight_requests.",
                  (f"sum by (instance) (flambeau_in_flight_requests{{{WHERE}}})", "{{instance}}")),
            lines("Waiting for a batch, 95 %", "s", "From admission to the start of the batch. It "
                  "rises first if a model has too few workers.",
                  (quantile(0.95, "flambeau_queue_duration_seconds", WHERE, "model"), "{{model}}")),
            lines("Event loop lag, 99 %", "s", "Delay of a callback in a process: above 25 ms "
                  "the process needs more CPU than one core provides.",
                  (quantile(0.99, "flambeau_event_loop_lag_seconds", WHERE, "job, instance"),
                   "{{job}} {{instance}}")),
            lines("CPU", "percentunit", "Cores that each process uses.",
                  (f"rate(process_cpu_seconds_total{{{PROCESS},{WHERE}}}{RATE})",
                   "{{job}} {{instance}}")),
            lines("Memory", "bytes", "Resident memory, by process.",
                  (f"process_resident_memory_bytes{{{PROCESS},{WHERE}}}", "{{job}} {{instance}}")),
            lines("Processes replaced", "short", "Processes of `flambeau serve --processes` that "
                  "ended by themselves, by kind.",
                  (grown("flambeau_process_restarts_total", WHERE, "instance, kind")
                   + ' or label_replace(vector(0), "kind", "none", "", "")',
                   "{{instance}} {{kind}}")),
            lines("Open files", "percentunit", "Share of the file descriptors a process may have.",
                  (f"process_open_fds{{{PROCESS},{WHERE}}} / process_max_fds{{{PROCESS},{WHERE}}}",
                   "{{job}} {{instance}}")),
        )),
    ),
)  # fmt: skip

NO_STATE = "No model with state is served"
MODEL_DETAIL = Dashboard(
    uid="flambeau-model",
    title="flambeau: model",
    description="One model, with its versions side by side, to compare a new one with an old one.",
    variables=(NAMESPACE, MODEL, ONE_VERSION),
    rows=(
        PanelRow("Objectives", (
            figure("Error budget burn rate", "none", "Rate at which the failures of the last "
                   "hour use up the budget of 30 days: 1 uses it up in 30 days; 14.4 pages.",
                   burning("failed", "availability"), 1),
            figure("Latency budget burn rate", "none", "The same for requests slower than the "
                   "objective.", burning("slow", "latency"), 1),
            figure("Processes that serve it", "none", "Processes with a ready version of it.",
                   f"sum(max by (instance) (flambeau_model_ready{{{VERSION}}}))"),
            figure("Memory", "bytes", "Measured at load, of all versions in all processes.",
                   f"sum(flambeau_model_memory_bytes{{{VERSION}}})"),
        )),
        PanelRow("Versions side by side", (
            lines("Requests", "reqps", "Answered requests, by version.",
                  (rate("flambeau_requests_total", VERSION, "model, version"),
                   "{{model}} {{version}}"), stacked=True),
            lines("Failing", "percentunit", "Share that failed on the server's side, by version.",
                  (failing(VERSION, "model, version"), "{{model}} {{version}}")),
            lines("Duration", "s", "50th and 99th percentile, by version.",
                  (quantile(0.5, DURATION, VERSION, "model, version"),
                   "{{model}} {{version}} 50 %"),
                  (quantile(0.99, DURATION, VERSION, "model, version"),
                   "{{model}} {{version}} 99 %")),
        )),
        PanelRow("Where the time goes", (
            lines("Waiting for a batch, 95 %", "s", "From admission to the start of the batch.",
                  (quantile(0.95, "flambeau_queue_duration_seconds", VERSION, "model, version"),
                   "{{model}} {{version}}")),
            lines("One run of the backend, 95 %", "s", "The model alone, for one batch.",
                  (quantile(0.95, "flambeau_execution_duration_seconds", VERSION, "model, version"),
                   "{{model}} {{version}}")),
            lines("Rows in a batch", "none", "Mean batch size; larger batches cost less per row.",
                  (f"{rate('flambeau_batch_size_sum', VERSION, 'model, version')} / "
                   f"{rate('flambeau_batch_size_count', VERSION, 'model, version')}",
                   "{{model}} {{version}}")),
        )),
        PanelRow("Failures and loads", (
            lines("Dropped", "reqps", "Accepted requests dropped before the backend ran, by "
                  "reason: cancelled, expired, infeasible, failed.",
                  (rate("flambeau_dropped_requests_total", VERSION, "version, reason"),
                   "{{version}} {{reason}}"), stacked=True),
            lines("Backend restarts", "short", "After a backend blocked, or its process died.",
                  (grown("flambeau_worker_restarts_total", VERSION, "version, reason"),
                   "{{version}} {{reason}}")),
            lines("Load time", "s", "Mean time to read, check, open, replay and warm up a version.",
                  ("sum by (model, version) "
                   f"(flambeau_model_load_duration_seconds_sum{{{VERSION}}})"
                   " / sum by (model, version) "
                   f"(flambeau_model_load_duration_seconds_count{{{VERSION}}})",
                   "{{model}} {{version}}")),
        )),
        PanelRow("Sequences", (
            lines("Open", "none", "Sequences of models with state; max_sequences limits those of "
                  "one process, and further ones get 503.",
                  (f"sum by (model, version) (flambeau_open_sequences{{{VERSION}}})",
                   "{{model}} {{version}}"), stacked=True, quiet=True),
            lines("Ended", "ops", "By reason: ended, restarted, idle, expired, lost, unloaded.",
                  (rate("flambeau_ended_sequences_total", VERSION, "version, reason"),
                   "{{version}} {{reason}}"), stacked=True, quiet=True),
        ), NO_STATE),
    ),
)  # fmt: skip

NO_QUEUE = "Only with Redis between gateways and workers"
NO_TRAINER = "No training service is watched"
NO_EXPORTER = "No DCGM exporter is watched"

QUEUE = Dashboard(
    uid="flambeau-queue",
    title="flambeau: queue and workers",
    description="Gateways and workers in separate processes, and their queue in Redis.",
    variables=(NAMESPACE, MODEL),
    rows=(
        PanelRow("Now", (
            figure("Workers", "none", "Workers registered in Redis.",
                   f"sum(max by (namespace) (flambeau_fleet_workers{{{WHERE}}}))"),
            figure("Workers lost", "none", "Disappeared without shutting down, in the time range.",
                   grown_in_all("flambeau_lost_workers_total", WHERE), 0.5),
            figure("Oldest request", "s", "Age of the oldest request in Redis.",
                   f"max(flambeau_stream_oldest_age_seconds{{{LANE}}})", 5),
            figure("Dead letters", "none", "Requests that crashed two workers, in the time range "
                   "(flambeau queue dead list).",
                   grown_in_all("flambeau_dead_letters_total", LANE), 0.5),
        ), NO_QUEUE, "For gateways and workers in separate processes. `flambeau serve` runs both "
           "in one process, without Redis: there *Now*, *Redis* and *Jobs* stay empty, and the "
           "dashboards *overview* and *model* show the queue."),
        PanelRow("Redis", (
            lines("Waiting", "none", "Requests that no worker has taken. Every worker reports "
                  "the same value, so the maximum is shown.",
                  (of_redis("flambeau_stream_waiting_requests"),
                   "{{model}} {{version}}"), stacked=True),
            lines("Taken, not answered", "none", "Requests that workers hold.",
                  (of_redis("flambeau_stream_taken_requests"),
                   "{{model}} {{version}}"), stacked=True),
            lines("Age of the oldest", "s", "Add workers before it nears the callers' timeout.",
                  (of_redis("flambeau_stream_oldest_age_seconds"),
                   "{{model}} {{version}}")),
        ), NO_QUEUE),
        PanelRow("Jobs", (
            lines("Waiting", "none", "Jobs that no worker has taken; they yield to requests.",
                  (of_redis("flambeau_waiting_jobs"),
                   "{{model}} {{version}}"), stacked=True),
            lines("Running", "none", "Jobs that a worker has taken.",
                  (of_redis("flambeau_running_jobs"),
                   "{{model}} {{version}}"), stacked=True),
            lines("Finished", "ops", "Finished jobs, by state.",
                  (rate("flambeau_finished_jobs_total", LANE, "state"), "{{state}}"), stacked=True),
        ), NO_QUEUE),
        PanelRow("Workers", (
            lines("Busy", "percentunit", "Seconds of backend runs per second: a worker is "
                  "saturated at its number of instances.",
                  (rate("flambeau_execution_duration_seconds_sum", LANE, "instance"),
                   "{{instance}}")),
            lines("Batches a second", "ops", "By worker.",
                  (rate("flambeau_execution_duration_seconds_count", LANE, "instance"),
                   "{{instance}}")),
            lines("Loads and verifications that failed", "short", "By version.",
                  (grown("flambeau_failed_loads_total", LANE, "model, version"),
                   "load {{model}} {{version}}"),
                  (grown("flambeau_failed_verifications_total", LANE, "model, version"),
                   "verification {{model}} {{version}}")),
        )),
    ),
)  # fmt: skip

TRAINING = Dashboard(
    uid="flambeau-training",
    title="flambeau: training",
    description="The training service: queued, running and finished jobs, and its processes.",
    variables=(NAMESPACE,),
    rows=(
        PanelRow("Now", (
            figure("Waiting", "none", "Jobs that no worker has taken.",
                   f'sum(max by (namespace) (flambeau_training_jobs{{{WHERE},state="queued"}}))'),
            figure("Running", "none", "Jobs that run on all workers.",
                   f"sum(flambeau_training_running_jobs{{{WHERE}}})"),
            figure("Failed", "none", "Jobs that failed in the time range.",
                   grown_in_all("flambeau_training_finished_jobs_total",
                                f'{WHERE},state="failed"'), 0.5),
            figure("Taken over", "none", "Jobs whose worker died, in the time range.",
                   grown_in_all("flambeau_training_takeovers_total", WHERE), 0.5),
        ), NO_TRAINER),
        PanelRow("Jobs", (
            lines("By state", "none", "All jobs that are stored (keep_days).",
                  ("sum by (state) (max by (namespace, state) "
                   f"(flambeau_training_jobs{{{WHERE}}}))", "{{state}}"),
                  stacked=True),
            lines("Finished", "short", "Finished jobs, by state.",
                  (grown("flambeau_training_finished_jobs_total", WHERE, "state"), "{{state}}"),
                  stacked=True),
            lines("Attempts", "s", "50th and 90th percentile of the duration of an attempt.",
                  (quantile(0.5, "flambeau_training_attempt_duration_seconds", WHERE), "50 %"),
                  (quantile(0.9, "flambeau_training_attempt_duration_seconds", WHERE), "90 %"),
                  quiet=True),
        ), NO_TRAINER),
        PanelRow("Workers", (
            lines("Running jobs", "none", "By worker.",
                  (f"flambeau_training_running_jobs{{{WHERE}}}", "{{instance}}"), stacked=True),
            lines("Memory of the service", "bytes", "Without the jobs, which run in processes of "
                  "their own.",
                  (f'process_resident_memory_bytes{{job="flambeau-trainer",{WHERE}}}',
                   "{{instance}}")),
            lines("CPU of the service", "percentunit", "Without the jobs.",
                  (f'rate(process_cpu_seconds_total{{job="flambeau-trainer",{WHERE}}}{RATE})',
                   "{{instance}}")),
        ), NO_TRAINER),
    ),
)  # fmt: skip

GPU_LABELS = 'gpu=~"$gpu"'
GPU_NAME = "{{Hostname}} {{gpu}}"

GPU = Dashboard(
    uid="flambeau-gpu",
    title="flambeau: GPU",
    description="GPU metrics of NVIDIA's DCGM exporter, and the memory that models use.",
    variables=(
        NAMESPACE,
        Variable("gpu", "GPU", "label_values(DCGM_FI_DEV_GPU_UTIL, gpu)"),
    ),
    rows=(
        PanelRow("Use", (
            lines("Busy", "percentunit", "Share of the time in which a kernel ran.",
                  (f"DCGM_FI_DEV_GPU_UTIL{{{GPU_LABELS}}} / 100", GPU_NAME)),
            lines("Memory taken", "bytes", "Memory of the device used by all processes.",
                  (f"DCGM_FI_DEV_FB_USED{{{GPU_LABELS}}} * 1048576", GPU_NAME), stacked=True),
            lines("Memory free", "bytes", "Versions that need more are refused.",
                  (f"DCGM_FI_DEV_FB_FREE{{{GPU_LABELS}}} * 1048576", GPU_NAME)),
        ), NO_EXPORTER),
        PanelRow("Health", (
            lines("Temperature", "celsius", "Above 85 °C most GPUs reduce their clocks.",
                  (f"DCGM_FI_DEV_GPU_TEMP{{{GPU_LABELS}}}", GPU_NAME)),
            lines("Power", "watt", "Power draw.",
                  (f"DCGM_FI_DEV_POWER_USAGE{{{GPU_LABELS}}}", GPU_NAME)),
            lines("XID errors", "none", "Number of the last XID error; 0 if there was none. NVIDIA "
                  "documents each number.", (f"DCGM_FI_DEV_XID_ERRORS{{{GPU_LABELS}}}", GPU_NAME)),
        ), NO_EXPORTER),
        PanelRow("Models", (
            lines("Memory by version", "bytes", "Memory measured at load.",
                  (f"flambeau_model_memory_bytes{{{WHERE}}}", "{{instance}} {{model}} {{version}}"),
                  stacked=True),
            lines("Backend runs", "percentunit", "Seconds of runs per second, by worker: if the "
                  "device is far busier, another process uses it.",
                  (rate("flambeau_execution_duration_seconds_sum", WHERE, "instance"),
                   "{{instance}}")),
        )),
    ),
)  # fmt: skip

DASHBOARDS = (OVERVIEW, MODEL_DETAIL, QUEUE, TRAINING, GPU)
