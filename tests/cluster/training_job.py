"""One long training job, submitted through Envoy, which must finish once despite lost trainers."""

import base64
import io
import os
import time
import zipfile
from pathlib import Path
from typing import Any

import urllib3

from model_store.store import ModelStore
from tests.cluster.callers import RETRIES
from tests.fixtures.training_jobs import BEARER

MODEL = "trained"
EPOCHS = 400
"""More than a run lasts in seconds; those that are left then take milliseconds each."""
LOOK_EVERY_S = 0.5
NETWORK = '''
"""A network that takes a second a step until there is something in a pipe, which nobody takes."""
import os
import select
import numpy as np
from torch import nn

HURRY = os.open("{hurry}", os.O_RDONLY | os.O_NONBLOCK)

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        if self.training:
            select.select([HURRY], [], [], 1)
        return self.layers(x)

def rows(seed):
    x = np.random.default_rng(seed).normal(size=(32, 4)).astype(np.float32)
    split = ({"x": x}, (x.sum(1) > 0).astype(np.int64))
    return {"train": split, "validation": split, "test": split}
'''
RECIPE = f"""
name: {MODEL}
model: {{target: "nets.py:Net"}}
data: {{target: "nets.py:rows", batch_size: 32}}
train: {{epochs: {EPOCHS}, threads: 1}}
track: [jsonl]
export: [{{kind: torchscript}}]
publish: {{model: {MODEL}}}
"""


class TrainingJob:
    """The job.

    Args:
        front: `host:port` of Envoy.
        runs: folder of all jobs; a pipe is created beside it.
        store: model store.
    """

    def __init__(self, front: str, runs: Path, store: Path) -> None:
        self._url = f"http://{front}/v1/jobs"
        self._store = store
        self._pool = urllib3.PoolManager(retries=RETRIES, timeout=30)
        self._id = ""
        hurry = runs.with_name("hurry")
        os.mkfifo(hurry)
        # Held open, so that data in the pipe stays for later readers.
        self._hurry = os.open(hurry, os.O_RDWR)
        self._network = NETWORK.replace("{hurry}", str(hurry))

    def submit(self) -> None:
        """Submits it twice, as a client would that lost the response."""
        bundle = io.BytesIO()
        with zipfile.ZipFile(bundle, "w") as archive:
            archive.writestr("nets.py", self._network)
        body = {"recipe": RECIPE, "bundle_base64": base64.b64encode(bundle.getvalue()).decode()}
        headers = {"authorization": BEARER, "idempotency-key": "only-once"}
        ids = [
            self._json(self._pool.request("POST", self._url, json=body, headers=headers))["id"]
            for _ in range(2)
        ]
        assert ids[0] == ids[1], f"one idempotency key, two jobs: {ids}"
        self._id = ids[0]

    def read(self) -> dict[str, Any]:
        """Returns the job's document from the service."""
        url, headers = f"{self._url}/{self._id}", {"authorization": BEARER}
        return self._json(self._pool.request("GET", url, headers=headers))

    def await_progress(self, timeout_s: float) -> None:
        """Waits until another epoch has ended; only the service reports that."""
        begun, give_up_at = self.read()["epoch"], time.monotonic() + timeout_s
        while (job := self.read())["epoch"] <= begun:
            assert time.monotonic() < give_up_at, f"no epoch ends: {job}"
            time.sleep(LOOK_EVERY_S)

    def await_end(self, timeout_s: float) -> dict[str, Any]:
        """Lets the training run at full speed, and waits for its end. Returns the job."""
        os.write(self._hurry, b"yes")
        give_up_at = time.monotonic() + timeout_s
        while (job := self.read())["state"] in ("queued", "running"):
            assert time.monotonic() < give_up_at, f"it does not end: {job}"
            time.sleep(LOOK_EVERY_S)
        return job

    def complaints(self, job: dict[str, Any]) -> list[str]:
        """Returns the errors of a finished job, and of its published version, one line each."""
        found = []
        if job["state"] != "succeeded" or job["epoch"] != EPOCHS:
            found.append(f"the training job: {job}")
        versions = list(ModelStore(str(self._store)).versions(MODEL))
        if versions != [1]:
            found.append(f"the training job published {versions}, not version 1 alone")
        return found

    @staticmethod
    def _json(reply: urllib3.BaseHTTPResponse) -> dict[str, Any]:
        assert reply.status in (200, 201, 202), (reply.status, reply.data)
        document: dict[str, Any] = reply.json()
        return document
