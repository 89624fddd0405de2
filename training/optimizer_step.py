"""One step of the optimizer: from a window of batches to changed weights.

In: the batches whose gradients make one step. Out: the loss, and how large the gradient was.

Rule kept here: a window moves the weights as one batch of all its rows would, short ones too: each
batch counts by what its labels weigh.
"""

import collections
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from training.debugging import first_not_finite
from training.errors import DivergedError, RecipeError
from training.losses import Loss
from training.model import first_output
from training.optimizer_parts import ClipPart
from training.optimizers import set_learning_rate
from training.recipe import Recipe
from training.schedule import learning_rate_factor, teacher_forcing_share
from training.weight_average import WeightAverage

NORMS_TOLD = 5
"""Gradient norms of earlier steps that a message about a lost run names."""
ROWS_TOLD = 64
"""Rows of a batch that it names."""


AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""What layers that are safe in it compute in, by `train.precision`."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows that go through the model together."""

    rows: npt.NDArray[np.int64]
    """Their places in the split, [N]."""
    inputs: list[Tensor]
    """The model's arguments, each [N, ...]."""
    labels: Tensor
    """[N], or [N, T]."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What one step saw."""

    loss: float
    """The mean over the window."""
    weight: float
    """What that mean weighs beside those of other steps."""
    gradient_norm: float
    """Before clipping."""
    learning_rate: float
    """The peak's share at this step, before the factors of groups."""


