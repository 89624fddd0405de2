"""The limit: the artifact in a loop, one thread, nothing around it.

Run as a process of its own (`python -m bench.raw_model STORE MODEL VERSION ARTIFACT`), pinned to
the server's core; prints samples a second by batch size as JSON.
"""

import json
import sys
import time

import numpy as np
from safetensors.numpy import load as load_safetensors

from model_store.golden import golden_rows
from model_store.store import ModelStore
from services.inference.backends.backend import open_backend

BATCH_SIZES = (1, 2, 4, 8, 16, 32, 64)
SECONDS_EACH = 1.0


def main() -> None:
    """Measures and prints."""
    url, model, version, name = sys.argv[1:]
    store = ModelStore(url)
    manifest = store.manifest(model, int(version))
    artifact = next(a for a in manifest.artifacts if a.name == name)
    data = store.read_file(manifest, artifact.file)
    backend = open_backend(artifact, data, manifest.signature, threads=1)
    golden = golden_rows(load_safetensors(store.read_file(manifest, manifest.golden.file)))
    rates = {}
    for rows in BATCH_SIZES:
        if rows <= manifest.signature.max_batch_size:
            batch = {n: np.resize(a, (rows, *a.shape[1:])) for n, a in golden.inputs.items()}
            backend.run(batch)
            runs, started = 0, time.perf_counter()
            while time.perf_counter() - started < SECONDS_EACH:
                backend.run(batch)
                runs += 1
            rates[rows] = runs * rows / (time.perf_counter() - started)
    print(json.dumps(rates))


if __name__ == "__main__":
    main()
