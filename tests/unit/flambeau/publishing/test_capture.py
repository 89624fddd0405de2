"""Models as callers have them: what is captured, and what is refused."""

import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flambeau.publishing.capture import capture
from flambeau.publishing.errors import CaptureError, ExampleError, PublishError
from flambeau.publishing.examples import read_examples


class Tagger(nn.Module):
    """Returns a dictionary; reads a varying number of steps."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(8, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(self, steps: Tensor) -> dict[str, Tensor]:
        """Returns an answer for the last step, and for the mean."""
        found, _ = self.recurrent(steps)
        return {"last": self.head(found[:, -1]), "mean": self.head(found.mean(1))}


class Branching(nn.Module):
    """Branches on values, which torch.export cannot capture and TorchScript can."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns rows or their negatives."""
        if bool((x.sum() > 1e9).item()):
            return -x
        return x * 2


def linear() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def captured(model: Any, examples: Any, folder: Path, **options: Any) -> Any:
    return capture(model, read_examples(model, examples), folder=folder, **options)


def test_a_module_is_captured_with_its_outputs(tmp_path: Path) -> None:
    model, rows = linear(), torch.randn(40, 8)

    found = captured(model, {"input": rows}, tmp_path, outputs=["logits"])

    program = torch.export.load(tmp_path / found.files["pt2"]).module()
    with torch.inference_mode():
        right = model(rows).numpy()
        (served,) = program(rows[:7])
    np.testing.assert_allclose(found.rows[0][1]["logits"], right, atol=1e-5)
    np.testing.assert_allclose(served.numpy(), right[:7], atol=1e-5)
    assert found.signature.outputs[0].shape == (-1, 4)
    assert model.training, "the caller's module stays as it was"


def test_beside_grpc_a_model_is_captured_without_a_fork_and_that_is_told(tmp_path: Path) -> None:
    said: list[str] = []
    server = grpc.server(ThreadPoolExecutor(1))
    server.start()  # its threads would crash some of the children
    try:
        found = captured(linear(), torch.randn(4, 8), tmp_path, say=said.append)
    finally:
        server.stop(None).wait()

    assert list(found.files) == ["pt2"]
    (line,) = said
    assert line.startswith("exporting in this process")
    assert line.endswith("gRPC is in use here")


def test_beside_grpc_models_are_captured_one_at_a_time(tmp_path: Path) -> None:
    server = grpc.server(ThreadPoolExecutor(1))
    server.start()
    folders = [tmp_path / str(number) for number in range(4)]
    for folder in folders:
        folder.mkdir()

    def capture(folder: Path) -> list[str]:
        return list(captured(linear(), torch.randn(4, 8), folder).files)

    try:
        with ThreadPoolExecutor(len(folders)) as threads:
            assert list(threads.map(capture, folders)) == [["pt2"]] * len(folders)
    finally:
        server.stop(None).wait()


def test_tracing_in_place_of_compiling_is_told_with_the_reason(tmp_path: Path) -> None:
    class Varied(nn.Module):
        def forward(self, x: Tensor, *, scale: Any = (lambda y: 2 * y)) -> Tensor:
            scaled: Tensor = scale(x)
            return scaled

    said: list[str] = []
    found = captured(
        Varied().eval(), {"x": torch.randn(4, 8)}, tmp_path, script=True, say=said.append
    )

    assert "torchscript" in found.files
    assert any(line.startswith("tracing the model for TorchScript") for line in said), said


def test_outputs_of_a_dictionary_have_its_names_and_lengths_vary(tmp_path: Path) -> None:
    examples = [{"steps": torch.randn(4, 5, 8)}, {"steps": torch.randn(2, 9, 8)}]

    found = captured(Tagger().eval(), examples, tmp_path)

    assert (list(found.files), found.refusals) == (["pt2"], {})
    assert [spec.name for spec in found.signature.outputs] == ["last", "mean"]
    assert found.signature.dynamic == {"steps": {1: (5, 9)}}
    assert [len(outputs["last"]) for _, outputs in found.rows] == [4, 2]


def test_the_sizes_of_axes_that_vary_together_are_limits(tmp_path: Path) -> None:
    examples = [{"a": torch.randn(2, size), "b": torch.randn(2, size)} for size in (5, 9)]

    found = captured(lambda a, b: a * b, examples, tmp_path)

    assert found.signature.dynamic == {}
    assert found.signature.limits == {"a": {1: (5, 9)}, "b": {1: (5, 9)}}


def test_a_function_of_tensors_is_captured(tmp_path: Path) -> None:
    found = captured(lambda a, b: a @ b.transpose(1, 2), (torch.ones(3, 2, 4),) * 2, tmp_path)

    assert [spec.name for spec in found.signature.inputs] == ["a", "b"]
    assert list(found.files) == ["pt2"]


def test_a_model_that_torch_export_refuses_becomes_torchscript(tmp_path: Path) -> None:
    found = captured(Branching().eval(), torch.ones(4, 3), tmp_path)

    assert list(found.files) == ["torchscript"]
    assert found.refusals["pt2"].startswith("torch.export: ")


def test_an_example_of_one_row_is_enough(tmp_path: Path) -> None:
    assert captured(linear().eval(), torch.ones(1, 8), tmp_path).files


def with_dropout() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.5))


def on_another_device() -> nn.Module:
    return nn.Linear(8, 4, device="meta")


def larger_than_memory() -> nn.Module:
    net = nn.Linear(8, 4)
    net.register_buffer("table", torch.zeros(1).expand(10**7, 10**6))
    return net.eval()


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (larger_than_memory, "'table' [10000000, 1000000] takes 37,252.9 GiB of memory, and"),
        (with_dropout, "in training mode, in which its layer '1' (Dropout)"),
        (on_another_device, "'weight' is on the device meta, without values"),
        (lambda: lambda x: x + torch.rand_like(x), "different outputs for the same rows"),
        (lambda: lambda x: x - x.mean(0), "depends on the other rows of its batch"),
        (lambda: lambda x: x.mean(), "output 'output' is [] for 4 rows"),
        (lambda: lambda x: x * 0 / 0, "output 'output' is nan at [0, 0]"),
        (lambda: lambda x: x.bfloat16(), "torch.bfloat16, which servers cannot answer with"),
        (lambda: lambda x: "text", "the network returns a str"),
        (lambda: lambda x: torch.linalg.inv(x), "the model fails on the examples 'x' [4, 8]"),
    ],
)
def test_answers_that_cannot_be_verified_are_refused(
    make: Callable[[], Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(PublishError) as refused:
        captured(make(), torch.randn(4, 8), tmp_path)

    assert words in str(refused.value)


def test_an_input_without_effect_is_named(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="do not depend on input 'ignored'"):
        captured(lambda x, ignored: x * 2, (torch.ones(4, 2),) * 2, tmp_path)


def test_inputs_of_different_rows_are_refused(tmp_path: Path) -> None:
    examples = read_examples(
        lambda a, b: a + b, (torch.ones(4, 2), torch.ones(3, 2)), None, {"a": 0, "b": 0}
    )
    with pytest.raises(ExampleError, match="differ in their number of rows"):
        capture(lambda a, b: a + b, examples, folder=tmp_path)


def test_capturing_imports_no_compiler_here(tmp_path: Path) -> None:
    """A hundred megabytes of torch's compiler stay in the child, also where it fails."""
    before = set(sys.modules)

    captured(Branching().eval(), torch.ones(4, 3), tmp_path)

    assert not [name for name in set(sys.modules) - before if name.startswith("torch._inductor")]
