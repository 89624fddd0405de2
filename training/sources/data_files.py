"""Files of data: resolves them, checks their limits, and records their digests.

In: paths of a recipe, from the working directory. Out: files and folders that may be read, and
their entries for the lineage.

Rules: in an untrusted recipe no path and no link leads out of the folders that it may read; only
plain files are opened; sizes are checked before anything is read.
"""

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from flambeau.protocol.strict import nearest_name
from model_store.manifest import DataFile
from training.errors import DataError
from training.process.file_digest import file_sha256

GIB = 2**30


@dataclass(frozen=True, slots=True)
class DataReach:
    """Files and sizes that a run may read."""

    folders: tuple[Path, ...] | None = None
    """Folders that data must be in; None for any, if recipes are trusted."""
    max_bytes: int = 64 * GIB
    """Largest size of a file, of a folder's files together, and of the arrays made of them."""
    max_rows: int = 1_000_000_000
    """Maximum number of rows of one file."""
    max_files: int = 5_000_000
    """Maximum number of files of one folder."""

    def check_size(self, size_bytes: int, what: str) -> None:
        """Refuses sizes that are too large for memory.

        Raises:
            DataError: the size exceeds `max_bytes`.
        """
        if size_bytes > self.max_bytes:
            raise DataError(
                f"{what} has {size_bytes:,} bytes; {self.max_bytes:,} are the most that is read "
                "into memory: give fewer rows, or a `target` of your own"
            )

    def check_rows(self, rows: int, what: str) -> None:
        """Refuses too many rows.

        Raises:
            DataError: there are more than `max_rows`.
        """
        if rows > self.max_rows:
            raise DataError(f"{what} has {rows:,} rows; {self.max_rows:,} are the most; give fewer")


class DataFiles:
    """The files of one run's data.

    Args:
        reach: files and sizes that may be read.
        key: recipe key that names them, for messages.
    """

    def __init__(self, reach: DataReach, key: str = "data") -> None:
        self.reach = reach
        self._key = key
        self._noted: dict[str, DataFile] = {}

    @property
    def noted(self) -> tuple[DataFile, ...]:
        """Entries of the files that were read, in the order of paths."""
        return tuple(self._noted[path] for path in sorted(self._noted))

    def file(self, path: str) -> Path:
        """Resolves a file, and records it.

        Raises:
            DataError: it does not exist, is outside the permitted folders, or is too large.
        """
        found = self.place(path)
        if not found.is_file():
            raise DataError(f"{self._key}: {path} is not a file; {_what_it_is(found)}")
        size = found.stat().st_size
        self.reach.check_size(size, f"{self._key}: {path}")
        self._noted[path] = DataFile(path=path, sha256=file_sha256(found), size_bytes=size)
        return found

    def folder(self, path: str) -> tuple[Path, list[str]]:
        """Resolves a folder, with the paths in it; records it with all its files.

        Raises:
            DataError: as for `file`, about the folder and every file in it.
        """
        found = self.place(path)
        if not found.is_dir():
            raise DataError(f"{self._key}: {path} is not a folder; {_what_it_is(found)}")
        names = self._files_in(found, path)
        digest, size = hashlib.sha256(), 0
        for name in names:
            file = found / name
            self._check_inside(file, f"{path}/{name}")
            if not file.is_file():
                raise DataError(f"{self._key}: {path}/{name} is not a regular file; remove it")
            size += file.stat().st_size
            self.reach.check_size(size, f"{self._key}: {path}")
            digest.update(f"{file_sha256(file)}  {name}\n".encode("utf-8", "surrogateescape"))
        self._noted[path] = DataFile(
            path=path, sha256=digest.hexdigest(), size_bytes=size, files=len(names)
        )
        return found, names

    def _files_in(self, folder: Path, path: str) -> list[str]:
        """Returns paths of all files below a folder, sorted."""
        names: list[str] = []
        for parent, folders, files in os.walk(folder):
            for name in folders:
                if (Path(parent) / name).is_symlink():
                    raise DataError(
                        f"{self._key}: {path} has a link to a folder, {name}; links are not "
                        "followed: put the folder itself there"
                    )
            names += [str((Path(parent) / name).relative_to(folder)) for name in files]
            if len(names) > self.reach.max_files:
                raise DataError(f"{self._key}: {path} has more than {self.reach.max_files:,} files")
        return sorted(names)

    def is_folder(self, path: str) -> bool:
        """Returns True if a permitted path is a folder."""
        return self.place(path).is_dir()

    def place(self, path: str) -> Path:
        """Resolves a permitted path to a file or a folder.

        Raises:
            DataError: it does not exist, or is outside the permitted folders.
        """
        if "\0" in path:
            raise DataError(
                f"{self._key}: path {path!r} has a NUL in it; give a path of this machine"
            )
        found = Path(path)
        self._check_inside(found, path)
        if not found.exists():
            parent = found.parent
            known = sorted(os.listdir(parent))[:1000] if parent.is_dir() else []
            start = "the working directory"
            if self.reach.folders is not None:
                start = "the job's folder, and other data needs the path of a folder that the "
                start += "training service may read (--data-folder)"
            raise DataError(
                f"{self._key}: there is no {path}{nearest_name(found.name, known)}; paths start at "
                f"{start}"
            )
        return found

    def _check_inside(self, found: Path, path: str) -> None:
        if self.reach.folders is None:
            return
        real = found.resolve()
        if not any(real.is_relative_to(folder.resolve()) for folder in self.reach.folders):
            raise DataError(
                f"{self._key}: {path} is outside the folders that this run may read; put it into "
                "the code bundle, or have the operator add its folder (data_folders of the service)"
            )


def _what_it_is(found: Path) -> str:
    kind = "a folder" if found.is_dir() else "a file" if found.is_file() else "something else"
    return f"it is {kind}"
