"""Copies of a version: as the next version of its model, unchanged or with a smaller largest batch.

Runs as a process of its own (`python -m bench.measured.version_copy STORE`). For every line with a
model's name on standard input it publishes a copy of the newest version, moves `production` to it
and prints the times as one line of JSON. Its first line, an empty object, means that it is ready.
"""

import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.measured.golden_model import newest_manifest
from model_store.manifest import Draft, Manifest
from model_store.store import ModelStore

LEAST_URGENT = 19
"""`nice` value: copying files must not slow down the measuring client."""


def copy_changed(
    source: ModelStore, manifest: Manifest, target: ModelStore, max_batch_size: int = 0
) -> Manifest:
    """Publishes a version again and points `production` at the copy.

    Args:
        source: model store of the version.
        manifest: manifest of the version.
        target: model store of the copy; may be the same.
        max_batch_size: largest batch of the copy; 0 to keep the original's.
    """
    changed = manifest.signature
    if max_batch_size:
        changed = changed.model_copy(update={"max_batch_size": max_batch_size})
    return publish_copy(source, manifest, target, manifest.model, signature=changed)


def publish_copy(
    source: ModelStore, manifest: Manifest, target: ModelStore, model: str, **changes: Any
) -> Manifest:
    """Publishes a version again, optionally as another model, and points `production` at it.

    Args:
        source: model store of the version.
        manifest: manifest of the version.
        target: model store of the copy; may be the same.
        model: name of the copy.
        changes: replacements for fields of the draft.
    """
    fields = {name: getattr(manifest, name) for name in Draft.model_fields}
    fields |= {"model": model, **changes}
    with tempfile.TemporaryDirectory(prefix="bench-copy-") as folder:
        for entry in manifest.all_files():
            (Path(folder) / entry.file).write_bytes(source.read_file(manifest, entry))
        copied = target.publish(Draft(**fields), Path(folder))
    target.promote(model, copied.version, why="a benchmark's copy")
    return copied


def main() -> None:
    """Publishes a copy for each input line; ends at end of input."""
    os.nice(LEAST_URGENT)
    store = ModelStore(sys.argv[1])
    print("{}", flush=True)
    for line in sys.stdin:
        began = time.monotonic()
        copied = copy_changed(store, newest_manifest(store, line.strip()), store)
        said = {"began": began, "moved": time.monotonic(), "version": copied.version}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main()
