"""A TorchServe archive as a version of the store: a Python model of one request a row.

In: an unpacked archive, and how it is to run. Out: a published version, whose files are small: the
archive's own stay in their folder, or travel with the version as one file.

Rules: the golden row of a version that is served from a folder is the greeting, which its process
answers once the handler is initialized, since nobody knows an input of it; such a version says how
many processes run it, and how long a start and a batch may take, as TorchServe's callers do.
"""

import hashlib
import tempfile
from collections.abc import Mapping
from pathlib import Path

from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.tensors import object_array
from model_store.archives.archive_settings import ArchiveSettings, RunSettings
from model_store.archives.handler_calls import (
    GREETED,
    GREETING,
    REQUEST,
    RESPONSE,
    signature_of,
)
from model_store.archives.model_archive import ModelArchive
from model_store.golden import GoldenRows
from model_store.manifest import (
    Artifact,
    Draft,
    FileEntry,
    Golden,
    Lineage,
    Manifest,
    ModelFolder,
    PythonModel,
    Verification,
)
from model_store.python_models.answers import MAX_FOLDER_TEXT_BYTES
from model_store.store import ModelStore
from model_store.tolerance import Tolerance

SOURCE_FILE, GOLDEN_FILE = "model.py", "golden.safetensors"
_CLASS, _CLASS_IN_PARTS = "ArchivedModel", "ArchivedModelInParts"


def class_of(archive: ModelArchive) -> str:
    """Returns the name of the class that runs an archive."""
    return _CLASS_IN_PARTS if archive.gives_parts else _CLASS


def source_of(class_name: str, module: str = "flambeau.torchserve.archived_model") -> bytes:
    """Returns the Python file of a version of an archive.

    Args:
        class_name: class that runs the handler.
        module: its module.
    """
    lines = (
        '"""Runs the handler of a TorchServe archive."""',
        "",
        f"from {module} import {class_name} as {class_name}",
    )
    return ("\n".join(lines) + "\n").encode()


def settings_of(archive: ModelArchive, name: str, run: RunSettings) -> ArchiveSettings:
    """Returns how the handler of an archive is opened from its folder."""
    return ArchiveSettings(
        folder=str(archive.folder.resolve()),
        model_name=name,
        handler=run.handler or archive.manifest.model.handler,
        envelope=run.envelope or archive.manifest.model.envelope,
        batch_size=run.batch_size,
        limit_max_image_pixels=run.limit_max_image_pixels,
        decode_input_request=run.decode_input_request,
        metrics=run.metrics,
        max_answer_bytes=MAX_FOLDER_TEXT_BYTES,
    )


def artifact_of(
    archive: ModelArchive, name: str, run: RunSettings, file: FileEntry, class_name: str
) -> Artifact:
    """Returns the artifact of an archive, run from its folder.

    Args:
        archive: the unpacked archive.
        name: name of the model.
        run: how it is run.
        file: the file that `source_of` returns.
        class_name: class in that file.
    """
    python = PythonModel(
        name=class_name,
        args=settings_of(archive, name, run).model_dump(mode="json"),
        folder=ModelFolder(
            size_bytes=archive.size_bytes,
            instances=run.workers,
            execution_timeout_s=run.response_timeout_s,
            open_time_limit_s=run.startup_timeout_s,
        ),
    )
    exact = Tolerance(max_abs_difference=0.0, min_agreement=1.0)
    return Artifact(
        name="python",
        kind="python",
        precision="fp32",
        file=file,
        python=python,
        verification=Verification(
            max_abs_difference=0.0, agreement=1.0, metrics={}, tolerance=exact
        ),
        latency_ms={},
    )


def publish_archive(
    store: ModelStore,
    archive: ModelArchive,
    name: str,
    run: RunSettings,
    metadata: Mapping[str, str] | None = None,
) -> Manifest:
    """Publishes an archive as the next version of a model, run from its folder.

    Args:
        store: a store of this machine.
        archive: the unpacked archive, whose folder stays as long as the version is served.
        name: name of the model.
        run: how it is run.
        metadata: text to keep with the version.

    Raises:
        StoreError: the name is not allowed, or the store cannot be written.
    """
    with tempfile.TemporaryDirectory(prefix="flambeau-archive-") as made:
        draft = _draft(archive, name, run, metadata or {}, Path(made))
        return store.publish(draft, Path(made))


def _draft(
    archive: ModelArchive, name: str, run: RunSettings, metadata: Mapping[str, str], folder: Path
) -> Draft:
    golden = GoldenRows(
        {REQUEST: object_array([GREETING])}, {RESPONSE: object_array([GREETED])}
    ).to_bytes()
    class_name = class_of(archive)
    file = _written(folder, SOURCE_FILE, source_of(class_name))
    model = archive.manifest.model
    return Draft(
        model=name,
        signature=signature_of(run.batch_size, _sequences(run)),
        artifacts=(artifact_of(archive, name, run, file, class_name),),
        golden=Golden(file=_written(folder, GOLDEN_FILE, golden), rows=1),
        lineage=Lineage(
            recipe_sha256=archive.sha256,
            data_sha256=hashlib.sha256(golden).hexdigest(),
            imported_from=f"TorchServe archive {model.name} {model.version}",
            git_commit=None,
            library_versions={},
            metrics={},
        ),
        metadata=dict(metadata),
        files=(),
    )


def _sequences(run: RunSettings) -> Sequences | None:
    """Returns the rules of an archive's sequences; None if its requests are independent."""
    if not run.sequence_idle_ms:
        return None
    return Sequences(
        max_idle_s=run.sequence_idle_ms / 1000,
        max_lifetime_s=run.sequence_timeout_ms / 1000 or None,
        max_sequences=run.max_sequences,
    )


def _written(folder: Path, name: str, data: bytes) -> FileEntry:
    (folder / name).write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    return FileEntry(file=name, sha256=digest, size_bytes=len(data))
