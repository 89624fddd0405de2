"""Copies of a version: as the next one of its model, whole or with a smaller largest batch.

Run as a process of its own (`python -m bench.measured.version_copy STORE`), it publishes a copy of
a model's newest version and moves `production` to it for every line with a model's name on standard
input, and prints when, as one line of JSON; an empty one says that it is ready.
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
"""Of `nice`: copying files must not slow down the client that measures."""


def copy_changed(
    source: ModelStore, manifest: Manifest, target: ModelStore, max_batch_size: int = 0
) -> Manifest:
    """Publishes a version again and points `production` at it.

    Args:
        source: where the version lies.
        manifest: of the version.
        target: where the copy goes; may be the same.
        max_batch_size: the copy's own; 0 to keep it.
    """
    changed = manifest.signature
    if max_batch_size:
        changed = changed.model_copy(update={"max_batch_size": max_batch_size})
    return publish_copy(source, manifest, target, manifest.model, signature=changed)


def publish_copy(
    source: ModelStore, manifest: Manifest, target: ModelStore, model: str, **changes: Any
) -> Manifest:
    """Publishes a version again, perhaps as another model, and points `production` at it.

    Args:
        source: where the version lies.
        manifest: of the version.
        target: where the copy goes; may be the same.
        model: the copy's name.
        changes: replace fields of the draft.
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
    """Publishes whenever told to; ends with its input."""
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
