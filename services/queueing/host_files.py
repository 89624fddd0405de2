"""Files in memory (tmpfs) for tensors too large for a queue, between processes of one host.

In: the bytes of tensors. Out: a view of them in another process. Each process has a folder named
after it, with the files that are meant for it or come from it:

    /dev/shm/flambeau-UID/PROCESS/request-NUMBER    a gateway's request, which workers read
                                 /reply-NUMBER-…    an answer that a worker left for the gateway

Rules:
- processes share a host if they see each other's folders, whose names no other process ever has;
- a file is written once and never reused, so a reader may view it for as long as it likes;
- a process holds a lock (flock(2)) on its folder; others delete a folder that nobody holds;
- neither a full file system nor a hostile file stops a process: only files of the expected owner
  and size are mapped, and they are written, not mapped, by their writer.
"""

import asyncio
import contextlib
import errno
import fcntl
import logging
import mmap
import os
import re
import shutil
import stat
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from pathlib import Path

from flambeau.protocol.tensors import TensorError

logger = logging.getLogger("flambeau.queue")

STEP_BYTES = 512 * 1024
"""Bytes written in one turn of the event loop: some 0.2 ms."""
MAPS_AT_ONCE = 256
"""Each takes an open file, of which a process often may have 1024; further ones are copied."""
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_REPLY = re.compile(r"reply-([0-9]{1,20})-[0-9a-f]{1,64}")


class HostFiles:
    """The files of this process, and those that it may read of others.

    Args:
        name: unique name of this process; empty for none, so that nothing passes through files.
        root: folder of the processes' folders; None for the one of this user in /dev/shm.
    """

    def __init__(self, name: str = "", root: Path | None = None) -> None:
        self._root = root or Path(f"/dev/shm/flambeau-{os.geteuid()}")  # noqa: S108
        self._own = self._root / name
        self._lock = -1
        self._has_failed = False
        self._maps: weakref.WeakSet[mmap.mmap] = weakref.WeakSet()
        if name:
            try:
                self._lock = self._made()
            except OSError as error:
                self._report(error)

    def _made(self) -> int:
        """Makes the folder of this process. Returns the descriptor that holds its lock."""
        with contextlib.suppress(FileExistsError):
            self._root.mkdir(0o700)
        found = self._root.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise PermissionError(f"{self._root} is not a folder of this user alone; remove it")
        while True:
            with contextlib.suppress(FileNotFoundError):  # another has swept it before its lock
                self._own.mkdir(0o700)
                lock = os.open(self._own, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
                fcntl.flock(lock, fcntl.LOCK_EX)
                if os.fstat(lock).st_nlink:
                    return lock
                os.close(lock)

    def _report(self, error: OSError) -> None:
        """Logs the first fault."""
        if not self._has_failed:
            self._has_failed = True
            facts = {"folder": str(self._own), "reason": str(error)}
            logger.warning("shared memory is not usable; tensors pass through Redis", extra=facts)

    def reaches(self, processes: Iterable[str]) -> bool:
        """Returns True if all of these processes share the host: their folders are here."""
        return self._lock >= 0 and all(
            _PLAIN.fullmatch(name) and (self._root / name).is_dir() for name in processes
        )

    def reply_bytes(self, gateway: str) -> int:
        """Returns the size of all answers that a gateway has not read."""
        with contextlib.suppress(OSError), os.scandir(self._root / gateway) as found:
            return sum(file.stat().st_size for file in found if _REPLY.fullmatch(file.name))
        return 0

    async def write(
        self, owner: str, name: str, parts: Sequence[memoryview | bytes], wanted: Callable[[], bool]
    ) -> bool:
        """Writes a file, in steps.

        Args:
            owner: process in whose folder it lies, this one or one that it reaches.
            name: of the file; there is none of this name.
            parts: its contents.
            wanted: looked at between steps; False ends them.

        Returns:
            True if the file is complete. Otherwise there is none: it would take more than half of
            the free memory, which others need, too, or nobody wants it any more.
        """
        path = self._root / owner / name
        try:
            room = os.statvfs(self._root)
            if 2 * sum(map(len, parts)) > room.f_bavail * room.f_frsize:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            self._report(error)
            return False
        try:
            for step in _steps(parts):
                while step:
                    step = step[os.write(file, step) :]
                await asyncio.sleep(0)
                if not wanted():
                    path.unlink(missing_ok=True)
                    return False
        except BaseException as error:
            path.unlink(missing_ok=True)
            if not isinstance(error, OSError):
                raise
            self._report(error)
            return False
        finally:
            os.close(file)
        return True

    def read(self, owner: str, name: str, size: int) -> memoryview:
        """Returns a read-only view of a file, whose memory lasts as long as views of it.

        Raises:
            TensorError: there is no such file, or it is not what a flambeau process wrote.
        """
        if not (self._lock >= 0 and _PLAIN.fullmatch(owner) and _PLAIN.fullmatch(name)):
            raise TensorError(f"file '{name:.200}' of '{owner:.200}' is not of this host")
        path = self._root / owner / name
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                found = os.fstat(file)
                if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
                    raise TensorError(f"{path} is not a file of this user")
                if found.st_size != size or not size:
                    raise TensorError(f"{path} has {found.st_size} bytes, and should have {size}")
                if len(self._maps) >= MAPS_AT_ONCE:
                    data = os.read(file, size)
                    if len(data) != size:
                        raise TensorError(f"{path} has lost bytes while it was read")
                    return memoryview(data)
                flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
                mapped = mmap.mmap(file, size, flags, mmap.PROT_READ)
                self._maps.add(mapped)
                return memoryview(mapped)
            finally:
                os.close(file)
        except OSError as error:
            raise TensorError(f"{path} cannot be read: {error.strerror}") from error

    def take(self, name: str, size: int) -> memoryview:
        """Reads a file of this process, and deletes it.

        Raises:
            TensorError: as from `read`.
        """
        view = self.read(self._own.name, name, size)
        self.remove(name)
        return view

    def remove(self, name: str) -> None:
        """Deletes a file of this process."""
        with contextlib.suppress(OSError):
            (self._own / name).unlink()

    def sweep(self, unanswered: Container[int] = ()) -> None:
        """Deletes the folders of dead processes, and answers that nobody waits for.

        Args:
            unanswered: numbers of the requests of this process that wait for an answer.
        """
        if self._lock < 0:
            return
        with contextlib.suppress(OSError):  # other processes sweep, too
            for file in os.listdir(self._own):
                found = _REPLY.fullmatch(file)
                if found and int(found[1]) not in unanswered:
                    self.remove(file)
        with contextlib.suppress(OSError):
            for folder in self._root.iterdir():
                _remove_if_dead(folder)

    def close(self) -> None:
        """Deletes the folder of this process."""
        if self._lock >= 0:
            shutil.rmtree(self._own, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def _steps(parts: Iterable[memoryview | bytes]) -> Iterator[memoryview]:
    for part in parts:
        view = memoryview(part)
        for start in range(0, len(view), STEP_BYTES):
            yield view[start : start + STEP_BYTES]


def _remove_if_dead(folder: Path) -> None:
    """Deletes the folder of a process that does not hold its lock any more."""
    with contextlib.suppress(OSError):
        lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(folder, ignore_errors=True)
        finally:
            os.close(lock)
