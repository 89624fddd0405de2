"""Checkpoints: data only, whole or not at all, and everything a run needs to go on."""

import contextlib
import random
import resource
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from training.errors import CheckpointError
from training.loop.checkpoint import CheckpointFolder
from training.loop.train_state import TrainState

STATE = TrainState(epoch=2, step=10, best_epoch=1, best_value=0.5, finished=False)


def network() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(8, 3)).sum().backward()
    optimizer.step()


def saved(path: Path) -> tuple[CheckpointFolder, nn.Module, torch.optim.Optimizer]:
    folder = CheckpointFolder(path / "checkpoints")
    model, optimizer = network()
    for epoch in (1, 2):
        step(model, optimizer)
        folder.save_weights(model, epoch)
    folder.save_state(STATE, optimizer)
    return folder, model, optimizer


def test_a_loaded_checkpoint_goes_on_exactly_where_the_run_was(tmp_path: Path) -> None:
    folder, model, optimizer = saved(tmp_path)
    expected_random = random.random(), np.random.random(), torch.rand(1)
    torch.manual_seed(0)
    step(model, optimizer)

    restored, restored_optimizer = network()
    random.seed(1)
    np.random.seed(1)
    torch.manual_seed(1)
    assert folder.load(restored, restored_optimizer) == STATE
    assert (random.random(), np.random.random(), torch.rand(1)) == expected_random
    torch.manual_seed(0)
    step(restored, restored_optimizer)
    for name, expected in model.state_dict().items():
        assert torch.equal(expected, restored.state_dict()[name]), name


def test_a_checkpoint_is_data(tmp_path: Path) -> None:
    folder, _, _ = saved(tmp_path)
    found = torch.load(folder.path / "state.pt", weights_only=True)
    assert found["state"]["epoch"] == 2
    assert torch.serialization.get_unsafe_globals_in_checkpoint(folder.path / "state.pt") == []
    assert {path.suffix for path in folder.path.iterdir()} == {".safetensors", ".pt"}


def test_only_the_newest_and_the_best_weights_are_kept(tmp_path: Path) -> None:
    folder, model, optimizer = saved(tmp_path)
    folder.save_weights(model, 3)
    later = TrainState(epoch=3, step=15, best_epoch=1, best_value=0.5)
    folder.save_state(later, optimizer)
    assert sorted(path.name for path in folder.path.glob("epoch-*")) == [
        "epoch-000001.safetensors",
        "epoch-000003.safetensors",
    ]


def test_a_crash_before_the_state_is_written_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder, model, optimizer = saved(tmp_path)
    folder.save_weights(model, 3)  # and then the process dies
    (folder.path / "state.pt.tmp").write_bytes(b"half of it")
    assert folder.load(model, optimizer).epoch == 2


@contextlib.contextmanager
def cannot_grow(file_bytes: int) -> Iterator[None]:
    """No file of this process may become larger: writes fail as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_disk_that_takes_no_more_weights_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder, model, optimizer = saved(tmp_path)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    words = f"cannot write a checkpoint to {folder.path}: .*free space there, .*--resume"
    with cannot_grow(100), pytest.raises(CheckpointError, match=words):
        folder.save_weights(model, 3)
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before
    assert folder.load(model, optimizer) == STATE


def test_a_disk_that_takes_no_more_state_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    folder, model, optimizer = saved(tmp_path)
    step(model, optimizer)
    folder.save_weights(model, 2, in_epoch=4)

    later = TrainState(epoch=2, step=14, in_epoch=4, best_epoch=1, best_value=0.5)
    with cannot_grow(100), pytest.raises(CheckpointError, match=r"File too large; free space"):
        folder.save_state(later, optimizer)
    assert not list(folder.path.glob("*.tmp"))
    assert folder.load(model, optimizer) == STATE
    folder.save_state(later, optimizer)
    assert folder.load(model, optimizer) == later


def test_the_last_few_weights_stay_in_the_order_of_time(tmp_path: Path) -> None:
    folder, model, optimizer = saved(tmp_path)
    for epoch, in_epoch in ((2, 4), (2, 12), (3, 0), (3, 2)):
        folder.save_weights(model, epoch, in_epoch)
    folder.save_weights(model, 9)  # of a run that was killed before it wrote its state
    state = TrainState(epoch=3, step=17, in_epoch=2, best_epoch=1, best_value=0.5)
    folder.save_state(state, optimizer, keep=3)
    assert sorted(path.name for path in folder.path.glob("epoch-*")) == [
        "epoch-000001.safetensors",
        "epoch-000002-step-00000012.safetensors",
        "epoch-000003-step-00000002.safetensors",
        "epoch-000003.safetensors",
    ]


@pytest.mark.parametrize("name", ["state.pt", "epoch-000001.safetensors"])
def test_a_damaged_file_is_named(tmp_path: Path, name: str) -> None:
    folder, model, optimizer = saved(tmp_path)
    path = folder.path / name
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(CheckpointError, match=f"{name}.*without --resume"):
        folder.load(model, optimizer)


def test_another_network_is_named(tmp_path: Path) -> None:
    folder, _, _ = saved(tmp_path)
    other = nn.Linear(3, 9)
    with pytest.raises(CheckpointError, match="does not fit the model, whose code has changed"):
        folder.load(other, torch.optim.AdamW(other.parameters()))


def test_weights_that_two_layers_share_are_kept(tmp_path: Path) -> None:
    def shared() -> nn.Sequential:
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        model[1].weight = model[0].weight
        return model

    model = shared()
    folder = CheckpointFolder(tmp_path)
    optimizer = torch.optim.AdamW(model.parameters())
    folder.save_weights(model, 1)
    folder.save_state(TrainState(epoch=1, best_epoch=1), optimizer)
    restored = shared()
    folder.load(restored, torch.optim.AdamW(restored.parameters()))
    assert torch.equal(restored.state_dict()["1.weight"], model.state_dict()["0.weight"])
