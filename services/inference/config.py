"""The configuration of a worker process. Read once, at start-up; nothing else configures it."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, field_validator

from model_store.strict import StrictModel
from services.inference.backends.device import parse_device
from services.inference.backends.onnx_providers import ProviderName
from services.inference.trust import SignatureScope
from services.queueing.artifact_rules import Accuracy
from services.settings import ProcessSettings

VERIFY_TIME_LIMIT_S, VERIFY_MEMORY_GIB = 300.0, 16.0
"""Of one artifact, in a server and in `flambeau verify`; the second as for exports."""
KeptArtifacts = Annotated[
    tuple[Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]*$")], ...],
    BeforeValidator(lambda value: (value,) if isinstance(value, str) else value),
]
"""Names of artifacts, and the words that stand for some; one of them needs no list: `all`."""


def checked_providers(value: tuple[ProviderName, ...]) -> tuple[ProviderName, ...]:
    """The providers, if CUDA is the last of them.

    Raises:
        ValueError: it is not, or one comes twice.
    """
    if value not in (("cuda",), ("tensorrt", "cuda")):
        raise ValueError("give cuda, or tensorrt and then cuda, which runs what TensorRT does not")
    return value


class ModelSettings(StrictModel):
    """Settings one model may have of its own; each unset one is the server's."""

    artifact: str | None = None
    """Serve this artifact of the model's versions."""
    accuracy: Accuracy | None = None
    """Serve the fastest artifact that gives this."""
    keep_artifacts: KeptArtifacts | None = None
    """Load these artifacts beside it."""
    threads: int | None = Field(default=None, ge=1, le=1024)
    """CPU threads of one run."""
    instances: int | None = Field(default=None, ge=1, le=64)
    """Backends of each version."""
    isolate: bool | None = None
    """Run each backend in a process of its own."""
    preferred_batch_sizes: tuple[Annotated[int, Field(ge=1, le=65_536)], ...] | None = None
    """Sizes batches are padded up to."""
    onnx_providers: tuple[ProviderName, ...] | None = None
    """What runs ONNX artifacts on a GPU."""
    batch_wait_ms: float | None = Field(default=None, ge=0, le=10_000)
    """How long the first request of a batch waits for company."""
    execution_timeout_s: float | None = Field(default=None, gt=0, le=86_400)
    """How long one run of a backend may take."""

    @field_validator("onnx_providers")
    @classmethod
    def _cuda_comes_last(
        cls, value: tuple[ProviderName, ...] | None
    ) -> tuple[ProviderName, ...] | None:
        return None if value is None else checked_providers(value)


class InferenceSettings(ProcessSettings):
    """What there is to set where models run, each with the reason to change it."""

    store: str = "./var/model_store"
    """URL of the model store: a folder, or `s3://bucket/prefix` when several machines serve it."""
    artifact: str = ""
    """Serve this artifact of every version instead of the fastest one; to compare or to debug."""
    accuracy: Accuracy = "fast"
    """What the artifact that serves must give: `exact` (fp32), `balanced` (no metric more than half
    a percentage point below the checkpoint's) or `fast` (whatever passed its gate); raise it where
    answers count for more than speed."""
    keep_artifacts: KeptArtifacts = ()
    """What to load beside the artifact that serves, so that requests can ask for it and overload
    can be met by it: names of artifacts, `exact`, `balanced` or `fast` for the fastest that gives
    this, or `all`; each takes memory and time to load."""
    choose_artifact_budget_s: float = Field(60.0, ge=0, le=3600)
    """How long the artifacts of a version may be measured against each other, at low priority while
    the publisher's fastest serves; raise it for versions of many artifacts and on machines that are
    never idle, set it to 0 to stay with the publisher's figures."""
    choice_file: str = "~/.cache/flambeau/artifact_choices.json"
    """Where it is remembered which artifact was the fastest; change it where the home folder is
    read-only, empty it to measure at every start."""
    newest_versions: int = Field(2, ge=0, le=100)
    """How many of the newest versions to keep loaded beside those a pointer names; raise it to
    answer requests for older versions, lower it to save memory."""
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
    onnx_providers: tuple[ProviderName, ...] = ("cuda",)
    """What runs ONNX artifacts on a GPU: `cuda`, or `tensorrt` and then `cuda` for engines that
    take minutes to build when a version first loads, and are faster then."""
    engine_cache: str = "~/.cache/flambeau/tensorrt"
    """Folder of TensorRT's engines, for this user alone; change it where the home folder is
    read-only or forgotten."""
    engine_cache_mib: int = Field(4096, ge=1)
    """What may lie in `engine_cache` before a version loads: the oldest engines leave first."""
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
    max_model_memory_mib: int = Field(0, ge=0)
    """The most memory of the host that one artifact may take to open and to run its largest batch,
    which is tried in a process with limits first; 0 is a quarter of what there is, at most 4 GiB,
    or three times its files if that is more. Raise it for models that need much beside weights."""
    open_time_limit_s: float = Field(120.0, gt=0, le=86_400)
    """CPU time that an artifact may take to be opened and run then; raise it for models that are
    compiled when they load."""
    needs_file: str = "~/.cache/flambeau/artifact_needs.json"
    """Where it is remembered what artifacts took; change it where the home folder is read-only,
    empty it to try them at every start."""
    trusted_keys: str = ""
    """Folder of the public keys (`*.pem`) whose signatures are trusted; set it where keys are
    mounted. Empty for those of `flambeau keys trust`."""
    signature_needed_for: SignatureScope = "remote_code"
    """What loads only signed by a trusted key: code from stores that are no local folder
    (`remote_code`), all `code`, or `everything`; raise it where others can write to the store."""
    verify_time_limit_s: float = Field(VERIFY_TIME_LIMIT_S, gt=0, le=86_400)
    """How long one artifact may be verified before it counts as failed; raise it for models that
    take seconds a row."""
    verify_memory_gib: float = Field(VERIFY_MEMORY_GIB, gt=0)
    """Memory that an artifact which is verified may take, beside what is served; lower it where
    memory is short, raise it for models whose weights fill a good part of it."""
    model_settings: dict[str, ModelSettings] = Field(default_factory=dict)
    """Other values of these settings for single models, as `{digits: {instances: 2}}`."""
    store_poll_interval_s: float = Field(0.5, ge=0.05, le=3600)
    """Pause between looks at the store; raise it for a bucket that bills by the request."""
    retry_failed_s: float = Field(30.0, ge=0, le=86_400)
    """How long a version that failed to load is left alone before it is tried again."""

    @field_validator("onnx_providers")
    @classmethod
    def _cuda_comes_last(cls, value: tuple[ProviderName, ...]) -> tuple[ProviderName, ...]:
        return checked_providers(value)

    @field_validator("device")
    @classmethod
    def _known_device(cls, value: str) -> str:
        return str(parse_device(value))


class InferenceConfig(InferenceSettings):
    """Every setting of `python -m services.inference`."""

    queue: str
    """URL of the Redis or Valkey that the gateways write to."""
