"""Makes a process's tracer of its settings; OTLP is imported only if there is to be one."""

from importlib.metadata import version as installed_version

from model_store.host.install_advice import install_command
from services.process import process_name
from services.settings import ConfigError, ProcessSettings
from services.telemetry.metrics import Metrics
from services.tracing.tracer import Tracer


def open_tracer(settings: ProcessSettings, kind: str, metrics: Metrics) -> Tracer | None:
    """What the settings ask for; None if nothing is to be traced.

    Args:
        settings: of the process.
        kind: of process: `gateway`, `inference` or `server`.
        metrics: where spans are counted.

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
