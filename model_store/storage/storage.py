"""Stores files at a URL: a folder or a bucket, through obstore, with errors of our own.

In: paths relative to the URL. Rules: a file appears whole or not at all; `create` never replaces an
existing file; no data is read of a file above the reader's size limit, nor of anything but a
regular file (opening a pipe would block); every failure is a `StoreError` that names the path;
the folder is created when it is opened, unless the opener awaits it, and never by a write, so that
nothing is written to the place of a volume that was unmounted.
"""

import contextlib
import errno
import itertools
import logging
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from model_store.errors import (
    ConflictError,
    StorageError,
    StorageFullError,
    StoreError,
    StoreGoneError,
    StoreNotFoundError,
    TooLargeError,
)
from model_store.host.nearest_folder import nearest_folder
from model_store.storage.buckets import URL_FORMS, open_bucket
from model_store.storage.mounted_folder import FolderIdentity, MountedFolder
from model_store.storage.plain_file import (
    NotPlainFileError,
    OversizedFileError,
    open_plain_file,
    read_plain_file,
)

if TYPE_CHECKING:
    from obstore.store import ObjectStore

logger = logging.getLogger("flambeau.store")

WhenMissing = Literal["create", "refuse", "await"]
"""What opening a missing folder does: create it, raise, or follow it once it is there."""

MAX_APPENDED_BYTES = 2**30
"""Limit of a file in a bucket that is appended to: appending reads and writes the whole file."""

_TOOK = re.compile(r" in [0-9.]+(ns|µs|ms|s)\b")
"""Duration of a request, in messages of obstore."""
FULL = frozenset((errno.ENOSPC, errno.EDQUOT, errno.EFBIG))
"""System errors of a disk without space, and of limits on users and on file sizes."""


