"""The file of the archives that callers have registered, in the folder of a server.

In: changes, by any process of the server. Out: the registered models and versions.

Rules: the file is a journal, a JSON line for each step, so a change and its readers cost the same
however many models there are; a change holds a lock from reading to writing, so none is lost;
readers need no lock, as they read whole lines only; a line without its end, of a process that was
killed, is cut off by the next change; a journal whose lines are mostly history is replaced by a new
one, with another name in its first line; the lines of a change count once its last one is whole; a
line that cannot be read is an error, as this server alone writes the file.
"""

import contextlib
import errno
import fcntl
import os
import threading
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
    """The part of a journal that has been read so far."""

    name: bytes = b""
    """First line of the journal."""
    size: int = 0
    """Bytes of its whole changes."""
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
        self._keeping = threading.Lock()

    def latest(self) -> Registrations:
        """Returns the registrations, of which it reads what has come since the last call.

        Raises:
            DocumentError: the file was changed by hand.
            OSError: it cannot be read.
        """
        return self._latest().registrations

    def _latest(self) -> _Read:
        before = self._read
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return _Read()
        if _state_of(found) == before.file:
            return before
        with self._path.open("rb") as file:
            read = self._read_on(file, before)
        self._keep(read, before)
        return read

    def _keep(self, read: _Read, before: _Read) -> None:
        """Keeps what was read from `before` on, unless another thread has read more meanwhile."""
        with self._keeping:
            present = self._read
            if present is before or (present.name == read.name and present.size < read.size):
                self._read = read

    def _read_on(self, file: BinaryIO, known: _Read) -> _Read:
        """Reads the changes behind those that are known, or all of another journal."""
        found = os.fstat(file.fileno())
        name = file.readline()
        if name != known.name or found.st_size < known.size:
            known = _Read(name=name, size=len(name))
        file.seek(known.size)
        size, steps, read_bytes, whole = known.size, list[Step](), 0, 0
        for line in file:
            if not line.endswith(b"\n"):
                break
            steps.append(parse_as(Step, line, str(self._path), LARGE))
            read_bytes += len(line)
            if not steps[-1].has_next:
                whole, size = len(steps), known.size + read_bytes
        return _Read(
            name=name,
            size=size,
            lines=known.lines + whole,
            file=_state_of(found),
            registrations=known.registrations.after(*steps[:whole]),
        )

    @contextlib.contextmanager
    def changing(self) -> Iterator["Change"]:
        """Holds the lock; the steps of the block are written, unless it raises.

        Raises:
            DocumentError, OSError: as `latest`, or the disk is full.
        """
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            before = self._latest()  # nobody writes more as long as the lock is held
            change = Change(before.registrations)
            yield change
            if change.steps:
                self._keep(self._write(change, before), before)

    def _write(self, change: "Change", before: _Read) -> _Read:
        """Writes a change; returns the journal with it, so that this process need not read it."""
        lines = self._lines(change.steps)
        versions = sum(len(model.versions) for model in change.after.models.values())
        most = 2 * (versions + len(change.after.models)) + MAX_HISTORY
        if before.name and before.lines + len(lines) <= most:
            self._append(b"".join(lines), before.size)
            name, kept = before.name, before.lines + len(lines)
        else:
            name = uuid.uuid4().hex.encode() + b"\n"
            beside = self._path.with_suffix(".new")
            lines = self._lines(change.after.steps())
            beside.write_bytes(b"".join((name, *lines)))
            os.replace(beside, self._path)
            kept = len(lines)
        found = self._path.stat()
        return _Read(
            name=name,
            size=found.st_size,
            lines=kept,
            file=_state_of(found),
            registrations=change.after,
        )

    def _append(self, data: bytes, size: int) -> None:
        """Writes the lines of a change behind `size` bytes; if there is no space, none of them."""
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
        """Returns the lines of one change."""
        given = list(steps)
        marked = [step.model_copy(update={"has_next": True}) for step in given[:-1]]
        lines = [step.model_dump_json().encode() + b"\n" for step in (*marked, *given[-1:])]
        for line in lines:
            check_size(line, str(self._path), LARGE)
        return lines


def _state_of(found: os.stat_result) -> tuple[int, int, int]:
    return found.st_ino, found.st_size, found.st_mtime_ns


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
