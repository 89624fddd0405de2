"""Exports a version for another server or tool: written, checked, and only then put in its place.

In: a version, a format, a path. Out: the file or folder there; or an error, and nothing there.
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
    """A kind of file or folder."""

    words: str
    write: Callable[[ExportRequest, Path], Exported]
    """Writes it to a path in a folder of its own, and checks it.

    Raises:
        ExportError, StoreError: the version cannot be in this format, or the check failed.
        OSError: the disk is full.
    """
    suffix: str = ""
    """Suffix of its name, after the model's."""
    marker: str = ""
    """A file of every folder of this format, by which one is recognised; empty for a file."""
    in_repository: bool = False
    """True if the folder is one of many in a repository, whose path is given."""

    def path_of(self, model: str, output: Path | None) -> Path:
        """Returns the path that is written."""
        if self.in_repository:
            return (output or Path()) / model
        return output or Path(f"{model}.{self.suffix}")


def _write_torchserve(request: ExportRequest, path: Path) -> Exported:
    from flambeau.exporting.torchserve_archive import write_torchserve_archive

    return write_torchserve_archive(request, path)


def _write_oci(request: ExportRequest, path: Path) -> Exported:
    from flambeau.exporting.oci_layout import write_oci_layout

    return write_oci_layout(request, path)


def _write_triton(request: ExportRequest, path: Path) -> Exported:
    from flambeau.exporting.triton_repository import write_triton_model

    return write_triton_model(request, path)


def _write_mlflow(request: ExportRequest, path: Path) -> Exported:
    from flambeau.exporting.mlflow_folder import write_mlflow_model

    return write_mlflow_model(request, path)


FORMATS = {
    "mar": ExportFormat(suffix="mar", words="TorchServe archive", write=_write_torchserve),
    "triton": ExportFormat(
        words="model of a Triton repository",
        write=_write_triton,
        marker="config.pbtxt",
        in_repository=True,
    ),
    "oci-layout": ExportFormat(
        suffix="oci", words="OCI image layout", write=_write_oci, marker="oci-layout"
    ),
    "mlflow": ExportFormat(
        suffix="mlflow", words="MLflow model", write=_write_mlflow, marker="MLmodel"
    ),
}
"""Formats by name."""


def export_version(
    request: ExportRequest, format: str, output: Path | None, *, replace: bool = False
) -> Exported:
    """Exports a version.

    Args:
        request: the version.
        format: a name in `FORMATS`.
        output: path of the file or folder, or of the repository that the folder shall lie in; None
            for the model's name in the working directory.
        replace: True to replace a file, or a folder of this format, that exists.

    Raises:
        ExportTargetError: the path exists, or cannot be written.
        ExportError, StoreError: see `ExportFormat.write`.
    """
    found = FORMATS[format]
    path = found.path_of(request.manifest.model, output)
    _check_free(path, found, replace)
    try:
        with tempfile.TemporaryDirectory(prefix=".flambeau-export-", dir=path.parent) as folder:
            exported = found.write(request, Path(folder) / path.name)
            _check_free(path, found, replace)
            _move(exported.path, path, Path(folder) / "replaced")
    except OSError as error:
        raise ExportTargetError(
            f"{path} cannot be written: {error.strerror or error}; free some space, or give "
            "another path with --output"
        ) from error
    return dataclasses.replace(exported, path=path)


def _move(made: Path, path: Path, replaced: Path) -> None:
    """Puts a file or a folder in its place; a folder that is there goes to the path `replaced`."""
    if not (made.is_dir() and path.exists()):
        os.replace(made, path)
        return
    os.replace(path, replaced)
    try:
        os.replace(made, path)
    except OSError:
        os.replace(replaced, path)
        raise


def _check_free(path: Path, found: ExportFormat, replace: bool) -> None:
    if found.marker:
        _check_folder(path, found, replace)
    elif path.exists() and not path.is_file():
        raise ExportTargetError(f"{path} is no regular file; give another path")
    if path.exists() and not replace:
        raise ExportTargetError(f"{path} exists; remove it, or add --force")
    if not path.parent.is_dir():
        raise ExportTargetError(f"there is no folder {path.parent}; make it, or give another path")


def _check_folder(path: Path, found: ExportFormat, replace: bool) -> None:
    """Checks that only a folder of this format is replaced."""
    if path.name in ("", ".."):
        raise ExportTargetError(f"{path} has no name; give the path of a new folder")
    if path.exists() and replace and not (path / found.marker).is_file():
        raise ExportTargetError(
            f"{path} has no {found.marker}, so it is no {found.words}, and --force replaces "
            "nothing else; give another path"
        )
