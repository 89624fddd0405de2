"""The configuration of an all-in-one server. Read once, at start-up; nothing else configures it."""

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, ValidationError

from model_store.strict import StrictModel, explain


class ConfigError(Exception):
    """A setting that is unknown or has a bad value; the message names it."""


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

    threads: int = Field(1, ge=1, le=1024)
    """CPU threads one run of a backend may use; raise it for large models on idle cores."""
    request_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """The longest a request may take, whatever its caller allows; raise it for slow models."""
    max_request_bytes: int = Field(64 * 2**20, ge=1024, le=2**31 - 1)
    """Largest body or message, after decompression; raise it for large inputs."""
    max_in_flight_requests: int = Field(4096, ge=1)
    """Requests accepted and unanswered at once; raise it if memory allows more to wait."""
    max_grpc_calls: int = Field(256, ge=1, le=4096)
    """gRPC calls running at once, a thread each; raise it for slow models with many callers."""
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
    access_log: bool = True
    """One log line for every answered request; turn it off at high rates. Failures are always
    logged."""


def server_config(settings: Mapping[str, Any]) -> ServerConfig:
    """Checks settings and fills in the defaults.

    Raises:
        ConfigError: naming each unknown or bad setting, and the nearest right name.
    """
    try:
        return ServerConfig.model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError(explain(error, ServerConfig)) from error
