"""The training service as users meet it: real processes, real runs, a real kill -9."""

import json
import subprocess
import sys
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from redis import Redis

from flambeau.split_processes import redis_process
from model_store.store import ModelStore
from tests.fixtures.servers import ROOT, WAIT_TIMEOUT_S, Lines
from tests.fixtures.trainer_processes import TrainerProcess, running_trainer
from tests.fixtures.training_jobs import BEARER, KEYS, TOKEN

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
    """Returns the option of a service with one known client; its token lies beside the file."""
    (tmp_path / "keys.yaml").write_text(KEYS)
    (tmp_path / "token").write_text(TOKEN)
    return f"--api-keys-file={tmp_path / 'keys.yaml'}"


@contextmanager
def submitted(folder: Path, service: TrainerProcess, allowed_steps: int) -> Iterator[Lines]:
    """Submits the recipe by the command line, and yields its output as it follows the job.

    It must exit cleanly at the end of the block.
    """
    (folder / "code").mkdir()
    (folder / "code/nets.py").write_text(NETWORK)
    (folder / "code/gate").write_text(str(allowed_steps))
    (folder / "recipe.yaml").write_text(RECIPE)
    command = [
        sys.executable, "-m", "flambeau", "train", "submit", str(folder / "recipe.yaml"),
        "--server", service.grpc, "--token-file", str(folder / "token"),
        "--bundle", str(folder / "code"), "--set", "train.epochs=5", "--follow",
    ]  # fmt: skip
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = Lines(process.stdout)
        try:
            yield lines
            assert process.wait(WAIT_TIMEOUT_S) == 0, lines.all()
        finally:
            process.kill()


def allow(gate: Path, steps: int) -> None:
    """Writes atomically: every reader of the gate finds a number."""
    new = gate.with_suffix(".new")
    new.write_text(str(steps))
    new.replace(gate)


def test_rates_are_shared_by_way_of_redis(tmp_path: Path) -> None:
    """The rules of sharing are tested in tests/contract/test_shared_rates.py."""
    (tmp_path / "keys.yaml").write_text(KEYS.replace("}", ", requests_per_s: 10}"))
    with (
        redis_process(tmp_path) as redis,
        Redis.from_url(redis.url) as kept,
        running_trainer(
            tmp_path,
            "--no-worker",
            f"--api-keys-file={tmp_path / 'keys.yaml'}",
            f"--jobs={redis.url}",
        ) as api,
    ):
        assert api.call("/v1/jobs", authorization=BEARER) == {"jobs": []}
        give_up_at = time.monotonic() + WAIT_TIMEOUT_S
        while not kept.exists("flambeau:rate:{key:ann requests}"):
            assert time.monotonic() < give_up_at
            api.call("/v1/jobs", authorization=BEARER)
            time.sleep(0.2)  # more often would exceed the rate
        api.stop()


@pytest.mark.long
def test_a_job_outlives_its_workers(tmp_path: Path, tokens: str) -> None:
    """One is killed, the next is asked to stop, the third ends what the first began."""
    audit = tmp_path / "audit.jsonl"
    known = (tokens, f"--audit-log={audit}")
    with (
        redis_process(tmp_path) as redis,
        running_trainer(tmp_path, "--no-worker", *known, f"--jobs={redis.url}") as api,
        submitted(tmp_path, api, allowed_steps=1) as shown,
    ):
        worker = ("--no-api", f"--jobs={redis.url}", "--drain-timeout-s=3")
        job = shown.wait_for(lambda line: len(line) == 16)
        gate = tmp_path / "runs" / job / "code" / "gate"
        with running_trainer(tmp_path, *worker) as first:
            shown.wait_for(lambda line: "epoch 1/5" in line)
            with running_trainer(tmp_path, *worker) as second:
                first.kill()
                shown.wait_for(lambda line: "epoch 2/5" in line)
                assert "flambeau_training_takeovers_total 1.0" in second.metrics()
                with second.stopping():
                    allow(gate, 2)  # it ends after one more epoch
        assert api.call(f"/v1/jobs/{job}", authorization=BEARER)["state"] == "queued"
        allow(gate, 1000)
        with running_trainer(tmp_path, *worker) as third:
            shown.wait_for(lambda line: "succeeded: published gated 1" in line)
            third.stop()
        found = api.call(f"/v1/jobs/{job}", authorization=BEARER)
        history = api.events(job, authorization=BEARER)
        api.stop()
    (act,) = map(json.loads, audit.read_text().splitlines())
    assert (act["act"], act["target"], act["outcome"]) == ("submit", "gated", "done")
    assert (found["state"], found["version"], found["attempts"]) == ("succeeded", 1, 3)
    told = [event["text"].partition(" on trainer-")[0] for event in history if "state" in event]
    told = [text.partition("; warning")[0] for text in told]
    assert [text for text in told if "returned to the queue" not in text and " "
    "died; " not in text] == [
        "submitted by key:ann", "started", "resumed from its checkpoint",
        "resumed from its checkpoint", "published gated 1 → production",
    ]  # fmt: skip
    assert sum("died; another takes over" in text for text in told) == 1
    assert sum("returned to the queue by" in text for text in told) == 1
    assert [event["epoch"] for event in history if event["kind"] == "metric"] == [1, 2, 3, 4, 5]
    resumed = [text for event in history if "resuming after" in (text := event.get("text", ""))]
    assert len(resumed) == 2, "each of the others went on from a checkpoint"
    assert ModelStore(str(tmp_path / "store")).versions("gated") == [1]


def test_all_in_one_needs_nothing_but_a_folder(tmp_path: Path) -> None:
    """Without keys: no foreign code, and nothing that is refused leaves a trace."""
    with running_trainer(tmp_path, f"--jobs={tmp_path / 'jobs.db'}") as service:
        assert service.call("/v1/health/ready") == {"ready": True}
        assert service.call("/v1/recipe.schema.json")["title"] == "Recipe"
        with pytest.raises(urllib.error.HTTPError) as refused:
            service.call("/v1/jobs", {"recipe": RECIPE})
        assert (refused.value.code, "nets.py:Net" in refused.value.read().decode()) == (403, True)
        assert service.call("/v1/jobs") == {"jobs": []}
        assert 'flambeau_training_jobs{state="queued"} 0.0' in service.metrics()
        service.stop()
    assert list((tmp_path / "runs").iterdir()) == []
