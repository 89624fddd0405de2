"""Output path options, which are checked for write permission before the work starts."""

import os
from pathlib import Path
from typing import TypeVar

import typer

Named = TypeVar("Named", str, Path, None)


def writable_file(path: Named) -> Named:
    """Checks a file to write; a callback of options.

    Raises:
        typer.BadParameter: the path is a folder, or its folder is not writable.
    """
    if path is not None:
        if Path(path).is_dir():
            raise typer.BadParameter(f"'{path}' is a folder; give the path of a file")
        _check_folder(Path(path).absolute().parent, path)
    return path


def writable_folder(path: Named) -> Named:
    """Checks a folder to write, which may not exist yet; a callback of options.

    Raises:
        typer.BadParameter: it cannot be created, or is not writable.
    """
    if path is not None:
        folder = Path(path).absolute()
        while not folder.exists() and not folder.is_symlink() and folder != folder.parent:
            folder = folder.parent
        _check_folder(folder, path)
    return path


def _check_folder(folder: Path, given: str | Path) -> None:
    if not folder.exists():
        raise typer.BadParameter(f"'{given}': there is no folder '{folder}'; make it first")
    if not folder.is_dir():
        raise typer.BadParameter(f"'{given}': '{folder}' is a file; give another path")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise typer.BadParameter(f"'{given}': '{folder}' cannot be written to; give another path")
