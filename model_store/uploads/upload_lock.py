"""Locks an upload against other calls, of all processes that see its folder."""

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from model_store.errors import UnknownUploadError, UploadBusyError


def lock_of(place: Path) -> Path:
    """Returns the lock of the upload in a folder; its time of change is the last activity."""
    return place / "lock"


@contextlib.contextmanager
def locked(place: Path, mode: int) -> Iterator[None]:
    """Locks an upload against other calls.

    Args:
        place: folder of the upload, named by its id.
        mode: `fcntl.LOCK_SH` or `LOCK_EX`.

    Raises:
        UnknownUploadError: there is none.
        UploadBusyError: another call holds the lock.
    """
    if not place.name.isalnum():
        raise unknown_upload(place.name)
    try:
        lock = os.open(lock_of(place), os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise unknown_upload(place.name) from error
    try:
        lock_file(lock, mode, "another call works on this upload; try again")
        if os.fstat(lock).st_nlink == 0:  # removed while this call opened it
            raise unknown_upload(place.name)
        yield
    finally:
        os.close(lock)


def lock_file(file: int, mode: int, busy: str) -> None:
    """Locks an open file.

    Raises:
        UploadBusyError: another call holds the lock; the message is `busy`.
    """
    try:
        fcntl.flock(file, mode | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise UploadBusyError(busy) from error


def unknown_upload(upload_id: str) -> UnknownUploadError:
    """Returns the error for an id that names no upload of the caller."""
    return UnknownUploadError(
        f"there is no upload '{upload_id[:64]}' of yours: it was finished, abandoned, or collected "
        "after a day without activity; begin it again"
    )
