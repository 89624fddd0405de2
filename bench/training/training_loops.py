"""The same training by our loop, a plain loop, and Lightning Fabric: one process for each.

In: the name of the loop, and the task. Out: CPU and wall time of every turn, the weights' digest,
and the peak memory.

Rules: a step lasts from the start of one forward pass to the start of the next. The network itself
records these times, so that no loop is instrumented and all are timed by one rule. At the end of
each turn the process waits for its next turn, so that several of them go through the same steps
side by side, one at a time. Every process imports all that our loop needs, for equal memory.

    python -m bench.training.training_loops LOOP MODEL CLIP     a line of input for each turn
"""

import hashlib
import io
import json
import resource
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_post_hook

from bench.measured.datasets import feature_vectors, images
from bench.measured.networks import Cnn, TinyMlp
from training.datasets import Split, Splits
from training.loop.loop import train
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder

SEED, LEARNING_RATE, CLIP_NORM = 7, 1e-3, 1.0
CLIPS = {"clip": CLIP_NORM, "no-clip": None}


class TimedTinyMlp(TinyMlp):
    """The tiny MLP, which records the start of each training step."""

    def forward(self, features: Tensor) -> Tensor:
        """See `TinyMlp`."""
        if self.training:
            BEGIN_STEP[0]()
        return super().forward(features)


class TimedCnn(Cnn):
    """The CNN, which records the start of each training step."""

    def forward(self, image: Tensor) -> Tensor:
        """See `Cnn`."""
        if self.training:
            BEGIN_STEP[0]()
        return super().forward(image)


@dataclass(frozen=True, slots=True)
class Task:
    """A training task."""

    network: type[nn.Module]
    rows: Callable[..., Mapping[str, Any]]
    count: int
    """Number of training rows, whole batches of them."""
    batch_size: int
    epochs: int
    turn: int
    """Consecutive steps of one process, while the others wait."""

    @property
    def steps(self) -> int:
        """Steps of one epoch, whole turns of them."""
        return self.count // self.batch_size


TASKS = {
    "tiny-mlp": Task(TimedTinyMlp, feature_vectors, 16_384, 64, epochs=4, turn=32),
    "cnn": Task(TimedCnn, images, 96, 8, epochs=1, turn=1),
}


@dataclass(frozen=True, slots=True)
class Learned:
    """Results of a training."""

    weights: Mapping[str, Tensor]
    peak_mebibytes: float
    """Peak memory before the weights were read for their digest."""