class MissingFileError(StorageError):
    """The path does not exist; callers convert it to an error that names the missing object."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """Facts of a file that is not read."""

    size_bytes: int
    changed_s: float
    """Unix time of its last change."""
    content: tuple[int, int] | None = None
    """Device and inode, which hard links share; None in a bucket."""
    links: int = 1
    """Names of the content, whatever their folder."""


class Storage:
    """A flat set of files under one URL.

    Args:
        url: a folder (`./var/model_store`, `file:///srv/models`), or a bucket; see `buckets`.
        when_missing: `await` in a process that may replace another one, or restart while the
            volume is not mounted; calls raise `StoreGoneError` until the folder is there.
        known: the folder as another process of the server has opened it, if one has.

    Raises:
        StoreNotFoundError: the folder is refused, because it is missing.
        StorageError: the URL is not supported, the folder cannot be created, or there are no
            credentials for the bucket.

    Attributes:
        is_local: True if the URL is a folder.
        is_new: True if the folder was just created.
        url: the absolute path of the folder, or the URL.
    """

    def __init__(
        self,
        url: str,
        *,
        when_missing: WhenMissing = "create",
        known: FolderIdentity | None = None,
    ) -> None:
        folder = folder_of(url)
        self.is_local = folder is not None
        self.is_new = False
        self._nearest: Path | None = None
        self._objects: ObjectStore | None = None
        self._folder: MountedFolder | None = None
        try:
            if folder is not None:
                self.url = str(folder)
                self._folder = MountedFolder(folder, known)
                if when_missing == "await":
                    self._await(folder, self._folder)
                else:
                    self._open(folder, self._folder, when_missing)
            else:
                self._objects = open_bucket(url)
                self.url = url.rstrip("/")
        except (OSError, ValueError) as error:
            raise StorageError(
                f"cannot open the store {url!r}: {_first_line(error)}; give a folder, {URL_FORMS}"
            ) from error

    def _await(self, folder: Path, mounted: MountedFolder) -> None:
        try:
            _refuse_file(folder)
            mounted.is_there()
        except NotADirectoryError:
            raise
        except OSError as error:  # a stale mount, for example: each call says so until it is over
            logger.warning("store's folder cannot be read", extra={"reason": str(error)})

    def _open(self, folder: Path, mounted: MountedFolder, when_missing: WhenMissing) -> None:
        is_missing = not folder.exists()
        _refuse_file(folder)
        self._nearest = nearest_folder(folder) if is_missing else None
        if is_missing and when_missing == "refuse":
            raise StoreNotFoundError(
                f"there is no store {folder}: no such folder{self._did_you_mean()}; give "
                "the URL of a store that exists, or publish a first version into it "
                "(flambeau train)"
            )
        folder.mkdir(parents=True, exist_ok=True)
        self.is_new = is_missing
        mounted.is_there()

    @property
    def identity(self) -> FolderIdentity | None:
        """The folder that was there last; None for a bucket, or one not there yet."""
        return self._folder.identity if self._folder else None

    @property
    def _store(self) -> "ObjectStore":
        """Returns obstore's object; serving from a folder needs none, nor 8 MB for the library."""
        if self._objects is None:
            from obstore.store import LocalStore

            self._objects = LocalStore(self.url)
        return self._objects

    def how_new(self) -> str:
        """Reports a folder just created, and a similar existing one; empty if it existed."""
        if not self.is_new:
            return ""
        made = f"there was no folder {self.url}, so an empty store was created there"
        return f"{made}{self._did_you_mean()}"

    def _did_you_mean(self) -> str:
        return f" (did you mean '{self._nearest}'?)" if self._nearest else ""

    def check_there(self) -> None:
        """Checks that the folder which was opened is still there; a bucket always passes.

        Raises:
            StoreGoneError: it is missing, or an empty folder has taken its place.
        """
        if self._folder is None:
            return
        with self._failures("look for the folder"):
            if self._folder.is_there():
                return
        if self.identity is None:
            raise StoreGoneError(
                f"the store's folder is not there: {self.url} was not made yet, or its volume is "
                "not mounted; mount it, or publish a first version there (flambeau train)"
            )
        raise StoreGoneError(
            f"the store's folder is gone: {self.url} was moved or deleted, or its volume is not "
            "mounted; nothing was written; mount it or move it back, then try again"
        )

    def list(self, prefix: str = "") -> dict[str, int]:
        """Returns the size in bytes of every file under a prefix, by path."""
        with self._failures(f"list '{prefix}'"):
            import obstore

            return {
                meta["path"]: meta["size"]
                for page in obstore.list(self._store, prefix or None)
                for meta in page
            }

    def details(self, prefix: str) -> dict[str, StoredFile]:
        """Returns the facts of every file below a folder, by path.

        Args:
            prefix: path of the folder, with a slash at its end. In a local one, files that a
                killed writer left unfinished are found, too, which `list` leaves out.
        """
        with self._failures(f"list '{prefix}'"):
            if self.is_local:
                return dict(self._local_details(prefix))
            import obstore

            return {
                meta["path"]: StoredFile(meta["size"], meta["last_modified"].timestamp())
                for page in obstore.list(self._store, prefix)
                for meta in page
            }

    def _local_details(self, prefix: str) -> Iterator[tuple[str, StoredFile]]:
        for folder, _, files in os.walk(os.path.join(self.url, prefix)):
            for name in files:
                place = os.path.join(folder, name)
                with contextlib.suppress(FileNotFoundError):
                    found = os.lstat(place)
                    yield (
                        Path(place).relative_to(self.url).as_posix(),
                        StoredFile(
                            found.st_size,
                            found.st_mtime,
                            (found.st_dev, found.st_ino),
                            found.st_nlink,
                        ),
                    )

    def some_paths(self, max_depth: int, max_paths: int) -> Sequence[str]:
        """Returns a sample of the files at the URL, to recognise their layout.

        Args:
            max_depth: levels of a folder to list; folders at the last level are returned like
                files. Ignored for a bucket.
            max_paths: limit of the paths returned, and of the folders listed.
        """
        with self._failures("list ''"):
            found = self._walk(max_depth, max_paths) if self.is_local else self._keys()
            return list(itertools.islice(found, max_paths))

    def _walk(self, max_depth: int, max_folders: int) -> Iterator[str]:
        for folder, folders, files in itertools.islice(os.walk(self.url), max_folders):
            place, found = Path(folder).relative_to(self.url), files
            if len(place.parts) + 1 >= max_depth:
                found = [*files, *folders]
                folders.clear()
            yield from ((place / name).as_posix() for name in sorted(found))

    def _keys(self) -> Iterator[str]:
        import obstore

        for page in obstore.list(self._store):
            yield from (meta["path"] for meta in page)

    def names(self, folder: str = "") -> Sequence[str]:
        """Returns the files and folders in a folder; none if it is missing. Not for buckets."""
        with self._failures(f"list '{folder}'"):
            try:
                return os.listdir(os.path.join(self.url, folder))
            except (FileNotFoundError, NotADirectoryError):
                return ()

    def has(self, path: str) -> bool:
        """Returns True if a file or folder exists. Not for buckets."""
        with self._failures(f"look for '{path}'"):
            try:
                os.stat(os.path.join(self.url, path))
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def changed_s(self, path: str) -> float | None:
        """Returns the Unix time of the last change of a file or folder, or None if it is missing.

        Not for buckets.
        """
        with self._failures(f"look for '{path}'"):
            try:
                return os.stat(os.path.join(self.url, path)).st_mtime
            except (FileNotFoundError, NotADirectoryError):
                return None

    def get(self, path: str, max_bytes: int) -> bytes:
        """Reads a whole file.

        Args:
            path: path of the file.
            max_bytes: limit of its size.

        Raises:
            MissingFileError: no such file.
            TooLargeError: it is larger than the limit; none of it was read.
        """
        with self._failures(f"read '{path}'"):
            if self.is_local:
                return self._get_local(path, max_bytes)
            import obstore

            found = obstore.get(self._store, path)
            if found.meta["size"] > max_bytes:
                raise self._too_large(path, found.meta["size"], max_bytes)
            return bytes(found.bytes())

    def _get_local(self, path: str, max_bytes: int) -> bytes:
        try:
            return read_plain_file(os.path.join(self.url, path), max_bytes)
        except NotPlainFileError as error:
            raise StorageError(
                f"cannot read '{path}' in {self.url}: it is not a file; remove it"
            ) from error
        except OversizedFileError as error:
            raise self._too_large(path, error.size_bytes, max_bytes) from error

    def _too_large(self, path: str, size_bytes: int, max_bytes: int) -> TooLargeError:
        return TooLargeError(
            f"cannot read '{path}' in {self.url}: it has {size_bytes:,} bytes, and at most "
            f"{max_bytes:,} are read"
        )

    def get_part(self, path: str, start: int, size_bytes: int) -> bytes:
        """Reads a part of a file: fewer bytes if it ends before.

        Raises:
            MissingFileError: no such file.
        """
        with self._failures(f"read '{path}'"):
            if self.is_local:
                with open_plain_file(os.path.join(self.url, path)) as file:
                    file.seek(start)
                    return file.read(size_bytes)
            import obstore

            found = obstore.get_range(self._store, path, start=start, length=size_bytes)
            return bytes(found)

    def create(self, path: str, data: bytes) -> None:
        """Writes a file that must not exist yet.

        Raises:
            ConflictError: it exists already.
            StoreGoneError: the folder of the store is gone.
        """
        import obstore

        self.check_there()
        with self._failures(f"write '{path}'"):
            obstore.put(self._store, path, data, mode="create")

    def replace(self, path: str, data: bytes) -> None:
        """Writes a file and replaces an existing one.

        Raises:
            StoreGoneError: the folder of the store is gone.
        """
        import obstore

        self.check_there()
        with self._failures(f"write '{path}'"):
            obstore.put(self._store, path, data)

    def append_private(self, path: str, data: bytes) -> None:
        """Appends to a file with a single writer, and creates it if it is missing.

        In a folder, only the owner of the file may read it. A writer killed during the call leaves
        a part of the data; one without disk space leaves none. A bucket cannot append: the whole
        file is read and written, and the bucket's policy decides who may read it.

        Raises:
            StoreGoneError: the folder of the store is gone.
        """
        if not self.is_local:
            with contextlib.suppress(MissingFileError):
                data = self.get(path, MAX_APPENDED_BYTES) + data
            self.replace(path, data)
            return
        self.check_there()
        with self._failures(f"append to '{path}'"):
            place = Path(self.url, path)
            place.parent.mkdir(parents=True, exist_ok=True)
            # Created with mode 0600, so that other users can never read it.
            file = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            try:
                append_whole(file, data)
            finally:
                os.close(file)

    def delete(self, path: str) -> None:
        """Deletes a file; a missing file is not an error.

        Never called for a file of a published version: versions are immutable.
        """
        with contextlib.suppress(MissingFileError), self._failures(f"delete '{path}'"):
            if self.is_local:  # obstore refuses the names of unfinished files
                os.unlink(os.path.join(self.url, path))
                return
            import obstore

            obstore.delete(self._store, path)

    @contextlib.contextmanager
    def _failures(self, action: str) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except (FileNotFoundError, NotADirectoryError) as error:
            raise MissingFileError(f"cannot {action} in {self.url}: not found") from error
        except Exception as error:
            if not isinstance(error, OSError):
                from obstore.exceptions import AlreadyExistsError, BaseError

                if isinstance(error, AlreadyExistsError):
                    message = f"cannot {action} in {self.url}: it already exists"
                    raise ConflictError(message) from error
                if not isinstance(error, BaseError):
                    raise
            reason = f"cannot {action} in {self.url}: {_first_line(error)}"
            if self.is_local and _is_full(error):
                raise StorageFullError(f"{reason}; make room there, then try again") from error
            raise StorageError(
                f"{reason}; {self._what_to_check(reason)}, then try again"
            ) from error

    def _what_to_check(self, reason: str) -> str:
        if self.is_local:
            return "check free space and permissions"
        if "builder error" in reason:  # of the HTTP client: it sends nothing without TLS
            return (
                "check the URL of the endpoint (AWS_ENDPOINT_URL); one at http:// needs "
                "AWS_ALLOW_HTTP=true"
            )
        return (
            "check the bucket's name and region, the credentials' rights, and that this machine "
            "reaches it"
        )


