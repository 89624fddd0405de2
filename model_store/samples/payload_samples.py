"""Stores payload samples: appends, reads and deletes them, and enforces their limits.

    <url>/<model>/samples/20261122T145501.123456Z-1f2e3d4c.jsonl     start time and writer

Rules:
- the folder is beside the versions and not mistaken for one: `samples` is not a number;
- a file has one writer, the process that created it. It grows to an eighth of the size limit or of
  the age limit, and then a new file is started. So servers that watch the store have few files to
  list;
- files over a limit are deleted before anything is written, the oldest first;
- no process keeps a file's content to write it again: deleted samples do not reappear;
- a last line without a newline is of a killed or a writing process: it is ignored;
- in a folder of this machine, only the owner can read the files.
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
"""Files of one model: processes that restart repeatedly leave small ones."""

MAX_FILE_BYTES = 2**30
"""Size limit for reading one file, which is one of the `PARTS` of a model's samples."""

_STARTED = "%Y%m%dT%H%M%S.%fZ"
_FILE = re.compile(r"(\d{8}T\d{6}\.\d{6}Z)-[0-9a-f]{8}\.jsonl")


def samples_folder(model: str) -> str:
    """Returns the folder of a model's samples, with a trailing slash."""
    return f"{check_name(model)}/{FOLDER}/"


def leaving(
    files: Mapping[str, int], limits: SampleLimits, now: datetime, room: int = 0
) -> list[str]:
    """Returns the files to delete, the oldest first.

    Args:
        files: sizes in bytes of the files in a model's folder, by path.
        limits: the model's limits.
        now: the current time.
        room: bytes to make room for, in one more file; 0 for none.
    """
    known = {path: size for path, size in files.items() if _begun(path) is not None}
    total, count = sum(known.values()) + room, len(known) + (room > 0)
    gone = []
    for path in sorted(known):  # names sort by time
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
        storage: storage to write to.
        writer: eight hexadecimal digits, unique to the process.
        clock: returns the current time.
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
        """The file that is appended to, by model."""

    def append(self, model: str, lines: Sequence[bytes], limits: SampleLimits) -> None:
        """Writes samples after making room for them.

        Args:
            model: the model they belong to.
            lines: results of `PayloadSample.to_line`, none larger than an eighth of the limit.
            limits: the model's limits.

        Raises:
            StorageError: the store failed; some samples may have been written.
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
        """Deletes files over the limits of any model, also of models no longer sampled.

        Args:
            limits_of: returns the limits of a model; None keeps all its samples.

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
    """Yields the samples of a model; those of each process are in order.

    Raises:
        SampleError: a file contains an invalid sample.
        StorageError: the store failed, or its files belong to another user.
    """
    for path in _files(storage, model):
        yield from _samples_in(storage, path)


def delete_samples(
    storage: Storage, model: str, is_unwanted: Callable[[PayloadSample], bool] | None = None
) -> int:
    """Deletes samples.

    Args:
        storage: storage of the samples.
        model: the model they belong to.
        is_unwanted: True for samples to delete; None deletes all, readable or not.

    Returns:
        Number of deleted samples; with `is_unwanted` None, number of deleted files.

    Raises:
        SampleError: a file contains an invalid sample.
        StorageError: the store failed, or its files belong to another user.
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
            # To a new file, since the process that writes this one may append concurrently.
            lines = b"".join(sample.to_line() for sample in kept)
            storage.append_private(_path(model, begun, secrets.token_hex(4)), lines)
        storage.delete(path)
        gone += len(samples) - len(kept)
    return gone


def _path(model: str, begun: datetime, writer: str) -> str:
    return f"{samples_folder(model)}{begun.strftime(_STARTED)}-{writer}.jsonl"


def _files(storage: Storage, model: str) -> list[str]:
    """Returns the paths of the files, by time."""
    return sorted(path for path in storage.list(samples_folder(model)) if _begun(path))


def _samples_in(storage: Storage, path: str) -> Iterator[PayloadSample]:
    """Yields the samples of a file; none if it was deleted concurrently."""
    try:
        content = storage.get(path, MAX_FILE_BYTES)
    except MissingFileError:
        return
    whole, _, _ = content.rpartition(b"\n")
    for line in whole.splitlines():
        yield parse_sample(line, path)


def _begun(path: str) -> datetime | None:
    """Returns the start time in a file's name; None for other names."""
    found = _FILE.fullmatch(path.rpartition("/")[2])
    if found is None:
        return None
    try:
        return datetime.strptime(found[1], _STARTED).replace(tzinfo=UTC)
    except ValueError:
        return None
