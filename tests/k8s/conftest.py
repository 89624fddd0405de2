"""The environment of the images' processes: Redis, a bucket, files, a worker."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.redis_servers import redis_process
from tests.fixtures.s3_server import s3_server
from tests.fixtures.split_servers import running_worker
from tests.images.lock_environment import own_wheel
from tests.k8s.starting import Surroundings, fill


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Installs our own packages from a wheel."""
    return own_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def around(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Surroundings]:
    """Creates a bucket and a folder with a model each, Redis, and the files of Secrets."""
    folder = tmp_path_factory.mktemp("root")
    fill(folder)
    local = folder / "var/lib/flambeau/store"
    publish(str(local), "digits", linear())
    shutil.copytree(local, folder / "mnt/models")
    with redis_process() as redis, s3_server() as bucket:
        store = f"{bucket}/prod"
        publish(store, "digits", linear())
        yield Surroundings(folder, redis.url, store, site)


@pytest.fixture(scope="module")
def worker(around: Surroundings) -> Iterator[None]:
    """Runs a worker of this environment, so that gateways have a model to serve."""
    with running_worker(around.folder / "var/lib/flambeau/store", around.queue):
        yield
