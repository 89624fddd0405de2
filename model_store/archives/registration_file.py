"""The file of the archives that callers have registered, in the folder of a server.

In: changes, by any process of the server. Out: the registered models and versions.

Rules: the file is a journal, a JSON line for each step, so a change and its readers cost the same
however many models there are; a change holds a lock from reading to writing, so none is lost;
readers need no lock, as they read whole lines only; a line without its end, of a process that was
killed, is cut off by the next change; a journal whose lines are mostly history is replaced by a new
one, with another name in its first line; a line that cannot be read is an error, as this server
alone writes the file.
"""

import contextlib
import errno
import fcntl
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from model_store.archives.registrations import RegisteredVersion, Registrations, Step
from model_store.document import LARGE, check_size, parse_as

MAX_HISTORY = 1_000
"""Lines of a journal beyond twice those of its models, after which it is written anew: some 0.7 MB
that a process reads when it starts."""
_FILE, _LOCK = "registrations.jsonl", "registrations.lock"


@dataclass(frozen=True, slots=True)
class _Read:
    """What has been read of a journal so far."""

    name: bytes = b""
    """First line of the journal."""
    size: int = 0
    """Bytes of its whole lines."""
    lines: int = 0
    file: tuple[int, int, int] = (0, 0, 0)
    """Number, size and time of the file as it was read."""
    registrations: Registrations = field(default_factory=Registrations)


class RegistrationFile:
    """The journal in a folder of this machine. Threads may share it.

    Args:
        folder: an existing folder of the server.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._lock = folder / _FILE, folder / _LOCK
        self._read = _Read()

    def latest(self) -> Registrations:
        """Returns the registrations, of which it reads what has come since the last call.

        Raises:
            DocumentError: the file was changed by hand.
            OSError: it cannot be read.
        """
        known = self._read
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return Registrations()
        if (found.st_ino, found.st_size, found.st_mtime_ns) != known.file:
            with self._path.open("rb") as file:
                known = self._read = self._read_on(file, known)
        return known.registrations

    def _read_on(self, file: BinaryIO, known: _Read) -> _Read:
        """Reads the lines behind those that are known, or all of another journal."""
        found = os.fstat(file.fileno())
        name = file.readline()
        if name != known.name:
            known = _Read(name=name, size=len(name))
        file.seek(known.size)
        size, lines, registrations = known.size, known.lines, known.registrations
        for line in file:
            if not line.endswith(b"\n"):
                break
            registrations = registrations.after(parse_as(Step, line, str(self._path), LARGE))
            size, lines = size + len(line), lines + 1
        state = found.st_ino, found.st_size, found.st_mtime_ns
        return _Read(name=name, size=size, lines=lines, file=state, registrations=registrations)

    @contextlib.contextmanager
    def changing(self) -> Iterator["Change"]:
        """Holds the lock; the steps of the block are written, unless it raises.

        Raises:
            DocumentError, OSError: as `latest`, or the disk is full.
        """
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            change = Change(self.latest())
            yield change
            if change.steps:
                self._write(change)

    def _write(self, change: "Change") -> None:
        lines = self._lines(change.steps)
        versions = sum(len(model.versions) for model in change.after.models.values())
        most = 2 * (versions + len(change.after.models)) + MAX_HISTORY
        if self._path.exists() and self._read.lines + len(lines) <= most:
            self._append(b"".join(lines))
        else:
            name = uuid.uuid4().hex.encode() + b"\n"
            beside = self._path.with_suffix(".new")
            beside.write_bytes(b"".join((name, *self._lines(change.after.steps()))))
            os.replace(beside, self._path)

    def _append(self, data: bytes) -> None:
        """Writes lines behind the whole ones; if there is no space for them, none."""
        size = self._read.size
        with self._path.open("r+b", buffering=0) as file:
            file.truncate(size)
            file.seek(size)
            try:
                written = file.write(data)
            except OSError:
                file.truncate(size)
                raise
            if written != len(data):
                file.truncate(size)
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _lines(self, steps: Iterable[Step]) -> Sequence[bytes]:
        lines = [step.model_dump_json().encode() + b"\n" for step in steps]
        for line in lines:
            check_size(line, str(self._path), LARGE)
        return lines


class Change:
    """A change of the registrations, while their lock is held.

    Attributes:
        before: the registrations as they were.
        after: the registrations with the steps so far.
        steps: the steps.
    """

    def __init__(self, before: Registrations) -> None:
        self.before = self.after = before
        self.steps: list[Step] = []

    def put(self, name: str, version: str, one: RegisteredVersion) -> None:
        """Adds or replaces a version of a model."""
        self._step(Step(act="put", model=name, version=version, one=one))

    def make_default(self, name: str, version: str) -> None:
        """Makes a registered version the default one of its model."""
        self._step(Step(act="default", model=name, version=version))

    def drop(self, name: str, version: str) -> None:
        """Removes a registered version; the model, too, if it has no other."""
        self._step(Step(act="drop", model=name, version=version))

    def _step(self, step: Step) -> None:
        self.steps.append(step)
        self.after = self.after.after(step)
