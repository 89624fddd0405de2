"""Configuration of the inference process. Read once, at start-up; nothing else configures it."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from flambeau.protocol.accuracies import Accuracy
from flambeau.protocol.strict import Matching, StrictModel
from services.inference.backends.device import parse_device
from services.inference.backends.onnx_providers import ProviderName
from services.inference.model_control import ControlMode
from services.inference.trust import TrustSettings
from services.settings import ProcessSettings

KeptArtifacts = Annotated[
    tuple[Annotated[str, Matching(r"^[a-z0-9][a-z0-9-]*$", "a name such as onnx-int8")], ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
]
"""Names of artifacts, accuracies, or `all`; a single one needs no list."""


def checked_providers(value: tuple[ProviderName, ...]) -> tuple[ProviderName, ...]:
    """Returns the providers, if CUDA is the last of them.

    Raises:
        ValueError: CUDA is not the last, or a provider is repeated.
    """
    if value not in (("cuda",), ("tensorrt", "cuda")):
        raise ValueError("give cuda, or tensorrt and then cuda, which runs what TensorRT does not")
    return value


class ModelSettings(StrictModel):
    """Settings of a single model; each unset one has the server's value."""

    artifact: str | None = None
    """Serve this artifact of the model's versions."""
    accuracy: Accuracy | None = None
    """Serve the fastest artifact that meets this accuracy."""
    keep_artifacts: KeptArtifacts | None = None
    """Load these artifacts in addition."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of one run."""
    instances: int | None = Field(default=None, ge=1, le=64)
    """Backends of each version."""
    isolate: bool | None = None
    """Run each backend in its own worker process."""
    preferred_batch_sizes: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] | None = None
    """Sizes that batches are padded up to."""
    onnx_providers: tuple[ProviderName, ...] | None = None
    """Execution providers of ONNX artifacts on a GPU."""
    batch_wait_ms: float | None = Field(default=None, ge=0, le=10_000)
    """Longest time that the first request of a batch waits for a fuller batch."""
    execution_timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    """Timeout of one run of a backend."""

    @field_validator("onnx_providers")
    @classmethod
    def _cuda_comes_last(
        cls, value: tuple[ProviderName, ...] | None
    ) -> tuple[ProviderName, ...] | None:
        return None if value is None else checked_providers(value)


