"""The configuration of the training service. Read once, at start-up; nothing else configures it."""

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from model_store.strict import StrictModel
from services.access.config import AccessSettings
from services.settings import ServiceSettings
from services.tls import TlsSettings
from training.recipe.targets import split_target


class KubeflowSettings(StrictModel):
    """Where TrainJobs go, and what they are made of; a part of `TrainerConfig`."""

    kubernetes_url: str = "https://kubernetes.default.svc"
    """The Kubernetes API; the default is right within a cluster."""
    kubernetes_account: str = "/var/run/secrets/kubernetes.io/serviceaccount"
    """Folder with the service account's `token`, `ca.crt` and `namespace`; a missing `ca.crt`
    trusts the system's authorities, a missing `token` sends none."""
    kubernetes_namespace: str = ""
    """Where the TrainJobs are made; empty for the service account's own namespace."""
    kubeflow_runtime: str = "torch-distributed"
    """The ClusterTrainingRuntime that runs them."""
    kubeflow_image: str = ""
    """Image with flambeau and its extra `train`; empty for the runtime's own image."""
    kubeflow_nodes: int = Field(1, ge=1, le=1024)
    """Nodes of a job. With more than one it is started by torchrun, and its recipe must say how
    the processes share the work."""
    kubeflow_resources: dict[str, str] = Field(default={"cpu": "2", "memory": "8Gi"})
    """What each node asks for, as in `{cpu: "4", memory: 16Gi}`."""
    kubeflow_volume_claim: str = ""
    """The PersistentVolumeClaim that holds `runs_dir`, mounted there in the job's pods; empty if
    the runtime mounts it by itself."""
    kubeflow_poll_s: float = Field(5.0, gt=0, le=3600)
    """How often a TrainJob's status and progress are read."""


class TrainerConfig(ServiceSettings, AccessSettings, KubeflowSettings, TlsSettings):
    """Every setting of `python -m services.trainer`."""

    http_port: int = Field(8003, ge=0, le=65_535)
    """REST; 0 picks a free port."""
    grpc_port: int = Field(8004, ge=0, le=65_535)
    """gRPC; 0 picks a free port."""
    metrics_port: int = Field(8006, ge=0, le=65_535)
    """Prometheus; 0 picks a free port."""
    api: bool = True
    """Whether to take jobs in over REST and gRPC; `--no-api` leaves that to other processes."""
    worker: bool = True
    """Whether to run jobs; `--no-worker` leaves that to other processes."""
    jobs: str = "./var/training.db"
    """Where jobs are kept: a file (SQLite, one machine), or the URL of a Redis or Valkey."""
    store: str = "./var/model_store"
    """URL of the model store that versions are published to."""
    runs_dir: str = "./var/training"
    """Folder of all jobs, with their code and checkpoints. Every API and every worker must see it
    under this path: put it on a shared volume when there are several machines."""
    executor: Literal["local", "kubeflow"] = "local"
    """What runs a job: a process beside the worker, or a TrainJob of Kubeflow Trainer v2."""
    jobs_at_once: int = Field(1, ge=1, le=1024)
    """Jobs that this worker runs at a time; raise it where a job fills no machine, or with
    Kubeflow, where a worker only looks on."""
    lease_s: float = Field(15.0, ge=0.5, le=3600)
    """How long a worker may be silent before another calls it, and takes its jobs over a third as
    long after; its runs end by then. Raise it where the store of jobs is often out of reach for
    longer, which costs runs what came after their last checkpoint."""
    time_limit_s: float = Field(86_400.0, gt=0, le=30 * 86_400)
    """How long one attempt at a job may take."""
    memory_limit_gib: float = Field(16.0, gt=0, le=65_536)
    """Memory that each process of a job may ask for."""
    file_limit_gib: float = Field(16.0, gt=0, le=65_536)
    """Size of the largest file that a job may write."""
    open_files_limit: int = Field(4096, ge=64, le=1_048_576)
    """Files that each process of a job may have open."""
    targets: tuple[str, ...] = ()
    """Targets, beside flambeau's own networks and data sets, that a recipe may name without a
    credential, as in `my_company.nets:Net`; list none that runs what its arguments say. Foreign
    code runs for known callers alone (`api_keys_file`, `jwt_keys`)."""
    data_folders: tuple[str, ...] = ()
    """Folders that the `data` of a recipe may name, beside the job's own; give those that anyone
    who may train here may learn from."""
    max_bundle_bytes: int = Field(16 * 2**20, ge=1024, le=2**30)
    """Largest code bundle, as it is sent."""
    max_unpacked_bytes: int = Field(64 * 2**20, ge=1024, le=2**40)
    """Largest code bundle, unpacked."""
    max_bundle_files: int = Field(2000, ge=1, le=1_000_000)
    """Files and folders of one code bundle."""
    max_connections: int = Field(512, ge=1, le=1_000_000)
    """Connections open at once, over REST and over gRPC each. One more over REST takes the place
    of the one that has been silent for longest, over gRPC it is closed. Raise it for many callers
    that follow jobs, and the system's limit of open files."""
    keep_alive_timeout_s: float = Field(75.0, gt=0, le=86_400)
    """How long a connection may stay open without a request; keep it above that of a proxy
    in front, or the proxy sends into connections that are just being closed."""
    receive_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """How long a REST request may take to arrive, its caller to read nothing of the answer, and a
    gRPC connection to be set up; raise it for large bundles over slow lines."""
    max_queued_jobs: int = Field(1000, ge=1, le=1_000_000)
    """Jobs that may wait; one more is refused."""
    max_events: int = Field(10_000, ge=100, le=1_000_000)
    """Events kept of each job; the oldest are dropped first."""
    keep_days: float = Field(30.0, gt=0, le=3650)
    """How long a job that is over is kept, with its folder."""

    @field_validator("targets")
    @classmethod
    def _whole_targets(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for target in value:
            parts = split_target(target)
            if parts is None or parts[0].endswith(".py"):
                raise ValueError(
                    f"{target!r} is no target of an installed module; write package.module:Name"
                )
        return value

    @property
    def runs_folder(self) -> Path:
        """`runs_dir` as every process may use it, whatever its working directory."""
        return Path(self.runs_dir).absolute()

    @property
    def store_url(self) -> str:
        """`store` in the same sense."""
        return self.store if "://" in self.store else str(Path(self.store).absolute())
