"""The records that move from an edge to a backend and back. Frozen; each field has one owner.

They are `msgspec.Struct`s because one of each is made for every request: a tenth of a
microsecond instead of the one that a frozen dataclass takes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import msgspec

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from services.queueing.part_window import Window
from services.tracing.context import TraceContext

HIGHEST_PRIORITY = 1
LOWEST_PRIORITY = 10
JOB_PRIORITY = LOWEST_PRIORITY + 1
"""Priority of jobs: they run when the device is otherwise idle."""
MIRROR_PRIORITY = JOB_PRIORITY + 1
"""Priority of mirrored requests: they run as jobs do, and are refused while requests wait."""
PIPELINE_PLATFORM = "flambeau_pipeline"
"""The protocol's platform string of pipelines."""
PYTHON_PLATFORM = "flambeau_python"
"""The protocol's platform string of Python models, whose errors are those of their own code."""
DEFAULT_PRIORITY = 5
"""Priority of a request with priority 0 or none."""


class Lane(NamedTuple):
    """One version of one model: requests of a lane may share a batch, others never do."""

    model: str
    version: int
    artifact: str = ""
    """Name of the artifact that runs; empty for the one that a worker chose for the version."""

    @property
    def default(self) -> "Lane":
        """The lane of the same version that requests get which ask for no artifact."""
        return Lane(self.model, self.version)

    def __str__(self) -> str:
        of_version = f"'{self.model}' version {self.version}"
        return f"{of_version} artifact '{self.artifact}'" if self.artifact else of_version


class SequenceStep(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The place of a request in a sequence, whose steps one instance runs in order.

    A sequence begins with a step that says so. It ends with one that says so, or when its model has
    not seen it for a while.
    """

    id: str
    """Chosen by the client; unique among the sequences of a model version."""
    is_start: bool = False
    is_end: bool = False
    idle_s: float = 60.0
    """Time without a step after which it ends; set by the gateway, from the model's signature."""
    may_start: bool = False
    """True if the step begins the sequence unless that is open: some clients say no more."""


class InferRequest(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An accepted request. Every field is set once, by the gateway; `alone` by the queue."""

    request_id: str
    lane: Lane
    inputs: Mapping[str, Array]
    """Arrays [rows, ...] that fit the lane's signature; a mask or lengths may be left out."""
    rows: int
    deadline: float
    """`time.monotonic()` second after which the reply is useless."""
    priority: int = DEFAULT_PRIORITY
    """1 (first) to 10 (last); `JOB_PRIORITY` for a job."""
    length: int | None = None
    """Length of the dimension that the signature pads; None when it pads none."""
    outputs: Sequence[str] = ()
    """Names of the requested outputs, in order; empty for all of the signature."""
    alone: bool = False
    """True if it must not share a batch: a worker died while it held this request."""
    trace: TraceContext | None = None
    """Trace context of a traced request."""
    sequence: SequenceStep | None = None
    """Place in a sequence; None for a request by itself."""
    accuracy: str = ""
    """Least accuracy of each step of a pipeline, one of `ACCURACIES`; empty for the default."""
    merged: int = 1
    """Number of requests whose rows it has; an edge merges small ones for the model process."""


class InferReply(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A worker's reply. Every field is set once, by the worker."""

    lane: Lane
    """Lane of the version that answered."""
    outputs: Mapping[str, Array]
    """Arrays [rows, ...], rows as in the request; in the order asked for, or the signature's."""
    datatypes: Mapping[str, str]
    """By name, of all outputs of the signature."""
    batch_rows: int
    """Rows of the whole batch this request ran in, without padding."""
    queue_s: float
    execution_s: float
    artifact: str = ""
    """Name of the artifact that answered, if the caller asked for one or got another; set by the
    gateway."""
    degraded: bool = False
    """True if a faster artifact answered because the requested one had no room."""
    number: int = 0
    """Place among the replies to its request."""
    is_last: bool = True
    """False if another reply follows; a last one without outputs only ends those before it."""
    window: Window | None = None
    """Window of a reply that is not the last: counts it once written. It stays in this process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedArtifact:
    """One loaded artifact of a version, as a gateway knows it."""

    name: str
    precision: str
    accuracy_loss: float
    """Difference of its task metric to the checkpoint's; see `artifact_rules`."""
    row_ms: float
    """Milliseconds a row at its best batch size, as measured where it is loaded."""
    lane: Lane
    """Lane of its requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineStep:
    """One step of a pipeline, as its configuration has it."""

    model: str
    version: int
    """-1 for the newest in a range of versions."""
    inputs: dict[str, str]
    """Tensor of the pipeline by input of the model."""
    outputs: dict[str, str]
    """Tensor of the pipeline by output of the model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Execution:
    """Facts of how a version is run, for its configuration."""

    instances: int = 1
    device: str = "cpu"
    """`cpu`, or `cuda:N`."""
    file: str = ""
    """Name of the artifact's file."""
    batch_wait_us: int = 0
    preferred_rows: tuple[int, ...] = ()
    steps: tuple[PipelineStep, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """One version, as inference announces it and a gateway knows it."""

    lane: Lane
    state: Literal["loading", "ready", "failed", "unloaded"]
    reason: str = ""
    """Reason for which it is not ready."""
    signature: Signature | None = None
    """Set once the manifest has been read; always set when ready."""
    platform: str = ""
    """The protocol's platform string, such as `onnx_onnxv1`."""
    artifact: str = ""
    """Name of the artifact that runs."""
    artifacts: tuple[ServedArtifact, ...] = ()
    """All loaded artifacts, the default one first."""
    semver: str = ""
    """Its semantic version, if it has one."""
    is_decoupled: bool = False
    """True if a request may have any number of answers; known once the version is ready."""
    execution: Execution | None = None
    """Set when ready."""
    comes_back: bool = False
    """True if it made room for other versions, and loads again once it is requested."""

    @property
    def is_pipeline(self) -> bool:
        """True if it runs other models."""
        return self.platform == PIPELINE_PLATFORM
