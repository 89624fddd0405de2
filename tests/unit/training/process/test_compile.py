"""A compiled network learns as itself, goes on from a checkpoint, and is refused in words."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from rich.console import Console
from torch import nn
from torch._dynamo.backends.registry import lookup_backend

from tests.unit.training.loop.test_exact_resume import cut_off, trained
from tests.unit.training.recipes import DATA, recipe, splits
from training.errors import RecipeError
from training.loop.loop import train
from training.process import compilation
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder

EVERYTHING: dict[str, Any] = {
    "model": {
        "target": "tests.unit.training.process.test_compile:network",
        "freeze": ["1.*", "2.*"],
        "unfreeze_at": {"epoch": 4},
    },
    "data": {"target": "unused:unused", "batch_size": 24},  # 8 rows are left over
    "optim": {"accumulate": 3},
    "prune": {"amount": 0.5, "at": "60%"},
}
TRAIN = {"epochs": 4, "threads": 1, "ema": 0.9, "activation_checkpoint": ["[1-3]"]}
MATRICES = {"target": "tests.unit.training.loop.optimization.test_optimizers:network"}


def network() -> nn.Module:
    """Statistics and random numbers, beside weights."""
    return nn.Sequential(
        *(nn.Flatten(), nn.Linear(64, 8), nn.BatchNorm1d(8), nn.Dropout(0.2), nn.ReLU()),
        nn.Linear(8, 3),
    )


@pytest.fixture
def programs(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Records compiled programs, without C++: the operations stay those of the network."""
    found: list[Any] = []
    backend = lookup_backend("aot_eager")

    def count(graph: Any, inputs: Any) -> Any:
        found.append(graph)
        assert not any(isinstance(each, torch.SymInt) for each in inputs), "it is for one shape"
        return backend(graph, inputs)

    monkeypatch.setattr(compilation, "BACKEND", count)
    return found


def short(**changes: Any) -> Recipe:
    train = {"epochs": 1, "threads": 1, "compile": True}
    return recipe(model=MATRICES, train=train, **changes)


def test_with_all_other_options_it_ends_with_the_bits_of_the_network_resumed_too(
    tmp_path: Path, programs: list[Any]
) -> None:
    chosen = recipe(**EVERYTHING, train={**TRAIN, "compile": True})
    plain = trained(tmp_path / "plain", recipe(**EVERYTHING, train=TRAIN))
    assert not programs
    whole = trained(tmp_path / "whole", chosen)
    assert len(programs) == 4, "frozen and not, of 24 rows and of 8"
    assert whole.weights.read_bytes() == plain.weights.read_bytes()
    cut_off(tmp_path / "cut", chosen)
    found = trained(tmp_path / "cut", chosen, resume=True)
    assert found.weights.read_bytes() == whole.weights.read_bytes()
    assert found.state == whole.state


@pytest.mark.long
def test_native_code_learns_what_the_network_does_and_is_resumed_to_the_bit(tmp_path: Path) -> None:
    document = {"model": MATRICES, "data": {"target": "unused:unused", "batch_size": 40}}
    chosen = recipe(**document, train={"epochs": 4, "threads": 1, "compile": True})
    whole = trained(tmp_path / "whole", chosen)
    cut_off(tmp_path / "cut", chosen)
    found = trained(tmp_path / "cut", chosen, resume=True)
    assert found.weights.read_bytes() == whole.weights.read_bytes()
    plain = trained(tmp_path / "plain", recipe(**document, train={"epochs": 4, "threads": 1}))
    for name, weight in plain.model.state_dict().items():
        torch.testing.assert_close(whole.model.state_dict()[name], weight, atol=1e-5, rtol=1e-4)


def test_batches_of_too_many_shapes_end_the_run_and_are_not_run_uncompiled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, programs: list[Any]
) -> None:
    monkeypatch.setattr(compilation, "SHAPES", 1)
    chosen = short(data={"target": "unused:unused", "batch_size": 32})
    with pytest.raises(RecipeError, match=r"more than 1 of them; cut or pad rows to fewer lengths"):
        trained(tmp_path, chosen)
    assert len(programs) == 1


def test_what_cannot_be_compiled_is_told_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(graph: Any, inputs: Any) -> Any:
        raise NotImplementedError("no such operation")

    monkeypatch.setattr(compilation, "BACKEND", fail)
    with pytest.raises(RecipeError, match=r"cannot compile the network: .*no such operation"):
        trained(tmp_path, short())


def test_without_a_compiler_nothing_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from torch._inductor import cpp_builder
    from torch._inductor.exc import InvalidCxxCompiler

    def none() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", none)
    with pytest.raises(RecipeError, match=r"needs a C\+\+ compiler, and none is here; install g"):
        trained(tmp_path, short())
    assert not RunFolder(tmp_path, short(), DATA).checkpoints.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"train": {"teacher_forcing": {}}}, "teacher_forcing gives the network another share"),
        ({"debug": {"activations": ["*"]}}, "look between its layers"),
        ({"debug": {"backward": ["*"]}}, "look between its layers"),
        ({"debug": {"anomaly": True}}, "anomaly names operations"),
        ({"train": {"parallel": "fsdp", "processes": 2}}, "fsdp gathers and shares weights"),
    ],
)
def test_what_one_program_cannot_do_is_refused(changes: Any, words: str) -> None:
    train = {**changes.get("train", {}), "compile": True}
    with pytest.raises(ValidationError, match=words):
        recipe(**{**changes, "train": train})


def test_training_for_8_bits_is_not_compiled(tmp_path: Path, programs: list[Any]) -> None:
    from training.loop.compression.later_phases import fine_tuning

    assert not fine_tuning(short(qat={"epochs": 1}), "qat", epochs=1, lr_share=0.1).train.compile
    assert fine_tuning(short(), "pruned", epochs=1, lr_share=0.1).train.compile


def test_nothing_stays_compiled_behind_a_run(tmp_path: Path, programs: list[Any]) -> None:
    chosen = short()
    for place in ("first", "second"):
        folder = RunFolder(tmp_path / place, chosen, DATA)
        with folder.locked():
            train(chosen, splits(), folder, Console(file=io.StringIO()))
    assert len(programs) == 2
