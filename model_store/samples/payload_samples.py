"""Payload samples in a store: appended, kept within limits, read and deleted.

    <url>/<model>/samples/20261122T145501.123456Z-1f2e3d4c.jsonl     when it was begun, and by whom

Rules kept here:
- the folder is beside the versions, and never taken for one: `samples` is no number;
- a file belongs to the one process that began it; it grows until it is an eighth of what may be
  kept, or of its age, and another is begun. So there are few, which servers that watch the store
  have to list;
- what would be over a limit leaves before anything is written, the oldest file first;
- nobody keeps what is in a file to write it again: what was deleted does not come back;
- a last line without an end is of a process that was killed, or just writes: it counts as none;
- in a folder of this machine, files are for their owner alone.
"""

import re
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from model_store.manifest import check_name
from model_store.samples.payload_sample import PARTS, PayloadSample, SampleLimits, parse_sample
from model_store.storage.storage import MissingFileError, Storage

FOLDER = "samples"
MAX_FILES = 64
"""Of one model: processes that start again and again leave small ones."""

MAX_FILE_BYTES = 2**30
"""Of one file, and so of one part of what is kept of a model, that is read."""

_STARTED = "%Y%m%dT%H%M%S.%fZ"
_FILE = re.compile(r"(\d{8}T\d{6}\.\d{6}Z)-[0-9a-f]{8}\.jsonl")


def samples_folder(model: str) -> str:
    """Where the samples of a model lie, with the slash behind it."""
    return f"{check_name(model)}/{FOLDER}/"


def leaving(
    files: Mapping[str, int], limits: SampleLimits, now: datetime, room: int = 0
) -> list[str]:
    """The files that must go, the oldest first.

    Args:
        files: sizes in bytes of what lies in a model's folder, by path.
        limits: what they are to keep.
        now: the time.
        room: bytes to make room for, in one more file; 0 for none.
    """
    known = {path: size for path, size in files.items() if _begun(path) is not None}
    total, count = sum(known.values()) + room, len(known) + (room > 0)
    gone = []
    for path in sorted(known):  # which is by time
        begun = _begun(path)
        assert begun is not None
        is_young = now - begun < limits.kept_for
        if is_young and total <= limits.kept_bytes and count <= MAX_FILES:
            break
        gone.append(path)
        total -= known[path]
        count -= 1
    return gone


class SampleWriter:
    """Appends samples for one process.

    Args:
        storage: where they go.
        writer: eight hexadecimal digits that no other process has.
        clock: the time.
    """

    def __init__(
        self,
        storage: Storage,
        writer: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._storage = storage
        self._writer = writer
        self._clock = clock
        self._growing: dict[str, str] = {}
        """The file of each model that grows."""

    def append(self, model: str, lines: Sequence[bytes], limits: SampleLimits) -> None:
        """Writes samples, once there is room for them.

        Args:
            model: theirs.
            lines: as `PayloadSample.to_line` gives them; none larger than an eighth of the limit.
            limits: of the model.

        Raises:
            StorageError: the store failed; some of them may be written.
        """
        part = bytearray()
        for line in lines:
            if part and len(part) + len(line) > limits.kept_bytes // PARTS:
                self._write(model, bytes(part), limits)
                part.clear()
            part += line
        if part:
            self._write(model, bytes(part), limits)

    def retain(self, limits_of: Callable[[str], SampleLimits | None]) -> None:
        """Deletes what is over the limits of any model, also where nothing is sampled any more.

        Args:
            limits_of: those of a model; None leaves its samples alone.

        Raises:
            StorageError: the store failed.
        """
        found: dict[str, dict[str, int]] = {}
        for path, size in self._storage.list().items():
            match path.split("/"):
                case [model, folder, _] if folder == FOLDER:
                    found.setdefault(model, {})[path] = size
        for model, files in found.items():
            limits = limits_of(model)
            if limits is not None:
                for path in leaving(files, limits, self._clock()):
                    self._storage.delete(path)

    def _write(self, model: str, data: bytes, limits: SampleLimits) -> None:
        now = self._clock()
        files = self._storage.list(samples_folder(model))
        path = self._growing.get(model, "")
        begun = _begun(path)
        if (
            begun is None
            or path not in files
            or files[path] + len(data) > limits.kept_bytes // PARTS
            or now - begun > limits.kept_for / PARTS
        ):
            path = self._growing[model] = _path(model, now, self._writer)
        room = files.pop(path, 0) + len(data)
        for gone in leaving(files, limits, now, room):
            self._storage.delete(gone)
        self._storage.append_private(path, data)


def read_samples(storage: Storage, model: str) -> Iterator[PayloadSample]:
    """Samples of a model, those of each process in order.

    Raises:
        SampleError: a file holds what is no sample.
        StorageError: the store failed, or its files are another user's.
    """
    for path in _files(storage, model):
        yield from _samples_in(storage, path)


def delete_samples(
    storage: Storage, model: str, is_unwanted: Callable[[PayloadSample], bool] | None = None
) -> int:
    """Deletes samples.

    Args:
        storage: where they are.
        model: theirs.
        is_unwanted: which; None deletes all, readable or not.

    Returns:
        How many samples went, or how many files where all did.

    Raises:
        SampleError: a file holds what is no sample.
        StorageError: the store failed, or its files are another user's.
    """
    if is_unwanted is None:
        paths = _files(storage, model)
        for path in paths:
            storage.delete(path)
        return len(paths)
    gone = 0
    for path in _files(storage, model):
        samples = list(_samples_in(storage, path))
        kept = [sample for sample in samples if not is_unwanted(sample)]
        if len(kept) == len(samples):
            continue
        begun = _begun(path)
        if kept and begun is not None:
            # Under a name of our own: the process it is of may append meanwhile.
            lines = b"".join(sample.to_line() for sample in kept)
            storage.append_private(_path(model, begun, secrets.token_hex(4)), lines)
        storage.delete(path)
        gone += len(samples) - len(kept)
    return gone


def _path(model: str, begun: datetime, writer: str) -> str:
    return f"{samples_folder(model)}{begun.strftime(_STARTED)}-{writer}.jsonl"


def _files(storage: Storage, model: str) -> list[str]:
    """Paths by time."""
    return sorted(path for path in storage.list(samples_folder(model)) if _begun(path))


def _samples_in(storage: Storage, path: str) -> Iterator[PayloadSample]:
    """Those of a file; none if it left meanwhile."""
    try:
        content = storage.get(path, MAX_FILE_BYTES)
    except MissingFileError:
        return
    whole, _, _ = content.rpartition(b"\n")
    for line in whole.splitlines():
        yield parse_sample(line, path)


def _begun(path: str) -> datetime | None:
    """When a file was begun; None for what is no file of ours."""
    found = _FILE.fullmatch(path.rpartition("/")[2])
    if found is None:
        return None
    try:
        return datetime.strptime(found[1], _STARTED).replace(tzinfo=UTC)
    except ValueError:
        return None
