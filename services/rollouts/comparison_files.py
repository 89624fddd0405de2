"""Files of the counts of shadows and splits, in the model store. Every function blocks.

    <model>/rollouts/<shadow>/shadow/<process>.json                    figures of one process
    <model>/rollouts/<split>/arms/<version>/evidence/<process>.json    counts beside the first arm

Rules: a process replaces its own files alone, whole, and never larger counts by smaller ones.
Files are hostile input: a damaged one is named, and does not keep the others from being read.
"""

import re
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated

import orjson
from pydantic import BeforeValidator, Field, JsonValue

from flambeau.protocol.strict import StrictModel
from model_store.document import DocumentLimits, parse_as
from model_store.errors import DocumentError, StorageError, TooLargeError
from model_store.rollouts.traffic import Split, Traffic
from model_store.storage.storage import MissingFileError, Storage
from services.rollouts.evidence.errors import InvalidEvidenceError
from services.rollouts.evidence.evidence import MAX_COUNT, Evidence
from services.rollouts.evidence_files import EvidenceFiles, FoundEvidence
from services.rollouts.shadow_figures import (
    MAX_BUCKETS,
    MAX_PAIRS,
    MAX_REASONS,
    KeptPair,
    ShadowFigures,
    merged,
)

MAX_SHADOW_FILES = 1_000
MAX_SHADOW_BYTES = 8 * 2**20
"""A hundred pairs with a hundred values of each tensor have 1 MB."""
MOST_PAIRS_BYTES = MAX_SHADOW_BYTES // 2
"""Kept pairs of a file; one that is larger than its share of it is written without its tensors."""
LARGEST = sys.float_info.max
_LIMITS = DocumentLimits(MAX_SHADOW_BYTES, 500_000)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")


Whole = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Share = Annotated[float, Field(ge=0, le=1)]
MAX_TEXT = 2000
Text = Annotated[str, Field(max_length=MAX_TEXT)]
Tensors = Annotated[list[dict[str, JsonValue]], Field(max_length=256)]
Buckets = Annotated[
    dict[Annotated[int, Field(ge=-MAX_BUCKETS, le=MAX_BUCKETS)], Whole],
    Field(max_length=MAX_BUCKETS),
]
Largest = Annotated[
    float, Field(ge=0), BeforeValidator(lambda one: LARGEST if one is None else one)
]
"""A difference; JSON has null for one that is infinite."""


class _StoredPair(StrictModel):
    disagreement: Share
    difference: Largest
    request_id: Text
    when: float
    inputs: Tensors
    live: Tensors
    candidate: Tensors
    error: Text = ""


class _StoredFigures(StrictModel):
    """Figures of a shadow, as a file may have them; see `ShadowFigures`."""

    keep: Annotated[int, Field(ge=0, le=MAX_PAIRS)]
    pairs: Whole
    agreed: Whole
    failed: Whole
    nan: Whole
    disagreement: Annotated[float, Field(ge=0, le=MAX_COUNT)]
    difference: Largest
    live_s: Buckets
    candidate_s: Buckets
    dropped: Annotated[dict[Text, Whole], Field(max_length=MAX_REASONS)]
    worst: Annotated[list[_StoredPair], Field(max_length=MAX_PAIRS)]


def write_comparisons(
    storage: Storage,
    model: str,
    traffic: Traffic,
    process: str,
    arms: Mapping[int, Evidence],
    figures: ShadowFigures | None,
) -> None:
    """Replaces the files of a process, but none that has counted more.

    Args:
        storage: that of the model store.
        model: name of the model.
        traffic: that of the model.
        process: a name that no other process ever has.
        arms: counts of the split by version of each arm but the first.
        figures: those of the shadow; None for none.

    Raises:
        InvalidEvidenceError: the name cannot be that of a file.
        StorageError: the store failed.
    """
    if not _NAME.fullmatch(process):
        raise InvalidEvidenceError(f"'{process[:60]}' names no process; use letters and digits")
    if traffic.split is not None:
        for version, evidence in arms.items():
            _files(storage, model, traffic.split.id, version).write(process, evidence)
    if traffic.shadow is not None and figures is not None:
        path = f"{_folder(model, traffic.shadow.id)}{process}.json"
        if not _has_more(storage, path, figures):
            storage.replace(path, bytes_of_figures(figures))


def _has_more(storage: Storage, path: str, figures: ShadowFigures) -> bool:
    """Returns True if a file has counted more than the figures of its process."""
    try:
        former = figures_of(storage.get(path, MAX_SHADOW_BYTES), path)
    except (MissingFileError, TooLargeError, DocumentError, InvalidEvidenceError):
        return False
    dropped = sum(former.dropped.values()) > sum(figures.dropped.values())
    return former.pairs > figures.pairs or dropped


def split_evidence(storage: Storage, model: str, split: Split) -> dict[int, FoundEvidence]:
    """Reads the counts of each arm but the first, by version.

    Raises:
        StorageError: a folder cannot be listed.
    """
    versions = [arm.version for arm in split.arms[1:]]
    return {version: _files(storage, model, split.id, version).read() for version in versions}


def shadow_figures(
    storage: Storage, model: str, shadow_id: str
) -> tuple[ShadowFigures | None, dict[str, str]]:
    """Reads and adds the figures of all processes.

    Returns:
        The figures, None if there are none; and the reason by path of each file that is left out.

    Raises:
        StorageError: the folder cannot be listed.
    """
    parts: list[ShadowFigures] = []
    left_out: dict[str, str] = {}
    paths = sorted(storage.list(_folder(model, shadow_id)))
    for path in paths[:MAX_SHADOW_FILES]:
        try:
            parts.append(figures_of(storage.get(path, MAX_SHADOW_BYTES), path))
        except MissingFileError:
            continue
        except (StorageError, DocumentError, InvalidEvidenceError) as error:
            left_out[path] = str(error)
    for path in paths[MAX_SHADOW_FILES:]:
        left_out[path] = f"{MAX_SHADOW_FILES:,} files of figures are read at most"
    return (merged(parts) if parts else None), left_out


def bytes_of_figures(figures: ShadowFigures) -> bytes:
    """Returns the content of a file of figures."""
    most_bytes = MOST_PAIRS_BYTES // max(len(figures.worst), 1)
    worst = [orjson.Fragment(_pair_bytes(pair, most_bytes)) for pair in figures.worst]
    return orjson.dumps({**figures.as_plain(), "worst": worst})


def _pair_bytes(pair: KeptPair, most_bytes: int) -> bytes:
    texts = {"request_id": _cut(pair.request_id), "error": _cut(pair.error)}
    data = orjson.dumps({**asdict(pair), **texts})
    if len(data) < most_bytes:
        return data
    return orjson.dumps({**asdict(pair), **texts, "inputs": [], "live": [], "candidate": []})


def _cut(text: str) -> str:
    """Returns what a file may have of a text."""
    return text[:MAX_TEXT].encode("utf-8", "replace").decode()


def figures_of(data: bytes, where: str) -> ShadowFigures:
    """Reads the content of a file of figures.

    Raises:
        DocumentError: it is too large, or not JSON.
        InvalidEvidenceError: they are no figures.
    """
    found = parse_as(_StoredFigures, data, where, _LIMITS)
    return ShadowFigures.from_plain(found.model_dump())


def _folder(model: str, shadow_id: str) -> str:
    return f"{model}/rollouts/{shadow_id}/shadow/"


def _files(storage: Storage, model: str, split_id: str, version: int) -> EvidenceFiles:
    return EvidenceFiles(storage, model, f"{split_id}/arms/{version}")
