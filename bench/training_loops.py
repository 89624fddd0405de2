"""The same training three times: by our loop, written bare, and by Lightning Fabric.

In: what to train and a number of epochs. Out: seconds of every step, and whether our loop and the
bare one ended with the same weights, bit for bit.

Rule kept here: a step is what lies between the beginnings of two forward passes, which the network
itself takes down, so that no loop is looked into and all are timed by one rule. Where memory is
measured, every process has imported what our loop needs.

    python -m bench.training_loops times MODEL CLIP EPOCHS ROUNDS LOOPS    one process, in turns
    python -m bench.training_loops memory MODEL CLIP EPOCHS 1 LOOP         one process for one loop
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

from bench.datasets import feature_vectors, images
from bench.networks import Cnn, TinyMlp
from bench.verdicts import percentile
from training.datasets import Split, Splits
from training.learning.loop import train
from training.recipe import Recipe
from training.run_folder import RunFolder

SEED, LEARNING_RATE, CLIP_NORM = 7, 1e-3, 1.0
QUIET = 10
"""Percentile of steps by the wall clock: where others use the machine, most steps are interrupted,
and the more the longer they are."""
STARTS: list[float] = []
"""When each forward pass of a training began; wall clock, seconds."""
CPU_AT: list[float] = []
"""CPU time of the process at the first and the last of them in each epoch, seconds: asking for it
at every one would be a good part of a small step."""
ENDS: list[float] = []
"""When each step of an optimizer ended, while somebody listens; wall clock, seconds."""


class TimedTinyMlp(TinyMlp):
    """The tiny MLP, which takes down when a training step begins."""

    def forward(self, features: Tensor) -> Tensor:
        """See `TinyMlp`."""
        _take_down(self, TASKS["tiny-mlp"].steps)
        return super().forward(features)


class TimedCnn(Cnn):
    """The CNN, which takes down when a training step begins."""

    def forward(self, image: Tensor) -> Tensor:
        """See `Cnn`."""
        _take_down(self, TASKS["cnn"].steps)
        return super().forward(image)


@dataclass(frozen=True, slots=True)
class Task:
    """What is trained."""

    network: type[nn.Module]
    rows: Callable[..., Mapping[str, Any]]
    count: int
    """Training rows, whole batches of them."""
    batch_size: int

    @property
    def steps(self) -> int:
        """Of one epoch."""
        return self.count // self.batch_size


TASKS = {
    "tiny-mlp": Task(TimedTinyMlp, feature_vectors, 16_384, 64),
    "cnn": Task(TimedCnn, images, 48, 8),
}


@dataclass(frozen=True, slots=True)
class Block:
    """One training of one loop."""

    wall_s: list[float]
    """Of each step."""
    cpu_s: float
    """Of a step, in the mean."""
    waited_s: float
    """From the ends of steps to the beginnings of the next forward passes, while one listens."""
    weights_sha256: str


def main() -> None:
    """Trains as asked, and prints the figures as JSON."""
    mode, name, clip, epochs, rounds, *loops = sys.argv[1:]
    torch.set_num_threads(1)
    task, limit = TASKS[name], CLIP_NORM if clip == "clip" else None
    data = task.rows(SEED, task.count)
    found: dict[str, list[Block]] = {loop: [] for loop in loops}
    for turn in range(int(rounds)):
        order = loops if turn % 2 else loops[::-1]
        for loop in order:
            found[loop].append(_block(loop, task, data, limit, int(epochs), listen=False))
    if mode == "memory":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({"peak_mebibytes": peak}))
        return
    waits = {x: _block(x, task, data, limit, int(epochs), listen=True) for x in loops}
    # Fabric's way to clip rounds the last bit in another way.
    digests = {b.weights_sha256 for loop in found if loop != "fabric" for b in found[loop]}
    figures = {
        loop: {
            "wall_us": [percentile(block.wall_s, QUIET) * 1e6 for block in blocks],
            "cpu_us": [block.cpu_s * 1e6 for block in blocks],
            "between_steps": waits[loop].waited_s / sum(waits[loop].wall_s),
        }
        for loop, blocks in found.items()
    }
    print(json.dumps({"loops": figures, "same_weights": len(digests) == 1}))


def _block(
    loop: str, task: Task, data: Mapping[str, Any], clip: float | None, epochs: int, listen: bool
) -> Block:
    for noted in (STARTS, CPU_AT, ENDS):
        noted.clear()
    hook = register_optimizer_step_post_hook(_note_end) if listen else None
    weights = LOOPS[loop](task, data, clip, epochs)
    if hook is not None:
        hook.remove()
    assert len(STARTS) == epochs * task.steps, "every step begins with one forward pass"
    inside = [i for i in range(len(STARTS) - 1) if (i + 1) % task.steps]  # not between two epochs
    cpu_s = sum(end - start for start, end in zip(CPU_AT[::2], CPU_AT[1::2], strict=True)) / len(
        inside
    )
    digest = hashlib.sha256()
    for _, tensor in sorted(weights.items()):
        digest.update(tensor.numpy().tobytes())
    return Block(
        [STARTS[i + 1] - STARTS[i] for i in inside],
        cpu_s,
        sum(STARTS[i + 1] - ENDS[i] for i in inside) if listen else 0.0,
        digest.hexdigest(),
    )


def _ours(
    task: Task, data: Mapping[str, Any], clip: float | None, epochs: int
) -> Mapping[str, Tensor]:
    recipe = Recipe.model_validate(
        {
            "name": "bench",
            "seed": SEED,
            "model": {"target": f"bench.training_loops:{task.network.__name__}"},
            "data": {"target": "unused:unused", "batch_size": task.batch_size},
            "optim": {"adamw": {"lr": LEARNING_RATE}, "clip": clip},
            "schedule": {"constant": {}, "warmup_share": 0},
            "train": {"epochs": epochs, "threads": 1},
            "checkpoint": {"every_epochs": epochs},
            "track": [],
            "publish": {"model": "bench"},
        }
    )
    splits = Splits(Split(*data["train"]), Split(*data["validation"]), Split(*data["test"]))
    with tempfile.TemporaryDirectory() as runs:
        folder = RunFolder(Path(runs), recipe, "0" * 64)
        with folder.locked():
            train(recipe, splits, folder, Console(file=io.StringIO()))
        return load_file(folder.checkpoints / f"epoch-{epochs:06d}.safetensors")


def _bare(
    task: Task, data: Mapping[str, Any], clip: float | None, epochs: int
) -> Mapping[str, Tensor]:
    """What one writes by hand."""
    model, optimizer = _begin(task)
    for epoch in range(epochs):
        model.train()
        for batch, target in _batches(task, data, epoch):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            loss.backward()  # type: ignore[no-untyped-call]
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return model.state_dict()


def _fabric(
    task: Task, data: Mapping[str, Any], clip: float | None, epochs: int
) -> Mapping[str, Tensor]:
    """The bare loop as Fabric's own documentation has it changed."""
    from lightning_fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    bare_model, bare_optimizer = _begin(task)
    model, optimizer = fabric.setup(bare_model, bare_optimizer)
    for epoch in range(epochs):
        model.train()
        for batch, target in _batches(task, data, epoch):
            optimizer.zero_grad()
            loss = functional.cross_entropy(model(batch), target)
            fabric.backward(loss)
            if clip is not None:
                fabric.clip_gradients(model, optimizer, max_norm=clip)
            optimizer.step()
    found: Mapping[str, Tensor] = model.state_dict()
    return found


LOOPS = {"ours": _ours, "bare": _bare, "fabric": _fabric}


def _batches(task: Task, data: Mapping[str, Any], epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Inputs and labels of one epoch, in the order that our loop takes."""
    inputs, labels = data["train"]
    (array,) = inputs.values()
    order = np.random.default_rng((SEED, epoch)).permutation(len(labels))
    for start in range(0, len(labels), task.batch_size):
        rows = order[start : start + task.batch_size]
        yield torch.from_numpy(array[rows]), torch.from_numpy(labels[rows])


def _begin(task: Task) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The network and the optimizer that a recipe without further words asks for."""
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


def _take_down(module: nn.Module, steps: int) -> None:
    if module.training:
        if len(STARTS) % steps in (0, steps - 1):
            CPU_AT.append(time.process_time())
        STARTS.append(time.perf_counter())


def _note_end(*_: object) -> None:
    ENDS.append(time.perf_counter())


if __name__ == "__main__":
    # The network's module is imported by its name, too: both must be one.
    from bench import training_loops

    training_loops.main()
