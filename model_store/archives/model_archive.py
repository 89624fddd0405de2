"""One TorchServe archive, unpacked: its files, its manifest, and the settings of its model.

In: the path of a hostile archive, and a folder for its files. Out: a `ModelArchive`, or an error
and no folder.
"""

import hashlib
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

from model_store.archives.archive_files import PACKAGES, check_folder, reason_of, unpack_files
from model_store.archives.archive_manifest import (
    MANIFEST_PATH,
    ArchiveManifest,
    parse_archive_manifest,
)
from model_store.archives.model_config import MAX_CONFIG_BYTES, ModelConfig, parse_model_config
from model_store.document import LARGE
from model_store.errors import ModelArchiveError

DEFAULT_HANDLERS = frozenset(
    (
        "base_handler", "dali_image_classifier", "densenet_handler", "image_classifier",
        "image_segmenter", "object_detector", "text_classifier", "text_handler", "trt_llm_handler",
        "vision_handler", "vllm_handler",
    )
)  # fmt: skip
"""Handlers of the package torchserve, 0.12."""
_ASYNC_HANDLER = "vllm_handler"
"""A handler of TorchServe's that answers several batches at once, and sends parts meanwhile."""
_PARTS_CALL = re.compile(rb"\bsend_intermediate_predict_response\b")
MAX_SCANNED_BYTES = 2**24
"""Python source of an archive that is searched for calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelArchive:
    """An archive whose files are in a folder."""

    folder: Path
    manifest: ArchiveManifest
    config: ModelConfig
    size_bytes: int
    """Total size of its files."""
    sha256: str
    """Digest of the archive; of the manifest, if the archive is a folder."""
    has_handler_file: bool
    """True if the handler is a file of the archive, and not one of TorchServe's."""
    gives_parts: bool
    """True if its code sends intermediate responses."""

    @property
    def ignored(self) -> tuple[str, ...]:
        """Keys of the manifest and of the YAML file that are not followed, with the reasons."""
        unknown = (f"{MANIFEST_PATH}: '{key[:100]}' is unknown" for key in self.manifest.unknown())
        file = self.manifest.model.config_file
        return (*unknown, *(f"{file}: {reason}" for reason in self.config.ignored))


def open_archive(path: Path, target: Path) -> ModelArchive:
    """Unpacks an archive.

    Args:
        path: a `.mar`, a `.tar.gz`, or a folder of the same contents, which stays where it is.
        target: path of a folder to make for the files.

    Raises:
        ModelArchiveError: see `unpack_files`; or the manifest, the handler or another file that it
            names is missing or invalid.
    """
    if path.is_dir():
        return _described(path, path.name, check_folder(path), None)
    try:
        target.mkdir(parents=True, mode=0o700)
    except OSError as error:
        raise ModelArchiveError(
            f"the folder {target} for {path.name} cannot be made: {reason_of(error)}"
        ) from error
    try:
        size_bytes = unpack_files(path, target)
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return _described(target, path.name, size_bytes, digest)
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise


def _described(folder: Path, name: str, size_bytes: int, digest: str | None) -> ModelArchive:
    data = _read(folder, MANIFEST_PATH, name, LARGE.max_bytes)
    manifest = parse_archive_manifest(data, name)
    model = manifest.model
    for file in (model.serialized_file, model.model_file, model.requirements_file):
        if file is not None and not (folder / file).is_file():
            raise ModelArchiveError(
                f"{name} lacks '{file}', which its manifest names; make it again with that file"
            )
    config = ModelConfig()
    if model.config_file is not None:
        text = _read(folder, model.config_file, name, MAX_CONFIG_BYTES)
        config = parse_model_config(text, f"{name}: {model.config_file}")
    gives_parts = _sends_parts(folder)
    if gives_parts and config.sequence_idle_ms:
        reason = "'sequenceMaxIdleMSec' is not followed: the handler sends intermediate answers"
        config = replace(config, sequence_idle_ms=None, ignored=(*config.ignored, reason))
    has_handler_file = (folder / manifest.handler_file).is_file()
    default = model.handler.partition(":")[0]
    if not has_handler_file and default not in DEFAULT_HANDLERS:
        raise ModelArchiveError(
            f"{name} lacks the handler '{model.handler[:100]}': it has no {manifest.handler_file}, "
            f"and the default handlers are {', '.join(sorted(DEFAULT_HANDLERS))}; make it again "
            "with --handler FILE.py"
        )
    if not has_handler_file and default == _ASYNC_HANDLER:
        raise ModelArchiveError(
            f"{name} has the handler '{_ASYNC_HANDLER}', which answers several batches at once, "
            "and a worker here answers one after the other; serve the model with vLLM's own server"
        )
    return ModelArchive(
        folder=folder,
        manifest=manifest,
        config=config,
        size_bytes=size_bytes,
        sha256=digest or hashlib.sha256(data).hexdigest(),
        has_handler_file=has_handler_file,
        gives_parts=gives_parts,
    )


def _read(folder: Path, file: str, name: str, limit_bytes: int) -> bytes:
    path = folder / file
    if not path.is_file():
        raise ModelArchiveError(
            f"{name} lacks {file}; make it again with torch-model-archiver, which writes it"
        )
    if (size := path.stat().st_size) > limit_bytes:
        raise ModelArchiveError(
            f"{name}: {file} has {size:,} bytes, and at most {limit_bytes:,} are read"
        )
    return path.read_bytes()


def _sends_parts(folder: Path) -> bool:
    """Returns True if a Python file of the archive names the call that sends a part."""
    left = MAX_SCANNED_BYTES
    for path in sorted(folder.rglob("*.py")):
        if PACKAGES in path.relative_to(folder).parts[:1] or not path.is_file():
            continue
        if (left := left - path.stat().st_size) < 0:
            break
        if _PARTS_CALL.search(path.read_bytes()):
            return True
    return False
