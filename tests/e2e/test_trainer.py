"""The training service as users meet it: real processes, real runs, a real kill -9."""

import base64
import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flambeau.split_processes import redis_process
from model_store.store import ModelStore
from tests.fixtures.servers import ROOT
from tests.fixtures.training_jobs import BEARER, TOKEN, TOKENS
from tests.fixtures.trainer_processes import TrainerProcess, running_trainer

NETWORK = '''
"""A network with as many training steps to a process as the file `gate` allows."""
import time
from pathlib import Path
import numpy as np
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.steps = 0

    def forward(self, x):
        if self.training:
            while self.steps >= int(Path("gate").read_text()):
                time.sleep(0.01)
            self.steps += 1
        return self.layers(x)

def rows(seed):
    x = np.random.default_rng(seed).normal(size=(32, 4)).astype(np.float32)
    split = ({"x": x}, (x.sum(1) > 0).astype(np.int64))
    return {"train": split, "validation": split, "test": split}
'''
RECIPE = """
name: gated
model: {target: "nets.py:Net"}
data: {target: "nets.py:rows", batch_size: 32}
train: {epochs: 5, threads: 1}
track: [jsonl]
export: [{kind: torchscript}]
publish: {model: gated}
"""


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    (tmp_path / "tokens").write_text(TOKENS)
    return f"--tokens-file={tmp_path / 'tokens'}"


def bundle(allowed_steps: int) -> str:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name, text in (("nets.py", NETWORK), ("gate", str(allowed_steps))):
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return base64.b64encode(packed.getvalue()).decode()


def test_a_recipe_and_its_code_become_a_version(tmp_path: Path, tokens: str) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/nets.py").write_text(NETWORK)
    (tmp_path / "code/gate").write_text("1000")
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    (tmp_path / "token").write_text(TOKEN)
    with running_trainer(tmp_path, f"--jobs={tmp_path / 'jobs.db'}", tokens) as service:
        command = [
            sys.executable, "-m", "flambeau", "train", "submit", str(tmp_path / "recipe.yaml"),
            "--server", service.grpc, "--token-file", str(tmp_path / "token"),
            "--bundle", str(tmp_path / "code"), "--set", "train.epochs=2", "--follow",
        ]  # fmt: skip
        found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert found.returncode == 0, found.stdout + found.stderr
        job = service.call("/v1/jobs")["jobs"][0]
        assert found.stdout.splitlines()[0] == job["id"]
        assert "training gated  epoch 2/2" in found.stdout
        assert "succeeded: published gated 1" in found.stdout
        assert (job["state"], job["version"], job["epoch"], job["submitter"]) == (
            "succeeded", 1, 2, "ann",
        )  # fmt: skip
        assert 'flambeau_training_finished_jobs_total{state="succeeded"} 1.0' in service.metrics()
        service.stop()
    manifest = ModelStore(str(tmp_path / "store")).manifest("gated", 1)
    assert manifest.model == "gated"


def until_epoch(events: Iterator[dict[str, Any]], epoch: int) -> list[dict[str, Any]]:
    """Events up to the metrics of an epoch."""
    seen = []
    for event in events:
        seen.append(event)
        if event.get("epoch") == epoch:
            return seen
    raise AssertionError(f"it ended before epoch {epoch}: {seen}")


def test_a_job_outlives_its_workers(tmp_path: Path, tokens: str) -> None:
    """One is killed, the next is asked to stop, the third ends what the first began."""
    with (
        redis_process(tmp_path) as (_, url),
        running_trainer(tmp_path, "--no-worker", tokens, f"--jobs={url}") as api,
    ):
        worker = ("--no-api", f"--jobs={url}", "--drain-timeout-s=5")
        wanted = {"recipe": RECIPE, "bundle_base64": bundle(allowed_steps=1)}
        job = api.call("/v1/jobs", wanted, authorization=BEARER)["id"]
        gate = tmp_path / "runs" / job / "code" / "gate"
        events = api.events(job)
        with running_trainer(tmp_path, *worker) as first:
            until_epoch(events, 1)
            with running_trainer(tmp_path, *worker) as second:
                first.kill()
                until_epoch(events, 2)
                _stop_between_epochs(second, gate)
        assert api.call(f"/v1/jobs/{job}")["state"] == "queued"
        gate.write_text("1000")
        with running_trainer(tmp_path, *worker) as third:
            list(events)
            third.stop()
        found = api.call(f"/v1/jobs/{job}")
        history = list(api.events(job))
        api.stop()
    assert (found["state"], found["version"], found["attempts"]) == ("succeeded", 1, 3)
    states = [event["text"].partition(" on trainer-")[0] for event in history if "state" in event]
    assert [text for text in states if "handed back" not in text and "is gone" not in text] == [
        "submitted by ann", "started", "resumed from its checkpoint",
        "resumed from its checkpoint", "published gated 1",
    ]  # fmt: skip
    assert sum("is gone; another takes over" in text for text in states) == 1
    assert sum("handed back by" in text for text in states) == 1
    assert [event["epoch"] for event in history if event["kind"] == "metric"] == [1, 2, 3, 4, 5]
    resumed = [event["text"] for event in history if "resuming after epoch" in event.get("text", "")]
    assert len(resumed) == 2, "each of the others went on from a checkpoint"
    assert ModelStore(str(tmp_path / "store")).versions("gated") == [1]


def _stop_between_epochs(service: TrainerProcess, gate: Path) -> None:
    """Asks a worker to stop, with one more step for its job: it ends after that epoch."""
    import threading

    stopping = threading.Thread(target=service.stop)
    stopping.start()
    gate.write_text("2")
    stopping.join()
