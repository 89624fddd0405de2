"""The steps of `preprocess` as layers before a network, in training and in every artifact.

In: a recipe's steps and a network. Out: one module that takes the raw inputs. The steps compute in
FP32, whatever the precision of the network: quantizers and the bfloat16 form skip all modules under
`STEPS`.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from flambeau.protocol.strict import nearest_name
from flambeau.protocol.tensors import Array
from training.errors import DataError, RecipeError, TargetError
from training.loading.splits import Splits
from training.process.reproducibility import reproducible
from training.recipe.parts.preprocess import (
    FIRST_ID,
    UNKNOWN_ID,
    Lookup,
    Normalize,
    OwnModule,
    Preprocess,
    PreprocessStep,
    Resize,
    Scale,
    TorchStep,
)
from training.recipe.recipe import Recipe
from training.recipe.targets import call_target
from training.recipe.user_code import failure_in_words

STEPS = "preprocess_steps"
"""The name of the steps in the module, by which exporters find their operations."""
BATCH_ROWS = 256
"""Rows whose statistics are measured at once."""
FIRST_SIZE = 2
"""The axis of the height; the width comes next."""


class ScaleLayer(nn.Module):
    """Converts any numbers [rows, ...] to FP32, times a factor."""

    def __init__(self, step: Scale) -> None:
        super().__init__()
        self.factor = step.factor

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, ...] to FP32 [rows, ...]."""
        return x.to(torch.float32) * self.factor


class NormalizeLayer(nn.Module):
    """(x - mean) / std for each channel of FP32 [rows, channels, ...]."""

    def __init__(self, step: Normalize) -> None:
        super().__init__()
        assert not step.fit, "statistics are measured before the model is built"
        self.mean: Tensor
        self.std: Tensor
        self.register_buffer("mean", torch.tensor(step.mean))  # [channels]
        self.register_buffer("std", torch.tensor(step.std))

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, channels, ...] to FP32 of the same shape."""
        shape = (1, -1, *(1,) * (x.dim() - 2))
        return (x.to(torch.float32) - self.mean.view(shape)) / self.std.view(shape)

    def check(self, x: Tensor) -> str | None:
        """Returns the fault of an input, if it has one."""
        if x.dim() < 2 or x.shape[1] != len(self.mean):
            return f"mean and std have {len(self.mean)} numbers; give one of each for every channel"
        return None


class ResizeLayer(nn.Module):
    """Resizes FP32 [rows, channels, any, any] to [rows, channels, height, width]."""

    def __init__(self, step: Resize) -> None:
        super().__init__()
        self.size = (step.height, step.width)
        self.antialias = step.antialias

    def forward(self, x: Tensor) -> Tensor:
        """Interpolates bilinearly between pixel centres, as `align_corners=False` does."""
        return functional.interpolate(
            x, size=self.size, mode="bilinear", align_corners=False, antialias=self.antialias
        )

    def check(self, x: Tensor) -> str | None:
        """Returns the fault of an input, if it has one."""
        if x.dim() != FIRST_SIZE + 2:
            return "it takes [rows, channels, height, width]"
        if not x.is_floating_point():
            return "it takes floating-point numbers; put a scale before it"
        return None


class LookupLayer(nn.Module):
    """Maps integers [rows, ...] to INT64 ids of a vocabulary."""

    def __init__(self, step: Lookup) -> None:
        super().__init__()
        points = step.code_points
        # The last entry stands for all values beyond the table.
        table = torch.full((max(*points, 255) + 2,), UNKNOWN_ID)
        table[0] = 0
        table[points] = torch.arange(FIRST_ID, FIRST_ID + len(points))
        self.table: Tensor
        self.register_buffer("table", table)
        self.length = step.length

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, any length] to [rows, `length`], or to the same shape without `length`."""
        index, beyond = x.to(torch.int64), self.table.shape[0] - 1
        known = (index >= 0) & (index < beyond)
        found = self.table[torch.where(known, index, beyond)]
        if self.length is None:
            return found
        filler = torch.zeros_like(found[:, :1]).expand(-1, self.length)
        return torch.cat([found, filler], dim=1)[:, : self.length]

    def check(self, x: Tensor) -> str | None:
        """Returns the fault of an input, if it has one."""
        if x.is_floating_point() or x.dtype == torch.bool:
            return "it takes whole numbers: bytes or code points"
        if self.length is not None and x.dim() != 2:
            return "length needs [rows, length]"
        return None


