"""Training as a user runs it: real runs, real files, a real kill -9."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import onnxruntime
import pytest
import typer
from safetensors.numpy import load as load_safetensors
from typer.testing import CliRunner, Result

from flambeau.commands.train import train
from model_store.manifest import Manifest
from model_store.store import ModelStore
from services.inference.loading.loader import LoadOptions, load_version
from tests.fixtures.signing import key_in
from training.datasets import load_splits
from training.recipe.file import load_recipe, parse_recipe
from training.reporting.report import Report

ROOT = Path(__file__).parents[2]
DIGITS = str(ROOT / "training/recipes/digits_cnn.yaml")
STEPS_PER_EPOCH = 20

HELD_NETWORK = '''
"""A network that needs every random generator, and can be stopped in the middle of an epoch."""
import os, random, sys
import numpy as np
from torch import nn

class Held(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Flatten(), nn.Linear(64, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3),
            nn.Linear(32, 10))
        self.steps = 0

    def forward(self, image):
        if self.training:
            self.steps += 1
            if self.steps == int(os.environ.get("HOLD_AT_STEP", "0")):
                print("held", flush=True)
                sys.stdin.read()
            image = image * (0.9 + 0.1 * random.random() + 0.1 * np.random.random())
        return self.layers(image)
'''


class Home:
    """An environment for training: a store and a folder of runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.store = ModelStore(str(path / "store"))

    def arguments(self, *more: str) -> list[str]:
        places = ("--store", str(self.path / "store"), "--runs-dir", str(self.path / "runs"))
        return [DIGITS, *places, *more]

    def train(self, *more: str) -> Result:
        """Runs the command in this process."""
        app = typer.Typer()
        app.command()(train)
        return CliRunner().invoke(app, self.arguments(*more))

    def live(self, alias: str = "production") -> int:
        """Returns the version that an alias names."""
        pointers = self.store.pointers("digits")
        assert pointers is not None
        return pointers.aliases[alias]

    def newest(self) -> Manifest:
        return self.store.manifest("digits", self.store.versions("digits")[-1])


