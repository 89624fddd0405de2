"""Foreign files, imported by the command and served."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from flambeau.cli import app
from flambeau.protocol.tensors import Array
from tests.e2e.rest_calls import infer, tensor
from tests.fixtures.servers import running_server
from tests.unit.training.importing.foreign_models import Steps, write_script, write_steps

STEPS = np.arange(24, dtype=np.float32).reshape(4, 2, 3)
"""Four steps of two rows."""


def run_import(*words: object) -> tuple[int, str]:
    """Returns the exit code and the output of the command."""
    result = CliRunner().invoke(app, ["import", *map(str, words)])
    return result.exit_code, result.output


def test_a_batch_axis_that_the_file_cannot_tell_is_served(tmp_path: Path) -> None:
    store = tmp_path / "store"
    onnx, script = (
        write_steps(tmp_path / "steps.onnx"),
        write_script(tmp_path / "rated.pt", Steps()),
    )
    np.savez(tmp_path / "rows.npz", x=STEPS, rate=np.float32(2))
    common = ("--store", store, "--artifacts")
    code, text = run_import(onnx, *common, "onnx", "--batch-axis", "x=1")
    assert code == 0, text
    axes = ("--batch-axis", "x=1", "--batch-axis", "rate=none")
    more = ("--examples", tmp_path / "rows.npz", *axes)
    code, text = run_import(script, *common, "torchscript", *more)
    assert code == 0, text
    x = tensor("x", "FP32", [4, 2, 3], STEPS.ravel().tolist())
    with running_server(store) as server:
        right: Array = STEPS.sum(0)
        for model, inputs, wanted in (
            ("steps", [x], right),
            ("rated", [x, tensor("rate", "FP32", [], [2.0])], 2 * right),
        ):
            (output,) = infer(server, model, *inputs).json()["outputs"]
            assert (output["shape"], output["data"]) == ([2, 3], wanted.ravel().tolist())


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
        (["--dynamic", "{x: [1, 2]}"], "is not {INPUT: {AXIS: [SMALLEST, LARGEST]}}"),
    ],
)
def test_options_are_checked_before_the_file(words: list[str], message: str) -> None:
    code, text = run_import("net.onnx", *words)
    assert code == 2
    assert message in " ".join(text.replace("│", " ").split())


def test_a_batch_axis_is_for_a_file() -> None:
    result = CliRunner().invoke(app, ["serve", "--batch-axis", "x=1"])
    assert (result.exit_code, "it is for a FILE" in result.output) == (2, True)
