"""Evidence files: the counts of every process of a rollout, and the verdict, in the model store.

    <model>/rollouts/<id>/evidence/<process>.json   cumulative counts of one process
    <model>/rollouts/<id>/verdict.json              what the controller found at its last look

Rules: a process replaces its own file alone, whole; a restarted process has a new name, so its
former counts stay and the sum goes on. Smaller counts never replace larger ones. Files are hostile
input: one that is damaged, too large or beyond the limits is reported and left out, and does not
keep the others from being read.
"""

import contextlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from model_store.document import DocumentLimits, parse_document
from model_store.errors import DocumentError, StorageError, TooLargeError
from model_store.storage.storage import MissingFileError, Storage
from services.rollouts.evidence.errors import InvalidEvidenceError
from services.rollouts.evidence.evidence import MAX_NAMES, MAX_PEAKS, MAX_SHARES, Evidence, merged

MAX_FILES = 1_000
"""Files of evidence that are read: processes that ever counted, restarted ones included."""
MAX_FILE_BYTES = 4 * 2**20
"""A process of a model with 1,000 classes and 32 steps writes 3 MB at most, a usual one 20 KB."""
MAX_TOTAL_BYTES = 64 * 2**20
_LIMITS = DocumentLimits(MAX_FILE_BYTES, MAX_NAMES + MAX_PEAKS + 8)
_PROCESS = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


@dataclass(frozen=True, slots=True)
class FoundEvidence:
    """The evidence of all processes."""

    total: Evidence
    processes: int
    """Files that are part of the total."""
    left_out: Mapping[str, str] = field(default_factory=dict)
    """Reason by path of each file that is not."""


class EvidenceFiles:
    """The files of one rollout. Every method blocks.

    Args:
        storage: that of the model store.
        model: name of the model.
        rollout_id: id of the rollout.
    """

    def __init__(self, storage: Storage, model: str, rollout_id: str) -> None:
        self._storage = storage
        self.folder = f"{model}/rollouts/{rollout_id}"

    def write(self, process: str, evidence: Evidence) -> None:
        """Replaces the counts of a process, unless those of its file are larger.

        Its file keeps the highest peaks.

        Args:
            process: a name that no other process ever has, see `services.process.process_name`.
            evidence: all that it has counted since it began.

        Raises:
            InvalidEvidenceError: the name cannot be that of a file.
            StorageError: the store failed.
        """
        if not _PROCESS.fullmatch(process):
            raise InvalidEvidenceError(
                f"'{process[:60]}' names no process; use letters, digits, dots, - and _"
            )
        path = f"{self.folder}/evidence/{process}.json"
        former = Evidence()
        with contextlib.suppress(
            MissingFileError, TooLargeError, DocumentError, InvalidEvidenceError
        ):
            former = evidence_of(self._storage.get(path, MAX_FILE_BYTES), path)
        is_less = any(evidence.counts.get(name, 0) < n for name, n in former.counts.items())
        peaks = merged([Evidence(peaks=former.peaks), Evidence(peaks=evidence.peaks)]).peaks
        counts = former.counts if is_less else evidence.counts
        self._storage.replace(path, bytes_of(Evidence(counts, peaks)))

    def read(self) -> FoundEvidence:
        """Reads and adds the counts of all processes.

        Raises:
            StorageError: the folder cannot be listed.
        """
        total, left_out = Evidence(), dict[str, str]()
        processes = read_bytes = 0
        for path, size_bytes in sorted(self._storage.list(f"{self.folder}/evidence/").items()):
            try:
                _check_room(path, processes, read_bytes + size_bytes)
                part = self._read(path)
                total = _added(total, part)
            except MissingFileError:
                continue
            except (StorageError, DocumentError, InvalidEvidenceError) as error:
                left_out[path] = str(error)
                continue
            processes += 1
            read_bytes += size_bytes
        return FoundEvidence(total, processes, left_out)

    def _read(self, path: str) -> Evidence:
        """Reads one file.

        Raises:
            InvalidEvidenceError, DocumentError: it is no evidence.
            StorageError: it cannot be read.
        """
        name = path.removeprefix(f"{self.folder}/evidence/")
        if not (name.endswith(".json") and _PROCESS.fullmatch(name.removesuffix(".json"))):
            raise InvalidEvidenceError(f"{path} is not named after a process; remove it")
        return evidence_of(self._storage.get(path, MAX_FILE_BYTES), path)

    def write_verdict(self, document: Mapping[str, Any]) -> None:
        """Replaces what the controller found; numbers that are not finite are written as null.

        Raises:
            StorageError: the store failed.
        """
        self._storage.replace(f"{self.folder}/verdict.json", orjson.dumps(document))


def bytes_of(evidence: Evidence) -> bytes:
    """Returns the content of a file of evidence."""
    return json.dumps(evidence.as_plain(), separators=(",", ":"), allow_nan=False).encode()


def evidence_of(data: bytes, where: str) -> Evidence:
    """Reads the content of a file of evidence.

    Raises:
        DocumentError: it is too large, or not JSON.
        InvalidEvidenceError: it is no evidence.
    """
    try:
        return Evidence.from_plain(parse_document(data, where, _LIMITS))
    except InvalidEvidenceError as error:
        raise InvalidEvidenceError(f"{where}: {error}") from error


def _check_room(path: str, processes: int, total_bytes: int) -> None:
    """Checks that another file may be read.

    Raises:
        InvalidEvidenceError: there are too many, or they are too large together.
    """
    if processes >= MAX_FILES:
        raise InvalidEvidenceError(f"{path}: {MAX_FILES:,} files of evidence are read at most")
    if total_bytes > MAX_TOTAL_BYTES:
        raise InvalidEvidenceError(
            f"{path}: with it, the files of evidence have {total_bytes:,} bytes, and at most "
            f"{MAX_TOTAL_BYTES:,} are read"
        )


def _added(total: Evidence, part: Evidence) -> Evidence:
    """Adds the counts of a process.

    Raises:
        InvalidEvidenceError: the sum would exceed the limits of evidence.
    """
    found = merged([total, part])
    shares = {name.split("/", 2)[1] for name in found.counts if name.startswith("share/")}
    if len(found.counts) > MAX_NAMES or len(shares) > MAX_SHARES or len(found.peaks) > MAX_PEAKS:
        raise InvalidEvidenceError(
            f"with it, the sum has {len(found.counts):,} counts of {len(shares)} shares and "
            f"{len(found.peaks)} peaks, over the limits {MAX_NAMES:,}, {MAX_SHARES}, {MAX_PEAKS}"
        )
    return found