def folder_of(url: str) -> Path | None:
    """Returns the folder that a URL names, as an absolute path; None for a bucket.

    Raises:
        StorageError: it is in the home folder of a user who has none.
    """
    if "://" in url and not url.startswith("file://"):
        return None
    try:
        return Path(url.removeprefix("file://")).expanduser().absolute()
    except RuntimeError as error:
        raise StorageError(f"cannot open the store {url!r}: {error}; give its path") from error


def _refuse_file(folder: Path) -> None:
    """Raises NotADirectoryError if a path that is to be a folder leads to a file."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise NotADirectoryError(f"{there} is a file")


def append_whole(file: int, data: bytes | memoryview) -> None:
    """Writes all of the data; truncates the file to its former size if that fails."""
    before, left = os.fstat(file).st_size, memoryview(data)
    try:
        while left:
            left = left[os.write(file, left) :]
    except OSError:
        os.ftruncate(file, before)
        raise


def _is_full(error: Exception) -> bool:
    """Returns True for a full disk; obstore has the system's error in its words alone."""
    if isinstance(error, OSError):
        return error.errno in FULL
    return any(f"(os error {number})" in str(error) for number in FULL)


def _first_line(error: BaseException) -> str:
    """Returns the reason, without the time that obstore took: a repeated fault has the same."""
    return _TOOK.sub("", str(error).strip().split("\n", 1)[0])
