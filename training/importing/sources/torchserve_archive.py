"""Reads a TorchServe archive: its network, or its handler as a Python model.

In: a `.mar`, a `.tar.gz` or a folder. Out: with a handler of TorchServe's own, the network that the
archive has (TorchScript, ONNX, or weights with their class); with another handler, a Python model
of bodies, in which the archive travels.

Rules: the archive is code, and runs in processes with limits; its handler's answers to the examples
are recorded, so they must be the same each time. What a handler of TorchServe's own does before and
after its network is not part of the version, and the user is told so.
"""

import ast
import dataclasses
import zipfile
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array, object_array
from model_store.archives.archive_settings import ARCHIVE_FILE, IMPORTED_CLASS, ArchiveSettings
from model_store.archives.archive_version import source_of
from model_store.archives.handler_calls import BODY
from model_store.archives.model_archive import ModelArchive, open_archive
from model_store.document import LARGE, parse_document
from model_store.errors import DocumentError
from training.errors import DataError, SourceError, TargetError
from training.importing.original import Original
from training.importing.sources import checkpoint, onnx_file
from training.importing.sources.python_source import MAX_BATCH_SIZE, python_original
from training.importing.sources.source_options import ONLY_INPUT, SourceOptions
from training.importing.sources.torch_programs import torchscript_file

LABELS = "index_to_name.json"
CONTENT_TYPE = "content_type"
_FILE = "imported_handler.py"


def read(path: Path, options: SourceOptions, staging: Path) -> Original:
    """Reads an archive.

    Args:
        path: the archive.
        options: examples, largest batch and limits.
        staging: folder of ours for the files.

    Raises:
        ModelArchiveError: it is damaged, unsafe or incomplete.
        SourceError: its network cannot be read, or is of a kind that is not served.
        DataError: examples are missing.
    """
    archive = open_archive(path, staging / "archive")
    if archive.has_handler_file:
        original = _handler(archive, path, options, staging)
    else:
        original = _labelled(_network(archive, path, options, staging), archive.folder)
    model = archive.manifest.model
    return dataclasses.replace(
        original,
        name=model.name,
        source=f"TorchServe archive {path.name} ({model.name} {model.version})",
        notes=(*archive.ignored, *_without_sequences(archive), *original.notes),
    )


def _without_sequences(archive: ModelArchive) -> tuple[str, ...]:
    """Returns a note where requests of the archive are those of sequences."""
    if not archive.config.sequence_idle_ms:
        return ()
    return (
        "'sequenceMaxIdleMSec' is not followed: requests of the imported version are independent; "
        "serve the archive itself (flambeau serve --torchserve)",
    )


def _network(archive: ModelArchive, path: Path, options: SourceOptions, staging: Path) -> Original:
    model = archive.manifest.model
    if model.serialized_file is None:
        raise SourceError(
            f"{path.name} has no serializedFile, so its handler '{model.handler}' has no network; "
            "make the archive with --serialized-file"
        )
    file, folder = archive.folder / model.serialized_file, staging / "network"
    folder.mkdir()
    if model.model_file is not None:
        name = _only_class(archive.folder / model.model_file)
        network = f"{archive.folder / model.model_file}:{name}"
        found = checkpoint.read(file, dataclasses.replace(options, network=network), folder)
    elif file.suffix == ".onnx":
        found = onnx_file.read(file, options, folder)
    elif file.suffix == ".pt":
        found = torchscript_file.read(file, options, folder)
    else:
        raise SourceError(
            f"{path.name} has the network {file.name}, and .pt and .onnx are read; archive a "
            "TorchScript or an ONNX file, or weights with --model-file"
        )
    note = (
        f"what the handler '{model.handler}' does before and after the network is not part of the "
        "version: it takes and gives tensors"
    )
    return dataclasses.replace(found, notes=(*found.notes, note))


def _only_class(file: Path) -> str:
    """Returns the name of the only class of a file, as TorchServe wants it."""
    try:
        module = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError) as error:
        raise SourceError(f"{file.name} is no Python file: {error}; correct it") from error
    names = [node.name for node in module.body if isinstance(node, ast.ClassDef)]
    if len(names) != 1:
        raise SourceError(
            f"{file.name} has the classes {', '.join(names) or 'none'}, and the network of the "
            "archive is its only class; leave one"
        )
    return names[0]