class InferenceSettings(ProcessSettings, TrustSettings):
    """Settings of a process that runs models, each with the reason to change it."""

    store: str = "./var/model_store"
    """URL of the model store: a folder, or `s3://bucket/prefix`, `gs://bucket/prefix` or
    `az://container/prefix` when several machines serve it."""
    store_cache: str = "~/.cache/flambeau/store"
    """Folder of the files of a bucket that were loaded here, for this user alone, from which a
    start works while the bucket is away; change it if the home folder is read-only or small, empty
    it to read everything from the bucket. A store that is a folder has no cache."""
    store_cache_mib: int = Field(10_240, ge=1)
    """Size of the files in `store_cache`, above which those used longest ago are evicted; set it to
    the size of all versions that are served here, and of those that are next."""
    model_control: ControlMode = "poll"
    """Choice of the models to serve: `poll` follows the store; `none` serves what it has at the
    start and follows no change; `explicit` serves those of `models` at first, and then those that
    callers load and unload (docs/reference/protocols.md). Their pointers are followed then, too.
    Workers that share a Redis need the same value."""
    artifact: str = ""
    """Serve this artifact of every version instead of the fastest one; to compare or to debug."""
    accuracy: Accuracy = "fast"
    """Required accuracy of the artifact that serves: `exact` (fp32), `balanced` (no metric more
    than half a percentage point below the checkpoint's) or `fast` (any that passed its gate); raise
    it if accuracy matters more than speed."""
    keep_artifacts: KeptArtifacts = ()
    """Artifacts to load in addition to the one that serves, for requests that select them and for
    overload: names of artifacts, `exact`, `balanced` or `fast` for the fastest that meets this
    accuracy, or `all`; each takes memory and time to load."""
    choose_artifact_budget_s: float = Field(60.0, ge=0, le=3600)
    """Time budget for comparing the artifacts of a version by measurement, at low priority while
    the publisher's fastest serves; raise it for versions of many artifacts and on machines that are
    never idle, set it to 0 to use the publisher's figures."""
    choice_file: str = "~/.cache/flambeau/artifact_choices.json"
    """File that caches which artifact was the fastest; change it if the home folder is read-only,
    empty it to measure at every start."""
    newest_versions: int = Field(2, ge=0, le=100)
    """Number of newest versions to keep loaded beside those that a pointer names; raise it to
    answer requests for older versions, lower it to save memory."""
    device: str = "cpu"
    """Device of all models: `cpu`, `cuda` or `cuda:N`; a GPU needs CUDA builds of the runtimes."""
    threads: int = Field(1, ge=1, le=1024)
    """CPU threads that one run of a backend may use; raise it for large models on idle cores."""
    instances: int = Field(1, ge=1, le=64)
    """Backends of each version, one thread each, so that its batches overlap; raise it if one
    batch leaves the device idle, and memory allows it."""
    isolate: bool = False
    """Run each backend in its own worker process: a crash affects no other model; costs memory for
    each, and a tenth of a millisecond per batch."""
    preferred_batch_sizes: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] = ()
    """Sizes that batches are padded up to; set it for engines built for fixed sizes."""
    onnx_providers: tuple[ProviderName, ...] = ("cuda",)
    """Execution providers of ONNX artifacts on a GPU: `cuda`, or `tensorrt` and then `cuda` for
    engines that take minutes to build when a version first loads, and are faster afterwards."""
    engine_cache: str = "~/.cache/flambeau/tensorrt"
    """Folder of TensorRT's engines, for this user alone; change it if the home folder is read-only
    or not persistent."""
    engine_cache_mib: int = Field(4096, ge=1)
    """Size that `engine_cache` is trimmed to, oldest engines first, before a version loads."""
    batch_wait_ms: float = Field(0.0, ge=0, le=10_000)
    """Longest time that the first request of a batch waits for a fuller batch; throughput needs no
    wait, because requests queue while a batch runs, so raise it only to save a device's energy."""
    execution_timeout_s: float = Field(60.0, gt=0, le=86_400)
    """Timeout of one run of a backend, after which its worker is abandoned and replaced; raise it
    for models that take minutes."""
    max_concurrent_runs: int = Field(0, ge=0, le=1024)
    """Batches that run at once on the device, fairly shared among models by measured time; 0
    is the number of cores divided by `threads`, or 2 on a GPU, where a model's two batches share
    its weights."""
    max_memory_mib: int = Field(0, ge=0)
    """The most memory of its device that the server may use; 0 is nine tenths of the total."""
    when_memory_full: Literal["refuse", "unload_idle"] = "refuse"
    """Handling of a version that does not fit: refuse it, or unload the least recently used idle
    version, which is loaded again when it is requested."""
    max_model_memory_mib: int = Field(0, ge=0)
    """The most host memory that one artifact may take to open and to run its largest batch, which
    is probed in a limited process first; 0 is a quarter of the total, at most 4 GiB, or three
    times its files if that is more. Raise it for models that need much memory beside weights."""
    open_time_limit_s: float = Field(120.0, gt=0, le=86_400)
    """CPU time that an artifact may take to be opened and run in that probe; the time that one in a
    process of its own may take to open, and again for its golden rows. Raise it for models that
    load for minutes, or are compiled when they load."""
    needs_file: str = "~/.cache/flambeau/artifact_needs.json"
    """File that caches the measured needs of artifacts; change it if the home folder is read-only,
    empty it to probe them at every start."""
    model_settings: dict[str, ModelSettings] = Field(default_factory=dict)
    """Other values of these settings for single models, as `{digits: {instances: 2}}`."""
    store_poll_interval_s: float = Field(0.5, ge=0.05, le=3600)
    """Interval of polling the store; raise it for a bucket that bills per request."""
    retry_failed_s: float = Field(30.0, ge=0, le=86_400)
    """Delay before a version that failed to load is retried."""

    @field_validator("onnx_providers")
    @classmethod
    def _cuda_comes_last(cls, value: tuple[ProviderName, ...]) -> tuple[ProviderName, ...]:
        return checked_providers(value)

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        return str(parse_device(value))


class InferenceConfig(InferenceSettings):
    """All settings of `python -m services.inference`."""

    host: str = "127.0.0.1"
    """Address that the metrics port listens on, the only one of a worker. Set `0.0.0.0` for
    a Prometheus on another machine."""
    queue: str
    """URL of the Redis or Valkey that the gateways write to."""
