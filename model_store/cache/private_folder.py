"""A folder of one user's small and large files, which several processes read and replace.

Rules: the folder and its files are for this user alone (0700 and 0600); no symbolic link in it is
followed, and nothing but a regular file is read; a file appears whole or not at all; a file that
is being read is not evicted.
"""

import contextlib
import errno
import fcntl
import os
import stat
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ABANDONED_S = 3600
"""Age in seconds of a draft whose writer was killed: a whole file is written within minutes."""
DRAFT = ".draft-"
"""Beginning of the names of files that are being written."""

_PLAIN = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK
"""Opens neither what a link names, nor a pipe that has no writer and would block."""
_ABSENT = frozenset((errno.ENOENT, errno.ELOOP, errno.ENXIO))


@dataclass(frozen=True, slots=True)
class KeptFile:
    """A file of the folder."""

    name: str
    size_bytes: int
    used_ns: int
    """Unix time of its last use, in nanoseconds."""


class PrivateFolder:
    """Files by name, for this user alone.

    Args:
        path: the folder, which is created at the first use.
        now_ns: clock of the last uses, in Unix nanoseconds.
    """

    def __init__(self, path: Path, now_ns: Callable[[], int] = time.time_ns) -> None:
        self.path = path
        self._now_ns = now_ns

    def read(self, name: str, max_bytes: int, *, mark: bool = False) -> bytes | None:
        """Reads a file; None if it is missing, or not a file of ours.

        Args:
            name: name of the file.
            max_bytes: limit of its size; a larger one counts as missing.
            mark: True to mark it as used now.

        Raises:
            OSError: the folder is not private, or cannot be read.
        """
        with self._opened() as folder:
            try:
                file = os.open(name, _PLAIN, dir_fd=folder)
            except OSError as error:
                if error.errno in _ABSENT:
                    return None
                raise
            try:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode) or found.st_size > max_bytes:
                    return None
                if not _locked(file, fcntl.LOCK_SH):
                    return None  # it is being evicted
                if mark:
                    self._mark(file)
                with open(file, "rb", closefd=False) as opened:
                    data = opened.read(max_bytes + 1)
            finally:
                os.close(file)
            return data if len(data) <= max_bytes else None

    def write(self, name: str, data: bytes) -> None:
        """Writes a file beside its place and renames it, which replaces an old one.

        Raises:
            OSError: the folder is not private, the disk is full, or it cannot be written.
        """
        draft = f"{DRAFT}{uuid.uuid4().hex}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        with self._opened() as folder:
            file = os.open(draft, flags, 0o600, dir_fd=folder)
            try:
                with open(file, "wb") as opened:
                    opened.write(data)
                    opened.flush()
                    self._mark(file)
                os.replace(draft, name, src_dir_fd=folder, dst_dir_fd=folder)
            except OSError:
                with contextlib.suppress(OSError):
                    os.unlink(draft, dir_fd=folder)
                raise

    def mark(self, name: str) -> None:
        """Marks a file as used now, if it exists.

        Raises:
            OSError: the folder is not private, or cannot be written.
        """
        now = self._now_ns()
        with self._opened() as folder, contextlib.suppress(FileNotFoundError):
            os.utime(name, ns=(now, now), dir_fd=folder, follow_symlinks=False)

    def used_ns(self, name: str) -> int | None:
        """Returns when a file was last used, in Unix nanoseconds; None if it is missing."""
        with self._opened() as folder:
            try:
                return os.stat(name, dir_fd=folder, follow_symlinks=False).st_mtime_ns
            except FileNotFoundError:
                return None

    def remove(self, name: str) -> bool:
        """Removes a file or a link; returns False if that cannot be done, as for a folder."""
        with self._opened() as folder:
            try:
                os.unlink(name, dir_fd=folder)
            except FileNotFoundError:
                return True
            except OSError:
                return False
            return True

    def evict(self, name: str) -> bool:
        """Removes a file unless a process reads it; returns whether it is gone."""
        with self._opened() as folder:
            try:
                file = os.open(name, _PLAIN, dir_fd=folder)
            except FileNotFoundError:
                return True
            except OSError:
                return False
            try:
                if not _locked(file, fcntl.LOCK_EX):
                    return False
                os.unlink(name, dir_fd=folder)
            except OSError:
                return False
            finally:
                os.close(file)
            return True

    def files(self) -> Sequence[KeptFile]:
        """Returns the regular files of the folder; removes drafts of writers that were killed.

        Raises:
            OSError: the folder is not private, or cannot be read.
        """
        oldest_ns, found = self._now_ns() - ABANDONED_S * 10**9, []
        with self._opened() as folder, os.scandir(folder) as entries:
            for entry in entries:
                with contextlib.suppress(FileNotFoundError):
                    facts = entry.stat(follow_symlinks=False)
                    if not stat.S_ISREG(facts.st_mode):
                        continue
                    if not entry.name.startswith(DRAFT):
                        found.append(KeptFile(entry.name, facts.st_size, facts.st_mtime_ns))
                    elif facts.st_mtime_ns < oldest_ns:
                        os.unlink(entry.name, dir_fd=folder)
        return found

    def _mark(self, file: int) -> None:
        now = self._now_ns()
        os.utime(file, ns=(now, now))

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        """Yields a descriptor of the folder.

        Raises:
            OSError: it cannot be created; it is a link, another user's, or others may write to it.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            found = os.fstat(folder)
            if found.st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "another user owns it", str(self.path))
            if stat.S_IMODE(found.st_mode) & 0o022:
                raise PermissionError(errno.EPERM, "others may write to it", str(self.path))
            if stat.S_IMODE(found.st_mode) != 0o700:
                os.fchmod(folder, 0o700)
            yield folder
        finally:
            os.close(folder)


def _locked(file: int, how: int) -> bool:
    """Takes a lock at once, until the file is closed; returns False if another one is held."""
    try:
        fcntl.flock(file, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
