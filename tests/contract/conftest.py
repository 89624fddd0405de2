"""Empty stores of every kind there is: a folder, and a prefix in a bucket of an S3 server."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from model_store.store import ModelStore
from tests.fixtures.s3_server import s3_server

_prefixes = count()


@pytest.fixture(scope="session")
def bucket_url() -> Iterator[str]:
    """A bucket for the whole run."""
    with s3_server() as url:
        yield url


@pytest.fixture
def s3_url(bucket_url: str) -> str:
    """An empty store in the bucket."""
    return f"{bucket_url}/{next(_prefixes)}"


@pytest.fixture(params=["folder", "s3"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    if request.param == "folder":
        return str(tmp_path / "store")
    return str(request.getfixturevalue("s3_url"))


@pytest.fixture
def store(store_url: str) -> ModelStore:
    """An empty store of each kind, opened."""
    return ModelStore(store_url)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where drafts are written."""
    return tmp_path / "draft"