class Preprocessed(nn.Module):
    """Steps in front of a network.

    Args:
        places: for each step, the position of the input it changes.
        steps: modules of one tensor each.
        network: takes the steps' results, and the other inputs unchanged.
    """

    def __init__(
        self, places: Sequence[int], steps: Sequence[nn.Module], network: nn.Module
    ) -> None:
        super().__init__()
        self.places = tuple(places)
        self.preprocess_steps = nn.ModuleList(steps)
        self.network = network

    def forward(self, *inputs: Tensor, **told: object) -> object:
        """Maps raw inputs in the signature's order to the network's outputs."""
        return self.network(*self.prepare(list(inputs)), **told)

    def prepare(self, inputs: list[Tensor]) -> list[Tensor]:
        """Maps raw inputs to those of the network, each [rows, ...]."""
        for place, step in zip(self.places, self.preprocess_steps, strict=True):
            inputs[place] = step(inputs[place])
        return inputs

    def around(self, change: Callable[[nn.Module], nn.Module]) -> "Preprocessed":
        """Returns the same steps before another form of the network."""
        network = change(self.network)
        return Preprocessed(self.places, list(self.preprocess_steps), network).train(self.training)


def network_of(model: nn.Module) -> nn.Module:
    """Returns the network itself, without the steps before it."""
    return model.network if isinstance(model, Preprocessed) else model


def change_network(model: nn.Module, change: Callable[[nn.Module], nn.Module]) -> nn.Module:
    """Replaces a model's network by another form of it, with the same steps before it."""
    return model.around(change) if isinstance(model, Preprocessed) else change(model)


def is_step(module_path: str) -> bool:
    """Returns True if a path in an exported model, like `preprocess_steps.0`, is of the steps."""
    return module_path.split(".")[0] == STEPS


def preprocessed(recipe: Recipe, network: nn.Module, names: Sequence[str]) -> nn.Module:
    """Returns the network with the recipe's steps before it, or alone if there are none.

    Args:
        recipe: the recipe with the steps.
        network: takes the steps' results.
        names: names of the model's inputs, in order.

    Raises:
        RecipeError: a step names no input, or one that does not exist.
        TargetError: a module of a step cannot be found or made.
    """
    steps = _torch_steps(recipe.preprocess)
    if not steps:
        return network
    places = [_place(where, step, names) for where, step in steps]
    return Preprocessed(places, [_layer(where, step) for where, step in steps], network)


def try_steps(model: nn.Module, recipe: Recipe, names: Sequence[str], rows: list[Tensor]) -> None:
    """Runs the steps on a few rows, so that an error names the step that fails.

    Raises:
        RecipeError: a step does not support its input.
        TargetError: a module of the user fails.
    """
    if not isinstance(model, Preprocessed):
        return
    steps = _torch_steps(recipe.preprocess)
    for (where, _), place, layer in zip(steps, model.places, model.preprocess_steps, strict=True):
        given = f"input '{names[place]}' is {_text(rows[place])} here"
        check = getattr(layer, "check", None) if isinstance(layer, _LAYERS) else None
        if check is not None and (problem := check(rows[place])):
            raise RecipeError(f"{where}: {given}, and {problem}")
        try:
            with torch.no_grad():
                found = layer(rows[place])
        except Exception as error:  # the user's module may raise any exception
            raise TargetError(f"{where} fails: {given}: {failure_in_words(error)}") from error
        if not isinstance(found, Tensor) or found.dim() == 0 or len(found) != len(rows[place]):
            what = _text(found) if isinstance(found, Tensor) else type(found).__name__
            raise TargetError(f"{where} gives {what}: {given}; give one tensor of as many rows")
        rows[place] = found


