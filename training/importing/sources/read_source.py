"""Recognises files and folders of models by their content, and reads them.

Rule: the first source of `SOURCES` that recognises a path reads it; suffixes decide only where the
content of a format has no mark of its own.
"""

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, cast

from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.archive import member_names
from training.importing.sources.foreign_files import file_size
from training.importing.sources.source_options import SourceOptions
from training.importing.sources.triton.pipeline_draft import PipelineDraft
from training.importing.sources.triton.triton_model import CONFIG, is_model_folder

HEAD_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Contents:
    """The parts of a path by which a source is recognised."""

    path: Path
    head: bytes
    """First bytes of a file; empty for a folder."""
    members: frozenset[str]
    """Names in a torch archive, below its only folder."""

    @property
    def is_folder(self) -> bool:
        """True for a folder."""
        return self.path.is_dir()

    def has(self, *names: str) -> bool:
        """Returns True for a folder with a file of one of the names."""
        return self.is_folder and any((self.path / name).is_file() for name in names)


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One format of models."""

    words: str
    """Its name for people."""
    recognises: Callable[[Contents], bool]
    reader: str
    """Module of the reader; see `Reader`."""


class Reader(Protocol):
    """A module that reads one source."""

    def read(
        self, path: Path, options: SourceOptions, staging: Path
    ) -> "Original | list[Original | PipelineDraft]":
        """Reads the models.

        Raises:
            SourceError: the files are unsafe, damaged or incomplete.
            StoreError: a file is unsafe.
        """


_HERE = __name__.rpartition(".")[0]

SOURCES = (
    Source(
        words="TorchServe archive (.mar)",
        recognises=lambda found: (
            "MANIFEST.json" in found.members
            or found.has("MAR-INF/MANIFEST.json")
            or _ends(found, ".mar", ".tar.gz", ".tgz")
        ),
        reader=f"{_HERE}.torchserve_archive",
    ),
    Source(
        words="MLflow model folder",
        recognises=lambda found: found.has("MLmodel") or found.path.name == "MLmodel",
        reader=f"{_HERE}.mlflow_model",
    ),
    Source(
        words="Hugging Face folder",
        recognises=lambda found: found.has("config.json") and not found.has(CONFIG),
        reader=f"{_HERE}.hugging_face_folder",
    ),
    Source(
        words="Triton model repository",
        recognises=lambda found: found.path.name == CONFIG or _is_repository(found),
        reader=f"{_HERE}.triton.triton_repository",
    ),
    Source(
        words="AOTInductor package (.pt2)",
        recognises=lambda found: any("data/aotinductor/" in name for name in found.members),
        reader=f"{_HERE}.torch_programs.aoti_package",
    ),
    Source(
        words="exported program (.pt2)",
        recognises=lambda found: "archive_format" in found.members or _ends(found, ".pt2"),
        reader=f"{_HERE}.torch_programs.pt2_file",
    ),
    Source(
        words="TorchScript (.pt)",
        recognises=lambda found: "constants.pkl" in found.members,
        reader=f"{_HERE}.torch_programs.torchscript_file",
    ),
    Source(
        words="OpenVINO (.xml and .bin)",
        recognises=lambda found: _ends(found, ".xml") or b"<net " in found.head,
        reader=f"{_HERE}.openvino_file",
    ),
    Source(
        words="weights (.safetensors, .pt, .pth, .ckpt, .bin) with --network",
        recognises=lambda found: (
            "data.pkl" in found.members
            or _ends(found, ".safetensors", ".pt", ".pth", ".ckpt", ".bin", ".pkl")
        ),
        reader=f"{_HERE}.checkpoint",
    ),
    Source(
        words="ONNX (.onnx)",
        recognises=lambda found: _ends(found, ".onnx"),
        reader=f"{_HERE}.onnx_file",
    ),
)
"""All sources, in the order in which they are tried."""


def read_source(
    path: Path, options: SourceOptions, staging: Path
) -> list[Original | PipelineDraft]:
    """Reads the model, or the models, at a path.

    Args:
        path: a file or folder; its content is hostile.
        options: facts that the files do not contain.
        staging: an empty folder of ours for the copies.

    Returns:
        One original; for a Triton repository one for each model, then a draft for each ensemble.

    Raises:
        SourceError: no source recognises the path, or its reader refuses it.
        StoreError: a file is unsafe.
    """
    source = recognise(path)
    reader = cast(Reader, importlib.import_module(source.reader))
    found = reader.read(path, options, staging)
    return found if isinstance(found, list) else [found]


def recognise(path: Path) -> Source:
    """Returns the source that a path belongs to.

    Raises:
        SourceError: it does not exist, or no source recognises it.
    """
    if not path.exists():
        raise SourceError(f"there is no file or folder {path}; give the path of a model")
    head, members = b"", frozenset[str]()
    if not path.is_dir():
        file_size(path)
        with path.open("rb") as file:
            head = file.read(HEAD_BYTES)
        members = frozenset(member_names(path))
    found = Contents(path, head, members)
    for source in SOURCES:
        if source.recognises(found):
            return source
    what = "folder" if found.is_folder else "file"
    raise SourceError(
        f"{path} is no {what} of a model that is known here; give one of: "
        f"{', '.join(source.words for source in SOURCES)}"
    )


def _ends(found: Contents, *suffixes: str) -> bool:
    return not found.is_folder and found.path.name.lower().endswith(suffixes)


def _is_repository(found: Contents) -> bool:
    if not found.is_folder:
        return False
    return is_model_folder(found.path) or any(
        is_model_folder(one) for one in found.path.iterdir() if one.is_dir()
    )
