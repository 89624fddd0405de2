"""The models of a snapshot of TorchServe: `model_snapshot` of `config.properties`. Pure.

In: a document of JSON. Out: an archive with its settings for each version of each model, the
default version of a model first.
Source: the snapshots that TorchServe 0.12 writes and restores, and KServe's images begin with.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from model_store.archives.model_config import ModelConfig, config_of
from model_store.document import LARGE, parse_document

MAX_SNAPSHOT_MODELS = 1_000
"""Versions of a snapshot."""
OF_ARCHIVE = ("defaultVersion", "marName")
"""Keys of a version that name its archive, and the default version."""
_OF_SERVER = ("parallelLevel", "parallelType", "runtimeType", "useVenv")
"""Keys that TorchServe writes into every snapshot, also where they say nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotModel:
    """A version of a snapshot."""

    name: str
    """Name of the model."""
    archive: str
    """File or folder of the model store."""
    config: ModelConfig
    """Settings, which go before those of the archive."""


def parse_snapshot(text: str) -> tuple[SnapshotModel, ...]:
    """Reads a snapshot.

    Raises:
        ValueError, DocumentError: it has another form, or exceeds a limit.
    """
    document = parse_document(text.encode(), "model_snapshot", LARGE)
    models = document.get("models") if isinstance(document, dict) else None
    if not isinstance(models, dict):
        raise ValueError('write {"name": "startup.cfg", "models": {"MODEL": {"VERSION": …}}}')
    found = [
        (not _is_default(one), name, one)
        for name, versions in models.items()
        for one in _versions_of(name, versions)
    ]
    if len(found) > MAX_SNAPSHOT_MODELS:
        raise ValueError(
            f"it has {len(found):,} versions, and at most {MAX_SNAPSHOT_MODELS:,} are registered "
            "at the start; register the others by management"
        )
    found.sort(key=lambda one: one[0])
    return tuple(_model_of(name, one) for _, name, one in found)


def _versions_of(name: str, versions: Any) -> list[dict[str, Any]]:
    if not isinstance(versions, dict):
        raise ValueError(f"'{name[:100]}' has no versions; write {{\"1.0\": {{…}}}}")
    found = list(versions.values())
    for one in found:
        if not isinstance(one, dict) or not isinstance(one.get("marName"), str):
            raise ValueError(
                f"a version of '{name[:100]}' has no 'marName'; name its archive in the model store"
            )
    return found


def _is_default(one: Mapping[str, Any]) -> bool:
    return one.get("defaultVersion") is True


def _model_of(name: str, one: Mapping[str, Any]) -> SnapshotModel:
    left = (*OF_ARCHIVE, *_OF_SERVER)
    config = config_of({key: value for key, value in one.items() if key not in left})
    return SnapshotModel(name=name, archive=one["marName"], config=config)
