"""Creates a process's tracer from its settings; imports OTLP only if tracing is enabled.

Callers may change the settings of logs and traces while the server runs.
"""

import logging
from collections.abc import Mapping
from importlib.metadata import version as installed_version

from model_store.host.install_advice import install_command
from services.process import process_name
from services.settings import ConfigError, ProcessSettings
from services.telemetry.metrics import Metrics
from services.tracing.tracer import Tracer

KEPT_RATIO = "kept_trace_ratio"
Change = Mapping[str, str | float]
"""`log_level`, a name; `trace_ratio`, from 0 to 1; `kept_trace_ratio`, what it is once traces are
turned on again."""


def apply_change(change: Change, tracer: Tracer | None) -> None:
    """Changes settings of this process."""
    if "log_level" in change:
        logging.getLogger().setLevel(str(change["log_level"]))
    if "trace_ratio" in change and tracer is not None:
        tracer.ratio = float(change["trace_ratio"])


def open_tracer(settings: ProcessSettings, kind: str, metrics: Metrics) -> Tracer | None:
    """Creates the configured tracer; None if tracing is disabled.

    Args:
        settings: settings of the process.
        kind: kind of process: `gateway`, `inference` or `server`.
        metrics: metrics that count the spans.

    Raises:
        ConfigError: the packages of the extra `tracing` are not installed.
    """
    if not settings.trace_endpoint:
        return None
    try:
        from services.tracing.otlp import OtlpExporter
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"trace_endpoint is set, and {error}; install it with {install_command('tracing')}"
        ) from error
    exporter = OtlpExporter(
        settings.trace_endpoint,
        f"flambeau-{kind}",
        process_name(kind),
        installed_version("flambeau"),
    )
    return Tracer(settings.trace_ratio, exporter, metrics.spans)
