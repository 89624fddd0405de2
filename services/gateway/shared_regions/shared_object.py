"""A shared memory object of a client: opened by name, read and written by copying.

Rules:
- only plain objects directly in /dev/shm are opened, and no link is followed;
- nothing is mapped: a client may truncate its object at any time, and touching a mapping of it
  would then kill the process (SIGBUS). pread(2) and pwrite(2) copy what there is;
- a write checks the size first, for pwrite(2) would enlarge the object. A client that truncates it
  between both gets its object enlarged, within the range that it registered.
"""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager

from services.errors import InvalidRequestError

FOLDER = "/dev/shm"  # noqa: S108
MAX_KEY_BYTES = 255
_FLAGS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def checked_key(key: str) -> str:
    """Returns the name of an object in its folder; POSIX names may begin with a slash.

    Raises:
        InvalidRequestError: it is no plain name.
    """
    name = key.removeprefix("/")
    is_plain = name not in ("", ".", "..") and not {"/", "\0"} & set(name)
    if not is_plain or len(name.encode(errors="replace")) > MAX_KEY_BYTES:
        raise InvalidRequestError(
            f"the key of a shared memory region is {key[:80]!r}; give the name of an object, such "
            f"as '/input', of at most {MAX_KEY_BYTES} bytes and without further slashes"
        )
    return name


class SharedObject:
    """An open object.

    Attributes:
        identity: its device and inode.
    """

    def __init__(self, key: str, descriptor: int) -> None:
        self._key = key
        self._descriptor = descriptor
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise InvalidRequestError(f"'{key}' is no shared memory object")
        self.identity = found.st_dev, found.st_ino

    @property
    def size(self) -> int:
        """Bytes of the object at this moment."""
        return os.fstat(self._descriptor).st_size

    def read_into(self, view: memoryview, offset: int) -> None:
        """Copies bytes of the object.

        Raises:
            InvalidRequestError: it has become shorter.
        """
        position = 0
        while position < len(view):
            copied = os.preadv(self._descriptor, [view[position:]], offset + position)
            if not copied:
                raise self._too_short(offset + len(view))
            position += copied

    def write(self, data: memoryview, offset: int) -> None:
        """Copies bytes to the object.

        Raises:
            InvalidRequestError: it has become shorter, or the file system is full.
        """
        if self.size < offset + len(data):
            raise self._too_short(offset + len(data))
        position = 0
        while position < len(data):
            position += os.pwrite(self._descriptor, data[position:], offset + position)

    def _too_short(self, needed: int) -> InvalidRequestError:
        return InvalidRequestError(
            f"the shared memory object '{self._key}' has {self.size} bytes, and {needed} are "
            "needed: it was shortened after its region was registered"
        )


@contextmanager
def opened_object(key: str, *, folder: str, writes: bool) -> Iterator[SharedObject]:
    """Opens an object.

    Args:
        key: a name that `checked_key` takes.
        folder: folder of the objects.
        writes: True to write, too.

    Raises:
        InvalidRequestError: there is none, or it may not be opened, or cannot be used.
    """
    try:
        mode = os.O_RDWR if writes else os.O_RDONLY
        descriptor = os.open(f"{folder}/{checked_key(key)}", mode | _FLAGS)
    except OSError as error:
        what = "written" if writes else "read"
        raise InvalidRequestError(
            f"the shared memory object '{key}' cannot be {what} here: {error.strerror}"
        ) from error
    try:
        yield SharedObject(key, descriptor)
    except OSError as error:
        raise InvalidRequestError(
            f"the shared memory object '{key}' cannot be used: {error.strerror}"
        ) from error
    finally:
        os.close(descriptor)
