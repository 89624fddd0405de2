"""The device of a run, and its error when memory runs out there."""

import io
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from rich.console import Console
from torch import nn

from tests.unit.training.recipes import DATA, recipe, splits
from training import networks
from training.errors import MemoryRunOutError, RecipeError
from training.loop.device import CPU, device_of, training_device
from training.loop.loop import Trained, train
from training.loop.out_of_memory import memory_named
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder


def trained(runs: Path, chosen: Recipe) -> Trained:
    folder = RunFolder(runs, chosen, DATA)
    with folder.locked():
        return train(chosen, splits(), folder, Console(file=io.StringIO()))


@pytest.mark.skipif(torch.accelerator.is_available(), reason="auto takes the accelerator there is")
def test_auto_is_the_processor_where_there_is_nothing_else(tmp_path: Path) -> None:
    assert training_device("auto") == training_device("cpu") == CPU
    found = [
        trained(tmp_path / name, recipe(train={"epochs": 1, "threads": 1, "device": name}))
        for name in ("auto", "cpu")
    ]
    assert found[0].weights.read_bytes() == found[1].weights.read_bytes()


def test_a_gpu_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"train.device is cuda:99, and torch .* finds \d+ CUDA"):
        trained(tmp_path, recipe(train={"device": "cuda:99"}))


@pytest.mark.parametrize("name", ["gpu", "cuda:", "cuda:-1", "cpu:0"])
def test_other_words_are_no_device(name: str) -> None:
    with pytest.raises(ValueError, match="device"):
        recipe(train={"device": name})


def test_a_model_without_parameters_lies_on_the_processor() -> None:
    assert device_of(nn.Identity()) == CPU


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError(
            "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried 8 bytes"
        ),
    ],
)
def test_memory_that_runs_out_is_told_with_the_batch_size(error: Exception) -> None:
    with (
        pytest.raises(MemoryRunOutError, match=r"data.batch_size 16 .*batch_size 8 .*accumulate 2"),
        memory_named(recipe()),
    ):
        raise error


def test_other_errors_are_left_alone() -> None:
    with pytest.raises(RuntimeError, match=r"^shapes$"), memory_named(recipe()):
        raise RuntimeError("shapes")


class Wasteful(networks.SmallCnn):
    """Asks for more memory than any machine has, once it trains."""

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        if self.training:
            torch.empty(2**60)
        return super().forward(image)


def test_a_network_that_asks_for_too_much_fails_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "Wasteful", Wasteful, raising=False)
    model = {"target": "training.networks:Wasteful", "args": {"width": 4, "classes": 3}}
    with pytest.raises(MemoryRunOutError) as error:
        trained(tmp_path, recipe(model=model))
    assert re.search(
        "ran out in training with data.batch_size 16 .*allocate memory", str(error.value)
    )


class TooLarge(networks.SmallCnn):
    """Does not fit on the device."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 200.00 GiB")


def test_a_network_that_does_not_fit_on_the_device_fails_in_the_same_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(networks, "TooLarge", TooLarge, raising=False)
    model = {"target": "training.networks:TooLarge", "args": {"width": 4, "classes": 3}}
    with pytest.raises(MemoryRunOutError, match=r"data.batch_size 16 \(.*CUDA out of memory"):
        trained(tmp_path, recipe(model=model))
