"""The configuration of a gateway. It is read once, at start-up; nothing else configures it."""

from typing import Literal, Self

from pydantic import Field, model_validator

from services.access.config import AccessSettings
from services.gateway.payloads.rule import PayloadRule
from services.settings import ProcessSettings, ServiceSettings
from services.tls import TlsSettings

USUAL_BUFFERED_BYTES = 512 * 2**20
"""Half of the memory limit of a gateway's pod (k8s/base/gateway.yaml)."""


class PortSettings(ServiceSettings, AccessSettings, TlsSettings):
    """Settings of a process with a REST and a gRPC port, each with the reason to change it."""

    http_port: int = Field(8000, ge=0, le=65_535)
    """REST port; 0 picks a free port."""
    grpc_port: int = Field(8001, ge=0, le=65_535)
    """gRPC port; 0 picks a free port."""
    max_request_bytes: int = Field(64 * 2**20, ge=1024, le=2**31 - 1)
    """Largest body or message, after decompression; raise it for large inputs."""
    max_buffered_bytes: int = Field(0, ge=0)
    """Bytes of requests and responses buffered at once, over both ports: requests from arrival to
    response, before and after decompression, and responses that their callers have not read. 0
    for 512 MiB, or 4 times `max_request_bytes` where that is more. Lower it for a pod of less than
    2 GiB, raise it where many large requests arrive or wait at once, and the pod's memory with
    it; it must be at least twice `max_request_bytes`."""
    grpc_max_connection_age_s: float = Field(0.0, ge=0, le=86_400)
    """Age of a gRPC connection at which its caller is asked to reconnect (GOAWAY); calls in
    flight finish. Set it, to 300 say, where callers balance their calls over the gateways
    that a name resolves to (a headless Service), or they never use new ones; 0 for no limit."""
    max_connections: int = Field(4096, ge=1, le=1_000_000)
    """Connections open at once, over REST and over gRPC each; raise it for many callers, and the
    system's limit of open files with it."""
    keep_alive_timeout_s: float = Field(75.0, gt=0, le=86_400)
    """Time that an idle connection stays open; keep it above that of a proxy in front, or the
    proxy sends into connections that are just being closed."""
    receive_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """Longest time for a REST request to arrive, its caller to read nothing of the response, and
    for a gRPC connection to be set up; raise it for large inputs over slow lines."""
    drain_delay_s: float = Field(0.0, ge=0, le=300)
    """Time after SIGTERM in which requests are still accepted, while the server already reports not
    ready; set it to the time that load balancers need to notice, unless something waits as long
    before SIGTERM (`preStop` of Kubernetes)."""

    @property
    def buffer_limit_bytes(self) -> int:
        """Returns `max_buffered_bytes`, or its default for 0."""
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


class GatewaySettings(ProcessSettings, PortSettings):
    """Settings of a process that accepts requests, each with the reason to change it."""

    request_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """Longest duration of a request, whatever its caller allows; raise it for slow models."""
    max_in_flight_requests: int = Field(4096, ge=1)
    """Requests in flight at once; raise it if memory allows more to wait."""
    max_queue_depth: int = Field(2048, ge=1)
    """Requests waiting for one version; lower it to refuse early rather than answer late. It must
    hold the requests of a pause of the machine: of a small model, thousands in half a second."""
    when_overloaded: Literal["refuse", "degrade"] = "refuse"
    """Handling of a request whose queue is full, or that would be late: it is refused, or
    answered by a faster loaded artifact of the same version (`keep_artifacts`), which the
    response names; set it where a less accurate response is better than none."""
    compat: Literal["none", "triton"] = "none"
    """The server whose name and words clients expect; set it to `triton` for clients that compare
    them: server metadata then has its name, the usual refusals have its messages, and gRPC answers
    with raw outputs whatever the form of the request."""
    open_to_strangers: bool = False
    """Accept inference and jobs from other machines although no credentials are required; set it
    only where a proxy in front controls access."""
    shared_memory_objects: str = ""
    """Names of shared memory objects that callers on this host may register and send tensors
    through, as a pattern such as `client-*`; empty for none. The server reads and writes them as
    its own user: set it where local clients send large tensors, to names that only they use."""
    access_log: bool = False
    """One log line for every answered request; turn it on to trace requests one by one, at the
    cost of as much time as a small request takes. Failures are always logged."""
    payload_samples: dict[str, PayloadRule] = Field(default_factory=dict)
    """Sampling of inputs and outputs of requests, for inspection: by patterns of model names, the
    first match applies, as `{"digits*": {share: 0.01}}`. Empty keeps nothing. Inputs may be
    personal data: docs/guides/security.md."""
    payload_sample_store: str = ""
    """URL of the sample store: a folder, or a bucket as for `store`; empty for the model store. Set
    it for gateways, which have no model store, or where others may read the model store."""


class GatewayConfig(GatewaySettings):
    """Every setting of `python -m services.gateway`."""

    queue: str
    """URL of the Redis or Valkey that the workers read from."""
    max_waiting_jobs: int = Field(100_000, ge=1)
    """Jobs that may wait for one version; lower it where Redis has little memory."""
    job_timeout_s: float = Field(86_400.0, gt=0, le=30 * 86_400)
    """Longest duration of a job, whatever its caller allows."""
    job_result_ttl_s: int = Field(86_400, ge=1, le=30 * 86_400)
    """Retention of a job's result; lower it where Redis has little memory."""
    webhook_hosts: tuple[str, ...] = ()
    """Hosts that webhooks of jobs may call; `.example.org` means all its subdomains. Empty allows
    none, so that no caller can make the gateway call hosts that only it can reach."""
    webhook_secret_file: str = ""
    """File with the secret that signs webhooks: `whsec_` and base64 of 24 bytes or more; required
    for any."""
