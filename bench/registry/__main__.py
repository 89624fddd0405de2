"""`make bench-push`: the registry beside a plain copy, and a store of many versions.

Pushes a version with a file of 1 GB to a server on this machine, and copies the same file and takes
its sha256, by turns; pushes a second version of which one small file differs; lists and shows the
models of a store of 100 models with 1,000 versions each. Prints a line a figure, with its limit.
"""

import argparse
import hashlib
import http.client
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from flambeau.registry.connection import RegistryConnection
from flambeau.registry.push import PushReport, push_version
from flambeau.registry.sources import VersionFolder
from model_store.manifest import FileEntry, Manifest
from model_store.storage.checked_files import digest_of_file
from model_store.store import ModelStore
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.store_versions import draft_in, publish_in

BLOCK_BYTES = 2**20
MODELS, VERSIONS = 100, 1000
MIN_SHARE, MAX_LIST_MS, MAX_SHOW_MS = 0.8, 200.0, 20.0


def main() -> None:
    """Measures, and prints."""
    parser = argparse.ArgumentParser(prog="python -m bench.registry", description=__doc__)
    parser.add_argument("--mb", type=int, default=1000, help="size of the file")
    parser.add_argument("--repeats", type=int, default=3, help="pushes and copies")
    parser.add_argument("--models", type=int, default=MODELS, help="models of the large store")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="flambeau-bench-") as name:
        _pushes(Path(name), options.mb, options.repeats)
        _listings(Path(name), options.models)


def _pushes(folder: Path, megabytes: int, repeats: int) -> None:
    first, second = (_version(folder, number, megabytes) for number in (1, 2))
    copies, pushes = [], []
    for number in range(repeats):
        copies.append(_seconds(lambda: _copied(first / "model.onnx", folder / "copy")))
        store = folder / f"target-{number}"
        with running_server(store, registry="open") as server:
            pushes.append(_seconds(lambda: _push(server, first)))
            again = _push(server, second)
        shutil.rmtree(store)
    share = statistics.median(copies) / statistics.median(pushes)
    rates = [megabytes / statistics.median(found) for found in (copies, pushes)]
    print(f"copy and sha256 {rates[0]:.0f} MB/s, push {rates[1]:.0f} MB/s")
    print(f"push / copy {share:.2f} (at least {MIN_SHARE})")
    print(f"second version: {again.files_copied} files, {again.bytes_copied:,} bytes sent")


def _version(folder: Path, number: int, megabytes: int) -> Path:
    """Writes the folder of a version: a large file of random blocks, and a small one."""
    place = folder / "source" / str(number)
    draft = draft_in(place)
    if number == 1:
        block = os.urandom(BLOCK_BYTES)
        with open(place / "model.onnx", "wb") as file:
            for index in range(megabytes * 1_000_000 // BLOCK_BYTES):
                file.write(index.to_bytes(8, "big") + block[8:])
    else:
        shutil.copyfile(folder / "source" / "1" / "model.onnx", place / "model.onnx")
    size = (place / "model.onnx").stat().st_size
    sha256 = digest_of_file(place / "model.onnx")
    entry = FileEntry(file="model.onnx", sha256=sha256, size_bytes=size)
    report = f'{{"version": {number}}}\n'.encode()
    (place / "report.json").write_bytes(report)
    other = FileEntry(
        file="report.json", sha256=hashlib.sha256(report).hexdigest(), size_bytes=len(report)
    )
    artifact = draft.artifacts[0].model_copy(update={"file": entry})
    changed = draft.model_copy(update={"artifacts": (artifact,), "files": (other,)})
    manifest: Manifest = changed.seal(number, datetime.now(UTC))
    (place / "manifest.json").write_bytes(manifest.to_json())
    return place


def _copied(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)
    digest_of_file(target)
    target.unlink()


def _push(server: ServerProcess, folder: Path) -> PushReport:
    connection = RegistryConnection(f"http://{server.http}")
    try:
        return push_version(connection, VersionFolder(folder), lambda *_: None)
    finally:
        connection.close()


def _listings(folder: Path, models: int) -> None:
    store = ModelStore(str(folder / "many"))
    publish_in(store, folder / "draft", "model-000")
    manifest = store.manifest("model-000", 1)
    for number in range(models):
        name = f"model-{number:03d}"
        for version in range(1, VERSIONS + 1):
            place = Path(store.url, name, str(version))
            place.mkdir(parents=True, exist_ok=True)
            one = manifest.model_copy(update={"model": name, "version": version, "semver": None})
            (place / "manifest.json").write_bytes(one.to_json())
            (place / "claim.json").write_bytes(b"{}")
        store.promote(name, VERSIONS)
    with running_server(Path(store.url), "--model=model-000") as server:
        calls = {
            f"list of {models} models": (f"models?limit={min(models, 100)}", MAX_LIST_MS),
            "page of a model": ("models/model-000", MAX_LIST_MS),
            "show of a version": ("models/model-001/versions/500", MAX_SHOW_MS),
        }
        for what, (path, most_ms) in calls.items():
            taken = [_seconds(lambda: _get(server, path)) * 1e3 for _ in range(15)]  # noqa: B023
            print(f"{what}: {statistics.median(taken):.1f} ms (at most {most_ms:g})")


def _get(server: ServerProcess, path: str) -> None:
    connection = http.client.HTTPConnection(server.http, timeout=60)
    try:
        connection.request("GET", f"/v1/registry/{path}")
        answer = connection.getresponse()
        assert answer.status == 200, answer.read()
        answer.read()
    finally:
        connection.close()


def _seconds(work: Callable[[], object]) -> float:
    begun = time.perf_counter()
    work()
    return time.perf_counter() - begun


if __name__ == "__main__":
    main()
