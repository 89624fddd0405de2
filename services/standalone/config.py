"""The configuration of an all-in-one server. Read once, at start-up; nothing else configures it."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, field_validator

from model_store.strict import StrictModel, explain
from services.inference.backends.device import parse_device


class ConfigError(Exception):
    """A setting that is unknown or has a bad value; the message names it."""


class ModelSettings(StrictModel):
    """Settings one model may have of its own; each unset one is the server's."""

    artifact: str | None = None
    """Serve this artifact of the model's versions."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of one run."""
    instances: int | None = Field(default=None, ge=1, le=64)
    """Backends of each version."""
    isolate: bool | None = None
    """Run each backend in a process of its own."""
    preferred_batch_sizes: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] | None = None
    """Sizes batches are padded up to."""
    batch_wait_ms: float | None = Field(default=None, ge=0, le=10_000)
    """How long the first request of a batch waits for company."""
    execution_timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    """How long one run of a backend may take."""


class ServerConfig(StrictModel):
    """Every setting of `flambeau serve`, each with the reason to change it."""

    store: str = "./var/model_store"
    """URL of the model store: a folder, or `s3://bucket/prefix` when several machines serve it."""
    models: tuple[str, ...] = ()
    """Serve only these, and be ready only when all of them are live; empty serves every model."""
    artifact: str = ""
    """Serve this artifact of every version instead of the fastest one; to compare or to debug."""
    newest_versions: int = Field(2, ge=0, le=100)
    """How many of the newest versions to keep loaded beside those a pointer names; raise it to
    answer requests for older versions, lower it to save memory."""

    host: str = "127.0.0.1"
    """Address to listen on; `0.0.0.0` to be reached from other machines (there is no login yet)."""
    http_port: int = Field(8000, ge=0, le=65_535)
    """REST; 0 picks a free port."""
    grpc_port: int = Field(8001, ge=0, le=65_535)
    """gRPC; 0 picks a free port."""
    metrics_port: int = Field(8002, ge=0, le=65_535)
    """Prometheus; 0 picks a free port."""

    device: str = "cpu"
    """Where models run: `cpu`, `cuda` or `cuda:N`; a GPU needs CUDA builds of the runtimes."""
    threads: int = Field(1, ge=1, le=1024)
    """CPU threads one run of a backend may use; raise it for large models on idle cores."""
    instances: int = Field(1, ge=1, le=64)
    """Backends of each version, a thread each, so that its batches overlap; raise it where one
    batch leaves the device idle, and memory allows it."""
    isolate: bool = False
    """Run each backend in a process of its own: one that crashes takes nothing else with it;
    costs memory for each, and a tenth of a millisecond a batch."""
    preferred_batch_sizes: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = ()
    """Sizes batches are padded up to; set it for engines built for fixed sizes."""
    batch_wait_ms: float = Field(0.0, ge=0, le=10_000)
    """How long the first request of a batch waits for company; throughput needs no wait, because
    requests gather while a batch runs, so raise it only to save a device's energy."""
    execution_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """How long one run of a backend may take before its worker is given up and replaced; raise
    it for models that take minutes."""
    max_concurrent_runs: int = Field(0, ge=0, le=1024)
    """Batches that run at once on the device, fairly shared among models by measured time; 0
    takes as many as it has cores for, and one on a GPU."""
    max_memory_mib: int = Field(0, ge=0)
    """The most memory of its device the server may use; 0 is nine tenths of what there is."""
    when_memory_full: Literal["refuse", "unload_idle"] = "refuse"
    """What a version does that does not fit: stay out, or push out the idle one used longest
    ago, which is loaded again when it is asked for."""
    model_settings: dict[str, ModelSettings] = Field(default_factory=dict)
    """Other values of these settings for single models, as `{digits: {instances: 2}}`."""

    request_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """The longest a request may take, whatever its caller allows; raise it for slow models."""
    max_request_bytes: int = Field(64 * 2**20, ge=1024, le=2**31 - 1)
    """Largest body or message, after decompression; raise it for large inputs."""
    max_in_flight_requests: int = Field(4096, ge=1)
    """Requests accepted and unanswered at once; raise it if memory allows more to wait."""
    max_grpc_calls: int = Field(256, ge=1, le=4096)
    """gRPC calls running at once, a thread each; raise it for slow models with many callers."""
    max_connections: int = Field(4096, ge=1, le=1_000_000)
    """REST connections open at once; raise it for many callers, and the system's limit of open
    files with it."""
    keep_alive_timeout_s: float = Field(75.0, gt=0, le=86_400)
    """How long a REST connection may stay open without a request; keep it above that of a proxy
    in front, or the proxy sends into connections that are just being closed."""
    receive_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """How long a REST request may take to arrive, and its caller to read nothing of the answer;
    raise it for large inputs over slow lines."""
    max_queue_depth: int = Field(1024, ge=1)
    """Requests waiting for one version; lower it to refuse early rather than answer late."""
    drain_timeout_s: float = Field(20.0, ge=0, le=3600)
    """How long accepted requests may still take after SIGTERM; keep it below the grace period
    of whatever supervises the process."""
    store_poll_interval_s: float = Field(0.5, ge=0.05, le=3600)
    """Pause between looks at the store; raise it for a bucket that bills by the request."""
    retry_failed_s: float = Field(30.0, ge=0, le=86_400)
    """How long a version that failed to load is left alone before it is tried again."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """What to log."""
    access_log: bool = False
    """One log line for every answered request; turn it on to trace requests one by one, at the
    cost of as much time as a small request takes. Failures are always logged."""

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        return str(parse_device(value))


def server_config(settings: Mapping[str, Any]) -> ServerConfig:
    """Checks settings and fills in the defaults.

    Raises:
        ConfigError: naming each unknown or bad setting, and the nearest right name.
    """
    try:
        return ServerConfig.model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError(explain(error, ServerConfig)) from error
