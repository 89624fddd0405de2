"""Caches the needs of artifacts in a small JSON file, so that each is probed once per machine.

    {"schema": 1, "needs": {KEY: {"peak_bytes": 4194304, ...}}}

Rules: the file is only a hint, read within limits: an invalid file counts as empty, and a failure
to write it is logged once and has no other effect; the oldest entries are evicted first.
"""

import json
import logging
import threading
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from flambeau.protocol.strict import StrictModel
from model_store.document import DocumentLimits, parse_as
from model_store.errors import DocumentError
from model_store.storage.plain_file import read_plain_file
from services.atomic_file import write_atomically

logger = logging.getLogger("flambeau.loader")

MAX_NEEDS = 5_000
LIMITS = DocumentLimits(2**20, 25_000)


class MemoryNeed(StrictModel):
    """Measured needs of an artifact, or the limits that it exceeded."""

    peak_bytes: int | None = Field(default=None, ge=0)
    """Peak memory at its largest batch; None if the probe failed before that."""
    over_bytes: int = Field(default=0, ge=0)
    """Memory limit that it exceeded; 0 for none."""
    over_s: float = Field(default=0.0, ge=0)
    """Limit of CPU time that it exceeded; 0 for none."""


class _Contents(StrictModel):
    schema_version: Literal[1] = Field(1, alias="schema")
    needs: dict[Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")], MemoryNeed] = Field(
        default={}, max_length=MAX_NEEDS
    )


class NeedsMemory:
    """The known needs, in this process and in a file. Thread-safe.

    Args:
        path: path of the file, `~` for the user's folder; empty to keep them in this process only.
    """

    def __init__(self, path: str) -> None:
        self._lock = threading.Lock()
        self._path: Path | None = None
        if path:
            try:
                self._path = Path(path).expanduser()
            except RuntimeError:  # a user without a home folder
                logger.warning(
                    "the needs of artifacts cannot be stored; see the setting needs_file"
                )
        self._known = self._read()

    def recall(self, key: str) -> MemoryNeed | None:
        """Returns the needs of an artifact; None if unknown."""
        return self._known.get(key)

    def remember(self, key: str, need: MemoryNeed) -> None:
        """Stores the needs of an artifact."""
        with self._lock:
            known = self._read() | self._known  # another process may have added entries
            known.pop(key, None)
            self._known = dict([*known.items(), (key, need)][-MAX_NEEDS:])
            self._write()

    def _read(self) -> dict[str, MemoryNeed]:
        if self._path is None:
            return {}
        try:
            data = read_plain_file(self._path, LIMITS.max_bytes)
            return dict(parse_as(_Contents, data, str(self._path), LIMITS).needs)
        except (OSError, DocumentError):
            return {}

    def _write(self) -> None:
        if self._path is None:
            return
        needs = {key: need.model_dump(exclude_defaults=True) for key, need in self._known.items()}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps({"schema": 1, "needs": needs}, indent=1))
        except OSError as error:
            logger.warning(
                "the needs of artifacts cannot be stored; see the setting needs_file",
                extra={"file": str(self._path), "reason": str(error)},
            )
            self._path = None
