"""The records that move from an edge to a backend and back. Frozen; each field has one owner."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from model_store.signature import Signature
from model_store.tensors import Array


@dataclass(frozen=True, slots=True)
class Lane:
    """One version of one model: requests of a lane may share a batch, others never do."""

    model: str
    version: int

    def __str__(self) -> str:
        return f"'{self.model}' version {self.version}"


@dataclass(frozen=True, slots=True, kw_only=True)
class InferRequest:
    """An accepted request. Every field is set once, by the gateway."""

    request_id: str
    lane: Lane
    inputs: Mapping[str, Array]
    """Arrays [rows, ...] that fit the lane's signature."""
    rows: int
    deadline: float
    """`time.monotonic()` second after which nobody wants the reply."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InferReply:
    """What a worker answers. Every field is set once, by the worker."""

    outputs: Mapping[str, Array]
    """Arrays [rows, ...]; rows as in the request."""
    batch_rows: int
    """Rows of the whole batch this request ran in."""
    queue_s: float
    execution_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedVersion:
    """What inference announces of one version, and all that a gateway knows about it."""

    lane: Lane
    state: Literal["loading", "ready", "failed"]
    reason: str = ""
    """Why it is not ready."""
    signature: Signature | None = None
    """Known once the manifest has been read; always there when ready."""
    platform: str = ""
    """The protocol's platform string, such as `onnx_onnxv1`."""
    artifact: str = ""
    """Name of the artifact that runs."""