class Child:
    """The command in a process of its own, read line by line; warnings are errors in it too."""

    def __init__(self, home: Home, *more: str, hold_at_step: int = 0) -> None:
        # Under a shell that runs the tests in the background, children would ignore Ctrl-C.
        code = (
            "import signal, typer; signal.signal(signal.SIGINT, signal.default_int_handler); "
            "from flambeau.commands.train import train; typer.run(train)"
        )
        self.process = subprocess.Popen(
            [sys.executable, "-W", "error", "-c", code, *home.arguments(*more)],
            cwd=ROOT,
            env={**os.environ, "HOLD_AT_STEP": str(hold_at_step)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.communicate()

    def lines(self) -> Iterator[str]:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            yield line.rstrip("\n")

    def end(self, number: signal.Signals | None = None) -> tuple[list[str], str, int]:
        """Sends the signal, if given; returns the rest of both outputs, and the exit code."""
        if number is not None:
            self.process.send_signal(number)
        stdout, stderr = self.process.communicate()
        return stdout.splitlines(), stderr, self.process.returncode


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """Returns a home in which the default recipe was trained once."""
    home = Home(tmp_path_factory.mktemp("home"))
    with Child(home) as child:
        lines, stderr, code = child.end()
    assert (stderr, code) == ("", 0)
    (home.path / "output.txt").write_text("\n".join(lines))
    return home


def test_the_recipe_that_ships_gives_three_proven_artifacts(home: Home) -> None:
    manifest = home.store.manifest("digits", 1)
    files = {artifact.name: artifact.file.file for artifact in manifest.artifacts}
    assert files == {
        "torchscript": "model.pt",
        "onnx": "model.onnx",
        "onnx-int8": "model.int8.onnx",
    }
    for artifact in manifest.artifacts:
        assert artifact.verification.metrics["accuracy"] >= 0.98
        assert sorted(artifact.latency_ms) == [1, 8, 32]
    assert manifest.signature.inputs[0].model_dump() == {
        "name": "image",
        "datatype": "FP32",
        "shape": (-1, 1, 8, 8),
    }
    assert manifest.signature.outputs[0].shape == (-1, 10)
    assert manifest.signature.max_batch_size == 64
    assert manifest.lineage.metrics["test/accuracy"] >= 0.98
    assert manifest.lineage.library_versions["torch"]
    pointers = home.store.pointers("digits")
    assert pointers is not None
    assert pointers.aliases == {"production": 1}


def test_the_user_sees_epochs_one_note_a_table_and_the_outcome(home: Home) -> None:
    lines = (home.path / "output.txt").read_text().splitlines()
    epochs = [line for line in lines if line.startswith("training digits-cnn  epoch ")]
    note, heading, *rows, outcome = lines[len(epochs) :]
    assert "deprecated TorchScript" in note
    assert heading.split()[0] == "artifact"
    assert [row.split()[0] for row in rows] == ["checkpoint", "torchscript", "onnx", "onnx-int8"]
    assert rows[0].rstrip().endswith("reference")
    assert sum(row.rstrip().endswith("verified, fastest") for row in rows) == 1
    assert outcome == "published digits 1 (1.0.0) → production"


def test_a_stored_recipe_reloads_to_the_same_object_and_data(home: Home) -> None:
    manifest = home.store.manifest("digits", 1)
    entry = manifest.file("recipe.resolved.yaml")
    assert entry is not None
    stored = parse_recipe(home.store.read_file(manifest, entry).decode(), entry.file)
    assert stored == load_recipe(DIGITS)
    assert entry.sha256 == manifest.lineage.recipe_sha256
    assert load_splits(stored).sha256() == manifest.lineage.data_sha256
    assert manifest.lineage.data is not None
    assert manifest.lineage.data.source == stored.data.name


def test_the_accuracy_in_the_manifest_is_that_of_the_stored_file(home: Home) -> None:
    manifest = home.store.manifest("digits", 1)
    test = load_splits(load_recipe(DIGITS)).test
    for artifact in manifest.artifacts:
        if artifact.kind == "onnx":
            data = home.store.read_file(manifest, artifact.file)
            session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
            (logits,) = session.run(["logits"], test.inputs)
            accuracy = float((logits.argmax(axis=1) == test.labels).mean())
            assert artifact.verification.metrics["accuracy"] == accuracy


def test_golden_rows_were_held_out_and_every_artifact_serves(home: Home) -> None:
    manifest = home.store.manifest("digits", 1)
    golden = load_safetensors(home.store.read_file(manifest, manifest.golden.file))
    assert golden["input.image"].shape == (64, 1, 8, 8)
    assert golden["output.logits"].shape == (64, 10)
    splits = load_splits(load_recipe(DIGITS))
    learned = {image.tobytes() for image in splits.train.inputs["image"]}
    assert not learned & {image.tobytes() for image in golden["input.image"]}
    for artifact in manifest.artifacts:
        loaded = load_version(
            home.store, home.store.manifest("digits", 1), LoadOptions(artifact=artifact.name)
        )
        assert loaded.artifact == artifact
        for backend in loaded.backends:
            backend.close()


def test_an_artifact_outside_its_tolerance_is_reported_and_not_published(home: Home) -> None:
    zero = "export=[{kind: torchscript}, {kind: onnx, tolerance: {max_abs_difference: 0}}]"
    as_good = "publish={model: digits, alias: canary, if: test/accuracy >= live, bump: patch}"
    result = home.train("--resume", "--set", zero, "--set", as_good)
    assert result.exit_code == 0, result.output
    assert "→ canary (test/accuracy >= live is met: 0.9" in result.stdout
    assert "trained already" in result.output
    assert "refused: golden rows in batches of" in result.output
    manifest = home.newest()
    assert str(manifest.semver).startswith("1.0."), "the same weights, exported anew"
    assert [artifact.name for artifact in manifest.artifacts] == ["torchscript"]
    assert manifest.file("model.onnx") is None
    assert not (home.path / "store/digits" / str(manifest.version) / "model.onnx").exists()
    entry = manifest.file("report.json")
    assert entry is not None
    report = Report.model_validate_json(home.store.read_file(manifest, entry))
    refused = [artifact.name for artifact in report.artifacts if artifact.refusal]
    assert refused == ["onnx"]
    assert report.comparison is not None
    assert (report.comparison.version, report.comparison.artifact) == (1, "onnx")
    assert report.comparison.new == report.comparison.live
    assert home.live("canary") == manifest.version
    assert home.live() == 1


@pytest.mark.long
def test_nothing_proven_is_an_error_and_publishes_nothing(home: Home) -> None:
    before = home.store.versions("digits")
    nothing = "export=[{kind: onnx, tolerance: {max_abs_difference: 0}}]"
    result = home.train("--resume", "--set", nothing)
    assert result.exit_code == 1
    assert "refused: golden rows in batches of" in result.stdout
    assert result.stderr.startswith("error: no artifact of 'digits' kept its tolerance, so nothing")
    assert result.stderr.count("\n") == 1
    assert home.store.versions("digits") == before


def test_a_change_that_its_semantic_version_would_hide_is_refused_before_the_export(
    home: Home,
) -> None:
    before, change = home.store.versions("digits"), "publish={model: digits, bump: minor}"
    result = home.train("--resume", "--set", "max_batch_size=32", "--set", change)
    assert result.exit_code == 1
    assert "it takes a major one after" in result.stderr
    assert "max_batch_size falls from 64 to 32; set bump to major" in result.stderr
    assert "artifact" not in result.stdout, "nothing was exported"
    assert home.store.versions("digits") == before


def test_where_there_is_a_key_what_is_trained_is_signed(home: Home, tmp_path: Path) -> None:
    ada = key_in(tmp_path, "ada")
    better = "publish={model: digits, if: test/accuracy > live + 1pp}"
    options = ("--keys", str(tmp_path), "--set", better, "--set", "export=[{kind: onnx}]")
    result = home.train("--resume", *options)
    assert result.exit_code == 0, result.output
    newest = home.newest().version_text
    assert f"published digits {newest}, signed; production stays" in result.stdout
    assert "test/accuracy > live + 1pp is not met: 0.9" in result.stdout
    assert home.live() == 1
    assert home.store.signer(home.newest(), [ada]) == ada
    assert home.store.signature("digits", 1) is None  # trained before there was a key


def hold(child: Child) -> list[str]:
    """Returns the lines until the child stops in the middle of a step."""
    seen: list[str] = []
    for line in child.lines():
        if line == "held":
            return seen
        seen.append(line)
    pytest.fail(f"the child ended early: {child.end()}")


def epochs(lines: list[str]) -> list[int]:
    found = [line.split("epoch ")[1] for line in lines if line.startswith("training ")]
    return [int(text.split("/")[0]) for text in found]


@pytest.mark.long
def test_a_killed_run_resumes_to_the_same_bits(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text(HELD_NETWORK)
    recipe = {
        "model.target": f"{tmp_path}/held.py:Held",
        "model.args": "{}",
        "train.epochs": "5",
        "stop.patience": "null",
        "export": "[{kind: torchscript}]",
    }
    overrides = [text for key, value in recipe.items() for text in ("--set", f"{key}={value}")]
    whole, killed = Home(tmp_path / "whole"), Home(tmp_path / "killed")

    with Child(killed, *overrides, hold_at_step=2 * STEPS_PER_EPOCH + 10) as child:
        assert epochs(hold(child)) == [1, 2]
        assert child.end(signal.SIGKILL)[2] == -signal.SIGKILL

    with Child(killed, *overrides, "--resume", hold_at_step=STEPS_PER_EPOCH + 10) as child:
        seen = hold(child)
        assert seen[0].startswith("resuming after epoch 2 from ")
        assert epochs(seen) == [3]
        _, stderr, code = child.end(signal.SIGINT)
        assert stderr == "interrupted; the same command resumes from here\n"
        assert code == 130
    assert killed.store.models() == []

    with Child(killed, *overrides, "--resume") as child, Child(whole, *overrides) as other:
        lines, stderr, code = child.end()
        assert (stderr, code) == ("", 0)
        assert epochs(lines) == [4, 5]
        assert other.end()[1:] == ("", 0)
    found, expected = killed.newest(), whole.newest()
    assert found.file("checkpoint.safetensors") == expected.file("checkpoint.safetensors")
    assert found.golden.file == expected.golden.file
    logs = [
        [json.loads(line) | {"train/wait_share": 0} for line in metrics.read_text().splitlines()]
        for home in (whole, killed)
        for metrics in home.path.glob("runs/*/metrics.jsonl")
    ]
    assert [line["epoch"] for line in logs[0]] == [1, 2, 3, 4, 5]
    assert logs[0] == logs[1]
