"""Versions that a server holds are not deleted by its own registry."""

from functools import partial
from pathlib import Path

import pytest

from model_store.store import ModelStore
from services.access.caller import Principal
from services.errors import ConflictError
from services.queueing.directory import Directory
from services.queueing.records import Lane, ServedVersion
from services.registry_server.opening import holds, open_registry
from services.standalone.config import ServerConfig
from tests.fixtures.store_versions import publish_in


async def test_only_a_version_that_failed_or_is_not_there_is_deleted(tmp_path: Path) -> None:
    """An unloaded version is loaded again by the next request for it."""
    store, directory = ModelStore(str(tmp_path / "store")), Directory()
    for number in range(5):
        publish_in(store, tmp_path / "draft", artifact=f"bytes {number}".encode())
    for served in (
        ServedVersion(lane=Lane("digits", 1), state="ready"),
        ServedVersion(lane=Lane("digits", 2), state="loading"),
        ServedVersion(lane=Lane("digits", 3), state="unloaded"),
        ServedVersion(lane=Lane("digits", 4), state="failed"),
    ):
        directory.announce(served)
    config = ServerConfig.model_validate({"store": store.url, "registry": "open"})
    registry = open_registry(config, store, partial(holds, directory))
    try:
        anyone = Principal(None, "127.0.0.1")
        for version in (1, 2, 3):
            with pytest.raises(ConflictError, match="is served here"):
                await registry.delete(anyone, "digits", version, "")
        for version in (4, 5):
            await registry.delete(anyone, "digits", version, "")
    finally:
        registry.close()
    assert store.versions("digits") == [1, 2, 3]
