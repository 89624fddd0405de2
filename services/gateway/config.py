"""The configuration of a gateway. Read once, at start-up; nothing else configures it."""

from typing import Literal, Self

from pydantic import Field, model_validator

from services.access.config import AccessSettings
from services.gateway.jobs.verification_service import VerifyFor
from services.gateway.payloads.rule import PayloadRule
from services.settings import ProcessSettings
from services.tls import TlsSettings

USUAL_BUFFERED_BYTES = 512 * 2**20
"""Half of what the pod of a gateway may use (k8s/base/gateway.yaml)."""


class GatewaySettings(ProcessSettings, AccessSettings, TlsSettings):
    """What there is to set where requests come in, each with the reason to change it."""

    http_port: int = Field(8000, ge=0, le=65_535)
    """REST; 0 picks a free port."""
    grpc_port: int = Field(8001, ge=0, le=65_535)
    """gRPC; 0 picks a free port."""
    request_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """The longest a request may take, whatever its caller allows; raise it for slow models."""
    max_request_bytes: int = Field(64 * 2**20, ge=1024, le=2**31 - 1)
    """Largest body or message, after decompression; raise it for large inputs."""
    max_buffered_bytes: int = Field(0, ge=0)
    """Bytes of callers held in memory at once, over both ports: requests as they arrive, until they
    are answered, before and after decompression, and answers that their callers have not read. 0
    for 512 MiB, or 4 times `max_request_bytes` where that is more. Lower it for a pod of less than
    2 GiB, raise it where many large requests arrive or wait at once, and the pod's memory with
    it; it must be at least twice `max_request_bytes`."""
    max_in_flight_requests: int = Field(4096, ge=1)
    """Requests accepted and unanswered at once; raise it if memory allows more to wait."""
    grpc_max_connection_age_s: float = Field(0.0, ge=0, le=86_400)
    """How old a gRPC connection may become before its caller is asked to make another (GOAWAY);
    calls under way finish. Set it, to 300 say, where callers spread their calls over the gateways
    that a name resolves to (a headless Service), or they never hear of new ones; 0 for no limit."""
    max_connections: int = Field(4096, ge=1, le=1_000_000)
    """Connections open at once, over REST and over gRPC each; raise it for many callers, and the
    system's limit of open files with it."""
    keep_alive_timeout_s: float = Field(75.0, gt=0, le=86_400)
    """How long a connection may stay open without a request; keep it above that of a proxy
    in front, or the proxy sends into connections that are just being closed."""
    receive_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """How long a REST request may take to arrive, its caller to read nothing of the answer, and a
    gRPC connection to be set up; raise it for large inputs over slow lines."""
    drain_delay_s: float = Field(0.0, ge=0, le=300)
    """How long requests are still accepted after SIGTERM, while the server already says that it is
    not ready; set it to what those in front need to notice, unless something else waits that long
    before SIGTERM (`preStop` of Kubernetes)."""
    max_queue_depth: int = Field(2048, ge=1)
    """Requests waiting for one version; lower it to refuse early rather than answer late. It must
    hold what comes while the machine pauses: of a small model, thousands in half a second."""
    when_overloaded: Literal["refuse", "degrade"] = "refuse"
    """What becomes of a request that its queue has no room for, or that would be late: refused, or
    answered by a faster artifact of the same version that is loaded (`keep_artifacts`), which the
    reply says; set it where a rougher answer is better than none."""
    verify_for: VerifyFor = "this_machine"
    """Who may have versions verified here (`flambeau verify --on`): callers on `this_machine`
    and, where credentials are asked for, those with the scope `manage` from anywhere; or `nobody`.
    Say `nobody` where a proxy on this machine passes on what strangers send."""
    open_to_strangers: bool = False
    """Let others than this machine infer although no credentials are asked for; say so only where
    something in front decides who may come. Verifications stay for this machine, or nobody."""
    access_log: bool = False
    """One log line for every answered request; turn it on to trace requests one by one, at the
    cost of as much time as a small request takes. Failures are always logged."""
    payload_samples: dict[str, PayloadRule] = Field(default_factory=dict)
    """What requests were asked and answered, kept for people to look at: by patterns of models'
    names, the first that fits, as `{"digits*": {share: 0.01}}`. Empty keeps nothing. What callers
    send may be personal: docs/security.md."""
    payload_sample_store: str = ""
    """URL of the store that samples go to: a folder, or `s3://bucket/prefix`; empty for the model
    store. Set it for gateways, which know none, or where others may read the model store."""

    @property
    def buffer_limit_bytes(self) -> int:
        """`max_buffered_bytes`, or what stands for 0."""
        return self.max_buffered_bytes or max(USUAL_BUFFERED_BYTES, 4 * self.max_request_bytes)

    @model_validator(mode="after")
    def _check_buffered_bytes(self) -> Self:
        if self.buffer_limit_bytes < 2 * self.max_request_bytes:
            raise ValueError(
                f"max_buffered_bytes is {self.max_buffered_bytes}, too few for one compressed "
                f"request of max_request_bytes, {self.max_request_bytes}; give at least twice as "
                "many, or 0"
            )
        return self


class GatewayConfig(GatewaySettings):
    """Every setting of `python -m services.gateway`."""

    queue: str
    """URL of the Redis or Valkey that the workers read from."""
    max_waiting_jobs: int = Field(100_000, ge=1)
    """Jobs that may wait for one version; lower it where Redis has little memory."""
    job_timeout_s: float = Field(86_400.0, gt=0, le=30 * 86_400)
    """The longest a job may take, whatever its caller allows."""
    job_result_ttl_s: int = Field(86_400, ge=1, le=30 * 86_400)
    """How long the result of a job is kept; lower it where Redis has little memory."""
    verify_timeout_s: float = Field(3600.0, gt=0, le=86_400)
    """How long the gateway waits for a worker that verifies a version; raise it for versions of
    many artifacts or slow ones, and `verify_time_limit_s` of the workers with it."""
    webhook_hosts: tuple[str, ...] = ()
    """Hosts that may be told that a job is over; `.example.org` means all below it. Empty allows
    none, so that no caller can make the gateway call what only it can reach."""
    webhook_secret_file: str = ""
    """File with the secret that webhooks are signed with; needed for any."""
