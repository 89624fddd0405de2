"""Settings of a version whose Python model is a TorchServe archive. Plain values."""

from typing import Annotated

from pydantic import Field

from flambeau.protocol.sequence_spec import MAX_OPEN
from flambeau.protocol.strict import StrictModel
from model_store.archives.model_config import MAX_IDLE_MS
from model_store.archives.model_metrics import ModelMetric
from model_store.manifest import Artifact
from model_store.python_models.answers import MAX_TEXT_BYTES

ARCHIVE_FILE = "archive.mar"
"""Name of the archive among the side files of a version that it travels with."""
IMPORTED_CLASS = "ImportedHandler"
"""Class of such a version, in `flambeau.torchserve.archived_model`."""
MAX_BATCH_SIZE, MAX_WORKERS = 65_536, 64


class ArchiveSettings(StrictModel):
    """Settings with which the handler of an archive is opened: `python.args` of its version."""

    folder: str
    """Folder of the archive's files; empty if they travel with the version."""
    model_name: str
    handler: str
    envelope: str | None = None
    batch_size: Annotated[int, Field(ge=1)]
    limit_max_image_pixels: bool = True
    decode_input_request: bool = True
    """True if handlers get JSON and text decoded."""
    metrics: tuple[ModelMetric, ...] = ()
    """Metrics that the handler finds by `get_metric`."""
    content_type: str = ""
    """Content type of the bodies of an imported handler; empty for bytes."""
    max_answer_bytes: Annotated[int, Field(ge=1)] = MAX_TEXT_BYTES
    """Limit of the answers of a batch together."""


class RunSettings(StrictModel):
    """Settings with which a registered archive is run."""

    batch_size: Annotated[int, Field(ge=1, le=MAX_BATCH_SIZE)] = 1
    workers: Annotated[int, Field(ge=1, le=MAX_WORKERS)] = 1
    response_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    startup_timeout_s: Annotated[float, Field(gt=0, le=86_400)] = 120.0
    handler: str | None = None
    """Handler in place of the archive's."""
    envelope: str | None = None
    limit_max_image_pixels: bool = True
    decode_input_request: bool = True
    sequence_idle_ms: Annotated[int, Field(ge=0, le=MAX_IDLE_MS)] = 0
    """Time without a request after which a sequence ends; 0 if requests are independent."""
    sequence_timeout_ms: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Time from its first request after which a sequence ends; 0 for no such limit."""
    metrics: tuple[ModelMetric, ...] = ()
    max_sequences: Annotated[int, Field(ge=1, le=MAX_OPEN)] = 1


def is_imported(artifact: Artifact) -> bool:
    """Returns True if a version is the handler of an archive that was imported."""
    return (
        artifact.python is not None
        and artifact.python.name == IMPORTED_CLASS
        and any(entry.file == ARCHIVE_FILE for entry in artifact.python.files)
    )
