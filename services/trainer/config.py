"""Configuration of the training service. Read once, at start-up; nothing else configures it."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, field_validator

from model_store.storage.storage import folder_of
from services.access.config import AccessSettings
from services.access.grants import parse_aliases
from services.kubernetes.object_api import ClusterSettings
from services.settings import ServiceSettings
from services.tls import TlsSettings
from training.recipe.targets import split_target


class KubeflowSettings(ClusterSettings):
    """Cluster and specification of TrainJobs; a part of `TrainerConfig`."""

    kubeflow_runtime: str = "torch-distributed"
    """The ClusterTrainingRuntime that runs them."""
    kubeflow_image: str = ""
    """Image with flambeau and its extra `train`; empty for the runtime's own image."""
    kubeflow_nodes: int = Field(1, ge=1, le=1024)
    """Nodes of a job. With more than one it is started by torchrun, and its recipe must define how
    the processes share the work."""
    kubeflow_resources: dict[str, str] = Field(default={"cpu": "2", "memory": "8Gi"})
    """Resource requests and limits of each node, as in `{cpu: "4", memory: 16Gi}`."""
    kubeflow_volume_claim: str = ""
    """The PersistentVolumeClaim that contains `runs_dir`, mounted there in the job's pods; empty if
    the runtime mounts it itself."""
    kubeflow_poll_s: float = Field(5.0, gt=0, le=3600)
    """Interval of reading a TrainJob's status and progress."""


class TrainerConfig(ServiceSettings, AccessSettings, KubeflowSettings, TlsSettings):
    """All settings of `python -m services.trainer`."""

    http_port: int = Field(8003, ge=0, le=65_535)
    """Port of REST; 0 picks a free port."""
    grpc_port: int = Field(8004, ge=0, le=65_535)
    """Port of gRPC; 0 picks a free port."""
    metrics_port: int = Field(8006, ge=0, le=65_535)
    """Port of the Prometheus metrics; 0 picks a free port."""
    api: bool = True
    """Accept jobs over REST and gRPC; `--no-api` leaves that to other processes."""
    worker: bool = True
    """Run jobs; `--no-worker` leaves that to other processes."""
    jobs: str = "./var/training.db"
    """Store of the jobs: a file (SQLite, one machine), or the URL of a Redis or Valkey."""
    store: str = "./var/model_store"
    """URL of the model store that versions are published to."""
    registry_two_person: Annotated[tuple[str, ...], Field(max_length=64)] = ()
    """Aliases whose moves through the registry need two callers, as `digits*@production`: recipes
    that would move one are refused. Set it to what the servers of the store have."""
    runs_dir: str = "./var/training"
    """Folder of all jobs, with their code and checkpoints. Every API and every worker must see it
    under this path: put it on a shared volume if there are several machines."""
    executor: Literal["local", "kubeflow"] = "local"
    """Executor of the jobs: a process beside the worker, or a TrainJob of Kubeflow Trainer v2."""
    jobs_at_once: int = Field(1, ge=1, le=1024)
    """Jobs that this worker runs concurrently; raise it if a job does not use the whole machine, or
    with Kubeflow, where a worker only monitors jobs."""
    lease_s: float = Field(15.0, ge=0.5, le=3600)
    """Duration of a lease. If a worker does not renew it, another worker gives it a last call, and
    takes its jobs over after another third of this time; its runs end by then. Raise it if the
    store of jobs is often unavailable for longer: runs then lose the work since a checkpoint."""
    time_limit_s: float = Field(86_400.0, gt=0, le=30 * 86_400)
    """Time limit of one attempt at a job."""
    memory_limit_gib: float = Field(16.0, gt=0, le=65_536)
    """Memory limit of each process of a job."""
    file_limit_gib: float = Field(16.0, gt=0, le=65_536)
    """Size of the largest file that a job may write."""
    open_files_limit: int = Field(4096, ge=64, le=1_048_576)
    """Maximum number of open files of each process of a job."""
    targets: tuple[str, ...] = ()
    """Targets, beside flambeau's own networks and data sets, that a recipe may name without a
    credential, as in `my_company.nets:Net`; list none that executes its arguments. Other code runs
    for authenticated clients only (`api_keys_file`, `jwt_keys`)."""
    data_folders: tuple[str, ...] = ()
    """Folders that the `data` of a recipe may name, beside the job's own; list only folders that
    every client with permission to train may read."""
    max_bundle_bytes: int = Field(16 * 2**20, ge=1024, le=2**30)
    """Maximum size of a code bundle, as it is sent."""
    max_unpacked_bytes: int = Field(64 * 2**20, ge=1024, le=2**40)
    """Maximum size of a code bundle, unpacked."""
    max_bundle_files: int = Field(2000, ge=1, le=1_000_000)
    """Maximum number of files and folders of a code bundle."""
    max_connections: int = Field(512, ge=1, le=1_000_000)
    """Maximum open connections, for REST and for gRPC each. One more over REST replaces the one
    that has been idle for longest, over gRPC it is closed. Raise it for many clients that follow
    jobs, and the system's limit of open files."""
    keep_alive_timeout_s: float = Field(75.0, gt=0, le=86_400)
    """Idle timeout of a connection without a request; keep it above that of a proxy in front, or
    the proxy sends requests to connections that are being closed."""
    receive_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """Timeout of receiving a REST request, of a client that stops reading the response, and of the
    handshake of a gRPC connection; raise it for large bundles over slow networks."""
    max_queued_jobs: int = Field(1000, ge=1, le=1_000_000)
    """Maximum number of queued jobs; one more is refused."""
    max_events: int = Field(10_000, ge=100, le=1_000_000)
    """Maximum number of events kept of each job; the oldest are dropped first."""
    keep_days: float = Field(30.0, gt=0, le=3650)
    """Days that a finished job is kept, with its folder."""

    @field_validator("targets")
    @classmethod
    def _whole_targets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for target in value:
            parts = split_target(target)
            if parts is None or parts[0].endswith(".py"):
                raise ValueError(
                    f"{target!r} is not a target of an installed module; write package.module:Name"
                )
        return value

    @field_validator("registry_two_person")
    @classmethod
    def _are_aliases(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        parse_aliases(value)
        return value

    @property
    def runs_folder(self) -> Path:
        """`runs_dir` as an absolute path, independent of the working directory."""
        return Path(self.runs_dir).absolute()

    @property
    def store_folder(self) -> Path | None:
        """Folder of the store; None for a bucket."""
        return folder_of(self.store)

    @property
    def store_url(self) -> str:
        """`store` with an absolute path, if it is a folder."""
        folder = self.store_folder
        return self.store if folder is None else str(folder)
