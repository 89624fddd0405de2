"""Caches choices of artifacts in a small JSON file, so that each is measured once per machine.

    {"schema": 1, "choices": {KEY: {"artifact": "onnx-int8", "row_ms": {"onnx-int8": 0.004, ...}}}}

Rules: the file is only a hint: a missing, invalid, too large or foreign file counts as empty, and a
failure to write it is logged and has no other effect; it is written to a temporary file and
renamed, so that no process reads a partial file; the oldest choices are evicted first.
"""

import functools
import json
import logging
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from flambeau.protocol.strict import StrictModel
from model_store.document import DocumentLimits, parse_as
from model_store.errors import DocumentError
from model_store.storage.plain_file import read_plain_file
from services.atomic_file import write_atomically

logger = logging.getLogger("flambeau.loader")

MAX_CHOICES = 1000
MAX_ARTIFACTS = 100
LIMITS = DocumentLimits(2**20, 50_000)

_Name = Annotated[str, Field(max_length=128)]
_Key = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]


class Choice(StrictModel):
    """An artifact, and the measurements that it was chosen by."""

    artifact: _Name
    row_ms: dict[_Name, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        max_length=MAX_ARTIFACTS
    )
    """Milliseconds per row at the best batch size, of all artifacts that passed."""


class _Contents(StrictModel):
    schema_version: Literal[1] = Field(1, alias="schema")
    choices: dict[_Key, Choice] = Field(default={}, max_length=MAX_CHOICES)


class ChoiceMemory:
    """The cache file.

    Args:
        path: path of the file, `~` for the user's folder; empty to cache nothing.
    """

    def __init__(self, path: str) -> None:
        self._path = _expanded(path) if path else None

    def recall(self, key: str) -> Choice | None:
        """Returns the choice of a key; None if there is none."""
        return self._read().get(key)

    def remember(self, key: str, choice: Choice) -> None:
        """Stores a choice, which replaces an earlier one of the same key."""
        choices = {k: v for k, v in self._read().items() if k != key} | {key: choice}
        newest = dict(list(choices.items())[-MAX_CHOICES:])
        self._write(newest)

    def forget(self, key: str) -> None:
        """Removes a choice that proved wrong."""
        choices = self._read()
        if choices.pop(key, None) is not None:
            self._write(choices)

    def _read(self) -> dict[str, Choice]:
        if self._path is None:
            return {}
        try:
            found = self._path.stat()
            return dict(_read_file(self._path, found.st_mtime_ns, found.st_size, found.st_ino))
        except (OSError, DocumentError):
            return {}

    def _write(self, choices: dict[str, Choice]) -> None:
        if self._path is None:
            return
        contents = {"schema": 1, "choices": {k: v.model_dump() for k, v in choices.items()}}
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_atomically(self._path, json.dumps(contents, indent=1))
        except OSError as error:
            logger.warning(
                "the choice of artifacts cannot be stored; see the setting choice_file",
                extra={"file": str(self._path), "reason": str(error)},
            )


@functools.lru_cache(maxsize=4)
def _read_file(path: Path, *_: int) -> dict[str, Choice]:
    """Returns the choices in a file, cached while it is unchanged: each version's load asks."""
    data = read_plain_file(path, LIMITS.max_bytes)
    return parse_as(_Contents, data, str(path), LIMITS).choices


def _expanded(path: str) -> Path | None:
    """Returns the expanded path, or None for a user without a home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        return None
