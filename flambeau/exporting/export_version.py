"""Exports a version as a file of another server: written, checked, and only then put in its place.

In: a version, a format, a path. Out: the file there; or an error, and no file.
"""

import dataclasses
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flambeau.exporting.errors import ExportTargetError
from flambeau.exporting.export_request import Exported, ExportRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportFormat:
    """A kind of file."""

    suffix: str
    """Suffix of the file's name."""
    words: str
    write: Callable[[ExportRequest, Path], Exported]
    """Writes the file to a path in a folder of its own, and checks it.

    Raises:
        ExportError, StoreError: the version cannot be such a file, or the check failed.
        OSError: the disk is full.
    """


def _write_torchserve(request: ExportRequest, path: Path) -> Exported:
    from flambeau.exporting.torchserve_archive import write_torchserve_archive

    return write_torchserve_archive(request, path)


FORMATS = {
    "mar": ExportFormat(suffix="mar", words="TorchServe archive", write=_write_torchserve),
}
"""Formats by name."""


def export_version(
    request: ExportRequest, format: str, path: Path | None, *, replace: bool = False
) -> Exported:
    """Exports a version.

    Args:
        request: the version.
        format: a name in `FORMATS`.
        path: path of the file; None for the model's name in the working directory.
        replace: True to replace a file that exists.

    Raises:
        ExportTargetError: the file exists, or cannot be written.
        ExportError, StoreError: see `ExportFormat.write`.
    """
    found = FORMATS[format]
    path = path or Path(f"{request.manifest.model}.{found.suffix}")
    _check_free(path, replace)
    try:
        with tempfile.TemporaryDirectory(prefix=".flambeau-export-", dir=path.parent) as folder:
            exported = found.write(request, Path(folder) / path.name)
            _check_free(path, replace)
            os.replace(exported.path, path)
    except OSError as error:
        raise ExportTargetError(
            f"{path} cannot be written: {error.strerror or error}; free some space, or give "
            "another path with --output"
        ) from error
    return dataclasses.replace(exported, path=path)


def _check_free(path: Path, replace: bool) -> None:
    if path.exists() and not path.is_file():
        raise ExportTargetError(f"{path} is no regular file; give another path")
    if path.exists() and not replace:
        raise ExportTargetError(f"{path} exists; remove it, or add --force")
    if not path.parent.is_dir():
        raise ExportTargetError(f"there is no folder {path.parent}; make it, or give another path")