class Turns:
    """Stops at the end of every turn until the next turn is requested."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._count = 0
        self._since = 0.0, 0.0

    def begin_step(self) -> None:
        """Records the start of a forward pass."""
        place = self._count % self._task.steps
        self._count += 1
        if place % self._task.turn:
            return
        cpu_s, wall_s = time.process_time(), time.perf_counter()
        begun_cpu_s, begun_s = self._since
        each = 1e6 / self._task.turn
        # The first turn of an epoch ends nothing, and the time between two epochs is no step.
        turn = {"cpu_us": (cpu_s - begun_cpu_s) * each, "wall_us": (wall_s - begun_s) * each}
        _tell(turn if place else None)
        self._since = time.process_time(), time.perf_counter()


class Listener:
    """Records the time between the end of a step and the beginning of the next."""

    def __init__(self, task: Task) -> None:
        self._task = task
        self._starts: list[float] = []
        self._ends: list[float] = []

    def begin_step(self) -> None:
        """Records the start of a forward pass."""
        self._starts.append(time.perf_counter())

    def end_step(self, *_: object) -> None:
        """Records an optimizer step."""
        self._ends.append(time.perf_counter())

    @property
    def share(self) -> float:
        """Share of the wall time of the epochs."""
        last = self._task.steps - 1
        inside = [i for i in range(len(self._starts) - 1) if i % self._task.steps != last]
        waited_s = sum(self._starts[i + 1] - self._ends[i] for i in inside)
        return waited_s / sum(self._starts[i + 1] - self._starts[i] for i in inside)


BEGIN_STEP: list[Callable[[], None]] = [lambda: None]
"""Callback of the network."""


def main() -> None:
    """Trains, and prints a line of JSON after every turn.

    The first lines are null; then turns; then the digest and the memory; and, if the input is still
    open, the share of time between two steps of another training.
    """
    loop, name, clip = sys.argv[1:]
    torch.set_num_threads(1)
    task, limit = TASKS[name], CLIPS[clip]
    data = task.rows(SEED, task.count)
    BEGIN_STEP[0] = Turns(task).begin_step
    learned = LOOPS[loop](task, data, limit)
    digest = hashlib.sha256()
    for _, tensor in sorted(learned.weights.items()):
        digest.update(tensor.numpy().tobytes())
    _tell({"weights_sha256": digest.hexdigest(), "peak_mebibytes": learned.peak_mebibytes})
    listener = Listener(task)
    BEGIN_STEP[0] = listener.begin_step
    hook = register_optimizer_step_post_hook(listener.end_step)
    LOOPS[loop](task, data, limit)
    hook.remove()
    _tell({"between_steps": listener.share})


def _tell(found: Mapping[str, Any] | None) -> None:
    """Prints a result, and waits for the next turn; end of input ends the process."""
    print(json.dumps(found), flush=True)
    if not sys.stdin.readline():
        raise SystemExit


def _ours(task: Task, data: Mapping[str, Any], clip: float | None) -> Learned:
    recipe = Recipe.model_validate(
        {
            "name": "bench",
            "seed": SEED,
            "model": {"target": f"bench.training.training_loops:{task.network.__name__}"},
            "data": {"target": "unused:unused", "batch_size": task.batch_size},
            "optim": {"adamw": {"lr": LEARNING_RATE}, "clip": clip},
            "schedule": {"constant": {}, "warmup_share": 0},
            "train": {"epochs": task.epochs, "threads": 1},
            "checkpoint": {"every_epochs": task.epochs},
            "track": [],
            "publish": {"model": "bench"},
        }
    )
    splits = Splits(Split(*data["train"]), Split(*data["validation"]), Split(*data["test"]))
    with tempfile.TemporaryDirectory() as runs:
        folder = RunFolder(Path(runs), recipe, "0" * 64)
        with folder.locked():
            train(recipe, splits, folder, Console(file=io.StringIO()))
        peak = _peak_mebibytes()
        return Learned(load_file(folder.checkpoints / f"epoch-{task.epochs:06d}.safetensors"), peak)


def _bare(task: Task, data: Mapping[str, Any], clip: float | None) -> Learned:
    """Trains with a plain PyTorch loop."""
    model, optimizer = _begin(task)
    for epoch in range(task.epochs):
        model.train()
        for batch, target in _batches(task, data, epoch):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()  # type: ignore[no-untyped-call]
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return Learned(model.state_dict(), _peak_mebibytes())


def _fabric(task: Task, data: Mapping[str, Any], clip: float | None) -> Learned:
    """Trains with the bare loop, adapted as Fabric's documentation describes."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    bare_model, bare_optimizer = _begin(task)
    model, optimizer = fabric.setup(bare_model, bare_optimizer)
    for epoch in range(task.epochs):
        model.train()
        for batch, target in _batches(task, data, epoch):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            fabric.backward(loss)
            if clip is not None:
                fabric.clip_gradients(model, optimizer, max_norm=clip)
            optimizer.step()
    return Learned(model.state_dict(), _peak_mebibytes())


LOOPS = {"ours": _ours, "bare": _bare, "fabric": _fabric}


def _batches(task: Task, data: Mapping[str, Any], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Returns inputs and labels of one epoch, in the order of our loop."""
    inputs, labels = data["train"]
    (array,) = inputs.values()
    order = np.random.default_rng((SEED, epoch)).permutation(len(labels))
    for start in range(0, len(labels), task.batch_size):
        rows = order[start : start + task.batch_size]
        yield torch.from_numpy(array[rows]), torch.from_numpy(labels[rows])


def _begin(task: Task) -> tuple[nn.Module, torch.optim.Optimizer]:
    """Returns the network and the optimizer of a recipe with default settings."""
    torch.manual_seed(SEED)
    model = task.network()
    norms = {
        id(p)
        for layer in model.modules()
        if isinstance(layer, nn.BatchNorm2d)
        for p in layer.parameters()
    }
    spared = [p for p in model.parameters() if p.ndim < 2 or id(p) in norms]
    decayed = [p for p in model.parameters() if not (p.ndim < 2 or id(p) in norms)]
    groups: list[dict[str, Any]] = [{"params": decayed}, {"params": spared, "weight_decay": 0.0}]
    return model, torch.optim.AdamW(groups, lr=LEARNING_RATE, weight_decay=0.01)


def _peak_mebibytes() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    # The network's module is also imported by its name: both must be the same module.
    from bench.training import training_loops

    training_loops.main()