def with_statistics(recipe: Recipe, splits: Splits) -> Recipe:
    """Returns the recipe with the measured mean and std of every `normalize: {fit: true}`.

    Args:
        recipe: the run.
        splits: the data; the train split is measured after the steps before.

    Raises:
        RecipeError, TargetError: as `preprocessed`, or an earlier step does not support its input.
        DataError: a channel never varies.
    """
    steps = list(recipe.preprocess)
    for position, step in enumerate(steps):
        if step.normalize is None or not step.normalize.fit:
            continue
        before = recipe.model_copy(update={"preprocess": tuple(steps[:position])})
        names = list(splits.train.inputs)
        place = _place(f"preprocess.{position}.normalize", step.normalize, names)
        # The figures identify a run, and must be the same when it resumes.
        with reproducible(recipe.seed, threads=1):
            model = preprocessed(before, nn.Identity(), names)
            mean, std = _statistics(model, before, splits, place)
        measured = Normalize(input=step.normalize.input, mean=tuple(mean), std=tuple(std))
        steps[position] = PreprocessStep(normalize=measured)
    return recipe.model_copy(update={"preprocess": tuple(steps)})


def _statistics(
    model: nn.Module, recipe: Recipe, splits: Splits, place: int
) -> tuple[list[float], list[float]]:
    """Returns mean and std of each channel over the train split."""
    arrays = list(splits.train.inputs.values())
    names = list(splits.train.inputs)
    where = f"preprocess.{len(recipe.preprocess)}.normalize"
    try_steps(model, recipe, names, _tensors(arrays, 0, 2))
    count, total, squares = 0, torch.zeros(()), torch.zeros(())
    for start in range(0, splits.train.rows, BATCH_ROWS):
        rows = _tensors(arrays, start, start + BATCH_ROWS)
        with torch.no_grad():
            x = (model.prepare(rows) if isinstance(model, Preprocessed) else rows)[place]
        if x.dim() < 2:
            raise RecipeError(f"{where}: input '{names[place]}' is {_text(x)} and has no channels")
        x = x.to(torch.float64).transpose(0, 1).flatten(1)  # [channels, elements]
        count += x.shape[1]
        total, squares = total + x.sum(1), squares + (x * x).sum(1)
    mean = total / count
    std = (squares / count - mean * mean).clamp(min=0).sqrt()
    if still := torch.nonzero(std <= 1e-12).flatten().tolist():
        raise DataError(
            f"{where}: channels {still[:5]} of input '{names[place]}' never vary in the training "
            "rows, so they have no std; leave them out, or give mean and std"
        )
    return mean.tolist(), std.tolist()


def _tensors(arrays: Sequence[Array], start: int, stop: int) -> list[Tensor]:
    return [torch.from_numpy(array[start:stop].copy()) for array in arrays]


def _torch_steps(steps: Preprocess) -> list[tuple[str, TorchStep]]:
    """Returns each step that is a layer, with its key in the recipe."""
    found = [(f"preprocess.{i}.{s.name}", s.torch_step) for i, s in enumerate(steps)]
    return [(where, step) for where, step in found if step is not None]


def _place(where: str, step: TorchStep, names: Sequence[str]) -> int:
    if step.input is None:
        if len(names) != 1:
            raise RecipeError(f"{where} names no input, and there are {list(names)}; name one")
        return 0
    if step.input not in names:
        raise RecipeError(
            f"{where} names input '{step.input}', which the data does not have"
            f"{nearest_name(step.input, names)}"
        )
    return list(names).index(step.input)


_LAYERS = (ScaleLayer, NormalizeLayer, ResizeLayer, LookupLayer)


def _layer(where: str, step: TorchStep) -> nn.Module:
    match step:
        case Scale():
            return ScaleLayer(step)
        case Normalize():
            return NormalizeLayer(step)
        case Resize():
            return ResizeLayer(step)
        case Lookup():
            return LookupLayer(step)
        case OwnModule():
            found = call_target(step.target, step.args, where)
            if not isinstance(found, nn.Module):
                raise TargetError(
                    f"{where}.target {step.target} made a {type(found).__name__}; "
                    "name a torch.nn.Module"
                )
            return found


def _text(x: Tensor) -> str:
    return f"{str(x.dtype).removeprefix('torch.')} {list(x.shape)}"
