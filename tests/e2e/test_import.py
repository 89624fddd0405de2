"""Foreign files, imported by the command and served."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim
from typer.testing import CliRunner

from flambeau import Client
from flambeau.cli import app
from flambeau.protocol.tensors import Array
from model_store.store import ModelStore
from tests.e2e.rest_calls import Reply, infer, tensor
from tests.fixtures.redis_servers import until_true
from tests.fixtures.servers import ServerProcess, running_server
from tests.unit.training.importing.foreign_models import Steps, write_script, write_steps

STEPS = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
"""Four steps of two rows."""


def run_import(*words: object) -> tuple[int, str]:
    """Returns the exit code and the output of the command."""
    result = CliRunner().invoke(app, ["import", *map(str, words)])
    return result.exit_code, result.output


class Weighted(nn.Module):
    """Sums rows of numbers by their weights: both have one length."""

    def forward(self, x: Tensor, weight: Tensor) -> Tensor:
        """Maps [rows, length] and [rows, length] to [rows, 1]."""
        return (x * weight).sum(1, keepdim=True)


def write_weighted(path: Path) -> Path:
    """Writes a program that takes 3 to 32 numbers."""
    sizes = {0: Dim("batch", min=1, max=16), 1: Dim("length", min=3, max=32)}
    rows = (torch.ones(2, 5), torch.ones(2, 5))
    torch.export.save(torch.export.export(Weighted(), rows, dynamic_shapes=(sizes, sizes)), path)
    return path


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Serves three files that the command has imported."""
    folder = tmp_path_factory.mktemp("imported")
    store = folder / "store"
    np.savez(folder / "rows.npz", x=STEPS, rate=np.float32(2))
    axes = ("--batch-axis", "x=1", "--batch-axis", "rate=none")
    for file, *words in (
        (write_steps(folder / "steps.onnx"), "onnx", "--batch-axis", "x=1"),
        (
            write_script(folder / "rated.pt", Steps()),
            "torchscript",
            *("--examples", folder / "rows.npz", *axes),
        ),
        (write_weighted(folder / "weighted.pt2"), "onnx"),
    ):
        code, text = run_import(file, "--store", store, "--artifacts", *words)
        assert code == 0, text
    with running_server(store) as one:
        yield one


@pytest.mark.long
def test_a_batch_axis_that_the_file_cannot_tell_is_served(server: ServerProcess) -> None:
    x = tensor("x", "FP32", [4, 2, 3], STEPS.ravel().tolist())
    right: Array = STEPS.sum(0)
    for model, inputs, wanted in (
        ("steps", [x], right),
        ("rated", [x, tensor("rate", "FP32", [], [2.0])], 2 * right),
    ):
        (output,) = infer(server, model, *inputs).json()["outputs"]
        assert (output["shape"], output["data"]) == ([2, 3], wanted.ravel().tolist())


@pytest.mark.long
def test_limits_of_a_program_hold_for_every_artifact(server: ServerProcess) -> None:
    def ask(*lengths: int) -> Reply:
        sizes = zip(("x", "weight"), lengths, strict=True)
        return infer(server, "weighted", *(tensor(n, "FP32", [1, s], [1] * s) for n, s in sizes))

    assert ask(32, 32).outputs() == {"output": [32]}
    refused = ask(33, 33)
    assert (refused.status, refused.error()) == (
        400,
        "model 'weighted' version 1: input 'x' has shape [1,33], and size 33 along axis 1; "
        "give 3 to 32",
    )
    assert "does not accept this combination of sizes" in ask(4, 5).error()
    with Client(server.grpc) as client:
        limits = client.model("weighted").signature.limits
    assert limits == {"x": {1: (3, 32)}, "weight": {1: (3, 32)}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--batch-axis", "x"], "'x' is not INPUT=AXIS; write state=1"),
        (["--batch-axis", "x=-1"], "'x=-1' is not INPUT=AXIS"),
        (["--name", "a/b"], "Invalid value for --name: model name 'a/b' is not allowed"),
        (["--alias", "7"], "Invalid value for --alias: alias '7' is not allowed: a number names"),
        (
            ["--artifacts", "onx"],
            "for --artifacts: no artifact is named 'onx' (did you mean 'onnx'",
        ),
        (["--labels", "@absent.txt"], "cannot read absent.txt"),
        (["--labels", "y=cat,,dog"], "'y=cat,,dog' has an empty name; write [OUTPUT=]cat,dog"),
        (["--metadata", "team"], "'team' is not KEY=VALUE, such as team=vision"),
        (["--dynamic", "{x: [1, 2]}"], "is not {INPUT: {AXIS: [SMALLEST, LARGEST]}}"),
        (["--dynamic", "{x: {1: [9, 2]}}"], "or {image: {2: [16, 16]}} for one size"),
    ],
)
def test_options_are_checked_before_the_file(words: list[str], message: str) -> None:
    code, text = run_import("net.onnx", *words)
    assert code == 2
    assert message in " ".join(text.replace("│", " ").split())


def test_labels_metadata_and_a_bump_are_kept(tmp_path: Path) -> None:
    net, store = write_script(tmp_path / "net.pt", nn.Linear(3, 2)), tmp_path / "store"
    np.savez(tmp_path / "rows.npz", input=np.ones((4, 3), np.float32))
    (tmp_path / "labels.txt").write_text("cat\ndog\n")
    command: tuple[str | Path, ...] = (net, "--examples", tmp_path / "rows.npz", "--store", store)
    command += ("--artifacts", "torchscript", "--labels", f"@{tmp_path}/labels.txt")

    code, text = run_import(*command, "--metadata", "team=vision", "--metadata", "run=7")
    assert code == 0, text
    code, text = run_import(*command, "--bump", "major")
    assert code == 0, text

    first, second = (ModelStore(str(store)).manifest("net", version) for version in (1, 2))
    assert list(first.signature.labels.values()) == [("cat", "dog")]
    assert first.metadata == {"team": "vision", "run": "7"}
    assert (first.semver, second.semver) == ("1.0.0", "2.0.0")
    code, text = run_import(*command, "--labels", "nothing=a,b")
    assert (code, "--labels: " in text) == (2, True), text


def test_a_batch_axis_is_for_a_file() -> None:
    result = CliRunner().invoke(app, ["serve", "--batch-axis", "x=1"])
    assert (result.exit_code, "it is for a FILE" in result.output) == (2, True)


ENDLESS = """
import pathlib, time

class Endless:
    def load(self, context):
        pathlib.Path(context.args["begun"]).touch()
        time.sleep(600)

    def infer(self, inputs):
        return inputs
"""


def test_sigterm_leaves_no_temporary_folder(tmp_path: Path) -> None:
    temporary, begun = tmp_path / "tmp", tmp_path / "begun"
    temporary.mkdir()
    (tmp_path / "model.py").write_text(ENDLESS)
    np.savez(tmp_path / "x.npz", x=np.ones((4, 2), np.float32))
    command = [sys.executable, "-m", "flambeau", "import", f"{tmp_path}/model.py:Endless"]
    options = [
        f"--examples={tmp_path}/x.npz",
        f"--args={{begun: {begun}}}",
        f"--store={tmp_path}/s",
    ]
    process = subprocess.Popen(
        [*command, *options], env={**os.environ, "TMPDIR": str(temporary)}, start_new_session=True
    )
    until_true(begun.exists, 60)

    process.send_signal(signal.SIGTERM)

    assert process.wait(30) == 128 + signal.SIGTERM
    assert [one.name for one in temporary.iterdir() if "torchinductor" not in one.name] == []