class Stepper:
    """Moves a model by one window after another.

    Args:
        model: what is trained, in training mode.
        optimizer: of its parameters.
        recipe: the run.
        loss: what is minimised.
        epoch_steps: steps of one epoch.
        average: follows every step.

    Raises:
        RecipeError: the model's device cannot train in this precision.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        loss: Loss,
        epoch_steps: int,
        average: WeightAverage | None = None,
    ) -> None:
        self._model, self._optimizer, self._recipe, self._loss = model, optimizer, recipe, loss
        self._epoch_steps = epoch_steps
        self._total_steps = recipe.train.epochs * epoch_steps
        self._average = average or WeightAverage(model, None)
        self._device = next(model.parameters()).device.type
        self._scaler = _scaler(recipe.train.precision, self._device)
        self._norms: collections.deque[float] = collections.deque(maxlen=NORMS_TOLD)

    def step(self, window: Sequence[Batch], step: int, rate_factor: float) -> Stepped:
        """Moves the weights once.

        Args:
            window: the batches of this step.
            step: its number in the run, from 0.
            rate_factor: what `schedule.plateau` has made of the learning rate.

        Raises:
            DivergedError: the loss is no longer a number.
        """
        optim = self._recipe.optim
        factor = learning_rate_factor(
            step, self._total_steps, self._recipe.schedule, self._epoch_steps
        )
        rate = optim.chosen.lr * factor * rate_factor
        set_learning_rate(self._optimizer, rate)
        if optim.lbfgs is not None:
            norms: list[float] = []

            def closure() -> float:
                loss = self._gradient(window, step, rate)
                norms.append(gradient_norm(self._model))
                return loss

            loss = float(self._optimizer.step(closure))  # the loss before the step
            norm = norms[0]
        else:
            loss = self._gradient(window, step, rate)
            self._scaler.unscale_(self._optimizer)
            norm = self._checked(clip_gradient(self._model, optim.clip), window, step, rate)
            self._scaler.step(self._optimizer)
            self._scaler.update()
        self._norms.append(norm)
        self._average.update()
        weight = sum(self._loss.weight_of(batch.labels) for batch in window)
        return Stepped(loss, weight, norm, rate)

    def state(self) -> dict[str, Any]:
        """What a checkpoint holds of it, and of the average."""
        return {"scaler": self._scaler.state_dict(), **self._average.state()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Goes on from a `state`."""
        self._scaler.load_state_dict(saved["scaler"])
        self._average.restore(saved)

    def _gradient(self, window: Sequence[Batch], step: int, rate: float) -> float:
        """Leaves the gradient of the window's mean loss in the parameters, and returns the loss."""
        weights = [self._loss.weight_of(batch.labels) for batch in window]
        self._optimizer.zero_grad()
        mean = 0.0
        for batch, weight in zip(window, weights, strict=True):
            share = weight / sum(weights)
            loss = self._forward(batch, step)
            value = loss.item()
            if not math.isfinite(value):
                run = partial(self._forward, batch, step)
                where = first_not_finite(self._model, run, batch.inputs)
                raise self._diverged(f"the loss is {value}", [batch], step, rate, where)
            part = self._scaler.scale(loss * share if len(window) > 1 else loss)
            try:
                part.backward()  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                if not torch.is_anomaly_enabled():
                    raise
                lost = "a gradient is no number"
                raise self._diverged(lost, [batch], step, rate, str(error)) from error
            mean += value * share
        return mean

    def _forward(self, batch: Batch, step: int) -> Tensor:
        told = self._told(batch.labels, step)
        precision = AUTOCAST[self._recipe.train.precision]
        with torch.autocast(self._device, precision, enabled=precision is not torch.float32):
            logits = first_output(self._model(*batch.inputs, **told))  # [N, K] or [N, T, K]
        return self._loss.of(logits.float(), batch.labels)

    def _told(self, labels: Tensor, step: int) -> dict[str, Any]:
        """What a model that writes sequences is given in training, beside its inputs."""
        forcing = self._recipe.train.teacher_forcing
        if forcing is None:
            return {}
        share = teacher_forcing_share(step, self._total_steps, forcing)
        return {"targets": labels, "teacher_forcing": share}

    def _checked(self, norm: float, window: Sequence[Batch], step: int, rate: float) -> float:
        """A gradient that is no number must not reach the weights; a scaler leaves it out."""
        if math.isfinite(norm):
            return norm
        if self._scaler.is_enabled():
            return 0.0
        where = "debug.anomaly=true shows from which operation"
        raise self._diverged(f"the gradient's norm is {norm}", window, step, rate, where)

    def _diverged(
        self, lost: str, window: Sequence[Batch], step: int, rate: float, where: str
    ) -> DivergedError:
        optim = self._recipe.optim
        norms = ", ".join(f"{norm:.3g}" for norm in self._norms) or "none yet"
        places = np.concatenate([batch.rows for batch in window])
        rows = ", ".join(str(row) for row in places[:ROWS_TOLD])
        more = f" and {len(places) - ROWS_TOLD} more" if len(places) > ROWS_TOLD else ""
        return DivergedError(
            f"{lost} at step {step} (epoch {step // self._epoch_steps + 1}, learning rate "
            f"{rate:.3g}); lower optim.{optim.choice}.lr ({optim.chosen.lr:g}) or optim.clip "
            f"({_clip_in_words(optim.clip)}), and look for NaN in the inputs; {where}; gradient "
            f"norms of the steps before: {norms}; training rows of the batch: {rows}{more}; the "
            "last checkpoint is kept"
        )


def _scaler(precision: str, device: str) -> torch.amp.GradScaler:
    """Keeps small gradients of FP16 above 0; it does nothing in other precisions."""
    if precision == "fp16" and device == "cpu":
        raise RecipeError(
            "train.precision fp16 needs a GPU, and the model is on the CPU, where torch is slower "
            "in fp16 than in fp32; take bf16 or fp32"
        )
    return torch.amp.GradScaler(device, enabled=precision == "fp16")


def clip_gradient(model: nn.Module, clip: ClipPart | None) -> float:
    """Limits the gradient in place.

    Returns:
        Its norm before.
    """
    if clip is not None and clip.value is not None:
        norm = gradient_norm(model)
        nn.utils.clip_grad_value_(model.parameters(), clip.value)
        return norm
    limit = math.inf if clip is None or clip.norm is None else clip.norm
    return nn.utils.clip_grad_norm_(model.parameters(), limit).item()


def gradient_norm(model: nn.Module) -> float:
    """The norm of the whole gradient."""
    found = [p.grad for p in model.parameters() if p.grad is not None]
    return nn.utils.get_total_norm(found).item()


def _clip_in_words(clip: ClipPart | None) -> str:
    return "none" if clip is None else f"{clip.choice} {clip.chosen:g}"
