"""Stores and Redis servers of every kind, each empty."""

from collections.abc import AsyncIterator, Iterator
from itertools import count
from pathlib import Path

import pytest

from model_store.store import ModelStore
from model_store.uploads.uploads import Uploads
from services.queueing.redis_streams import receiver, receiving_lane
from services.registry.registry import Registry
from services.registry.registry_access import RegistryAccess
from tests.fixtures.azure_server import azure_server
from tests.fixtures.gcs_server import gcs_server
from tests.fixtures.redis_servers import FLAVOURS, RedisProcess, running_redis
from tests.fixtures.s3_server import s3_server
from tests.fixtures.uploads import uploads_into

_prefixes = count()


@pytest.fixture(scope="session")
def bucket_url() -> Iterator[str]:
    """Yields a bucket for the whole run."""
    with s3_server() as url:
        yield url


@pytest.fixture
def s3_url(bucket_url: str) -> str:
    """Returns an empty store in the bucket."""
    return f"{bucket_url}/{next(_prefixes)}"


@pytest.fixture(scope="session")
def gcs_bucket_url() -> Iterator[str]:
    """Yields a bucket for the whole run."""
    with gcs_server() as url:
        yield url


@pytest.fixture(scope="session")
def azure_container_url() -> Iterator[str]:
    """Yields a container for the whole run."""
    with azure_server() as url:
        yield url


BUCKETS = {"s3": "bucket_url", "gcs": "gcs_bucket_url", "azure": "azure_container_url"}
"""Fixtures by kind of bucket."""


_IN_LONG_RUNS = [pytest.param(kind, marks=pytest.mark.long) for kind in ("gcs", "azure")]


@pytest.fixture(params=["folder", "s3", *_IN_LONG_RUNS])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Returns an empty store of each kind."""
    if request.param == "folder":
        return str(tmp_path / "store")
    return f"{request.getfixturevalue(BUCKETS[request.param])}/{next(_prefixes)}"


@pytest.fixture
def store(store_url: str) -> ModelStore:
    """Opens an empty store of each kind."""
    return ModelStore(store_url)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Returns the folder for drafts."""
    return tmp_path / "draft"


@pytest.fixture
def place(tmp_path: Path) -> ModelStore:
    """Returns the empty store of a registry, in a folder."""
    return ModelStore(str(tmp_path / "registry"))


@pytest.fixture
def uploads(place: ModelStore, tmp_path: Path) -> Uploads:
    """Returns uploads into the registry's store, in a folder of their own."""
    return uploads_into(place, tmp_path / "arriving")


@pytest.fixture
def access() -> RegistryAccess:
    """Returns the access of a registry that is open to callers without credentials."""
    return RegistryAccess(mode="open", is_closed=False)


@pytest.fixture
def registry(place: ModelStore, uploads: Uploads, access: RegistryAccess) -> Iterator[Registry]:
    """Returns the registry of the store."""
    found = Registry(place, uploads, access, lambda *_: False)
    yield found
    found.close()


@pytest.fixture(params=FLAVOURS)
async def redis(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[RedisProcess]:
    """Runs a server of each flavour."""
    async with running_redis(request.param, tmp_path) as redis:
        yield redis


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shortens the detection of abandoned work from six seconds to one."""
    monkeypatch.setattr(receiver, "KEEP_EVERY_S", 0.2)
    monkeypatch.setattr(receiving_lane, "MENTION_AFTER_S", 0.2)
    monkeypatch.setattr(receiving_lane, "COUNTS_FOR_S", 0.6)
    monkeypatch.setattr(receiving_lane, "ABANDONED_S", 0.8)