def _labelled(original: Original, folder: Path) -> Original:
    """Returns the network with the names of its classes, if the archive has one for each."""
    path, outputs = folder / LABELS, original.signature.outputs
    if not path.is_file() or len(outputs) != 1:
        return original
    try:
        document = parse_document(path.read_bytes(), LABELS, LARGE)
        named = [document[str(number)] for number in range(len(document))]
        labels = [value[-1] if isinstance(value, list) else value for value in named]
        fields = original.signature.model_dump() | {"labels": {outputs[0].name: labels}}
        signature = Signature.model_validate(fields)
    except (DocumentError, ValidationError, KeyError, TypeError, IndexError) as error:
        told = " ".join(str(error).split())[:200]
        note = f"{LABELS} does not name the classes of the output: {told}"
        return dataclasses.replace(original, notes=(*original.notes, note))
    return dataclasses.replace(original, signature=signature)


def _handler(archive: ModelArchive, path: Path, options: SourceOptions, staging: Path) -> Original:
    """Returns the handler as a Python model, whose examples are bodies of requests."""
    model, rows = archive.manifest.model, options.max_batch_size or MAX_BATCH_SIZE
    if archive.gives_parts:
        raise SourceError(
            f"{path.name} sends intermediate responses, which a version of bodies does not give; "
            "serve the archive as it is"
        )
    settings = ArchiveSettings(
        folder="",
        model_name=model.name,
        handler=model.handler,
        envelope=model.envelope,
        batch_size=rows,
        content_type=_content_type(path, options),
    )
    file, bodies = staging / _FILE, _bodies(path, options)
    file.write_bytes(source_of(IMPORTED_CLASS))
    try:
        return python_original(
            file,
            IMPORTED_CLASS,
            settings.model_dump(mode="json"),
            {ARCHIVE_FILE: _as_file(path, staging)},
            {BODY: bodies},
            staging,
            max_batch_size=rows,
            called=f"the handler '{model.handler}' of {path.name}",
        )
    except TargetError as error:
        if settings.content_type or not all(map(_seems_json, bodies.tolist())):
            raise
        raise TargetError(
            f"{error}; it got the bodies as bytes: if it expects decoded JSON, give --args "
            f"'{{{CONTENT_TYPE}: application/json}}'"
        ) from error


def _seems_json(body: bytes) -> bool:
    return body.lstrip()[:1] in (b"{", b"[")


def _content_type(path: Path, options: SourceOptions) -> str:
    """Returns the content type of the bodies; empty for bytes.

    Raises:
        SourceError: another argument, or no text.
    """
    given = dict(options.args)
    found = given.pop(CONTENT_TYPE, "")
    if given or not isinstance(found, str):
        raise SourceError(
            f"{path.name} has a handler of its own, which takes no arguments; of --args, only "
            f"'{{{CONTENT_TYPE}: application/json}}' has a meaning: the handler gets decoded JSON"
        )
    return found


def _as_file(path: Path, staging: Path) -> Path:
    """Returns the path of the archive as one file."""
    if not path.is_dir():
        return path
    made = staging / ARCHIVE_FILE
    with zipfile.ZipFile(made, "w") as archive:
        for file in sorted(path.rglob("*")):
            if file.is_file():
                archive.write(file, file.relative_to(path))
    return made


def _bodies(path: Path, options: SourceOptions) -> Array:
    """Returns the examples as bodies: text, or rows of bytes.

    Raises:
        DataError: there are none, or they are no bodies.
    """
    examples = options.examples or {}
    if examples.keys() - {BODY, ONLY_INPUT} or len(examples) != 1:
        raise DataError(
            f"{path.name} has a handler of its own, whose answers are recorded; give --examples "
            f"x.npz with '{BODY}', bodies of requests: text or bytes [rows], or UINT8 [rows, bytes]"
        )
    array = next(iter(examples.values()))
    if array.dtype == np.uint8 and array.ndim == 2:
        return object_array([row.tobytes() for row in array])
    if array.dtype.kind in "SO" and array.ndim == 1:
        return object_array([bytes(element) for element in array.tolist()])
    raise DataError(
        f"the example '{BODY}' is {array.dtype} {list(array.shape)}; give text or bytes [rows], or "
        "UINT8 [rows, bytes]"
    )
