"""Makes one step of the optimizer: from a window of batches to updated weights.

In: the batches whose gradients make one step. Out: the loss, and the norm of the gradient.

Rule: a window updates the weights as one batch of all its rows would, even with short batches: each
batch counts by the weight of its labels.
"""

import collections
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor, nn

from training.distributed.ranks import ALONE
from training.distributed.replica import Replica, whole_tensors
from training.errors import DivergedError, RecipeError, TargetError, TrainingError
from training.loading.batch import TrainingBatch
from training.loading.row_order import Places
from training.loop.device import device_of, random_state, restore_random_state
from training.loop.objective import Objective, Weights
from training.loop.optimization.optimizers import set_learning_rate
from training.loop.optimization.schedule import learning_rate_factor, teacher_forcing_share
from training.loop.optimization.weight_average import WeightAverage
from training.loop.out_of_memory import is_of_memory
from training.network.debugging import first_not_finite
from training.network.model_names import named_parameters
from training.recipe.parts.optimizer_parts import ClipPart
from training.recipe.recipe import Recipe
from training.recipe.targets import target_failure

NORMS_TOLD = 5
"""Gradient norms of earlier steps, and of parameters, that a divergence message lists."""
ROWS_TOLD = 64
"""Rows of a batch that the message lists."""
LOOK_EVERY = 16
"""Steps of an epoch between two checks of the gradient's norm, if nothing needs it: each check
costs a small network a sixth of a step. A non-finite gradient in between shows in the loss of the
next step, or in the weights before they are saved."""
NOTHING_LEARNS = (
    "model.target {}: what it returns in training depends on no parameter that learns, so there is "
    "no gradient; look for detach(), no_grad(), .data or NumPy in its forward, and at model.freeze"
)
BY_ANOMALY = "debug.anomaly=true shows from which operation"


AUTOCAST = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
"""Dtype of layers that are safe in it, by `train.precision`."""


class Stepped(NamedTuple):
    """The figures of one step."""

    loss: float
    """The mean over the window; with several ranks, this one's contribution to their average."""
    weight: float
    """The weight of that mean among those of other ranks and steps; for a sum of losses, the weight
    of the first one's mean."""
    gradient_norm: float | None
    """Before clipping; None if it was not computed."""
    learning_rate: float
    """The learning rate of this step, before the factors of groups."""


class Stepper:
    """Updates a model by one window after another.

    Args:
        model: the model, in training mode.
        optimizer: the optimizer of its parameters.
        recipe: the run.
        loss: the objective.
        epoch_steps: steps of one epoch.
        average: weight average, updated after every step.
        replica: the model's replica, if other processes train it too.

    Raises:
        RecipeError: the model's device cannot train in this precision.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        recipe: Recipe,
        loss: Objective,
        epoch_steps: int,
        average: WeightAverage | None = None,
        replica: Replica | None = None,
    ) -> None:
        self.replica = replica or Replica(model, recipe.train, ALONE)
        self._model, self._optimizer, self._recipe, self._loss = model, optimizer, recipe, loss
        self._parameters = list(model.parameters())
        self._peak_rate = recipe.optim.chosen.lr
        self._epoch_steps = epoch_steps
        self._total_steps = recipe.train.epochs * epoch_steps
        self._average = average or WeightAverage(model, None)
        self._device = device_of(model)
        self._precision = AUTOCAST[recipe.train.precision]
        self._scaler = gradient_scaler(recipe.train.precision, self._device.type)
        self._norms: collections.deque[float] = collections.deque(maxlen=NORMS_TOLD)
        # Ranks with shards of the weights must all find the same, in the same step.
        clips, shared = recipe.optim.clip is not None, self.replica.is_sharded
        self._looks_always = clips or shared or self._scaler.is_enabled()
        self._last: tuple[Places, int, float] | None = None
        """Rows, number and learning rate of the step before."""

    def step(self, window: Sequence[TrainingBatch], step: int, rate_factor: float) -> Stepped:
        """Updates the weights once.

        Args:
            window: the batches of this step, in the host's memory.
            step: its number in the run, from 0.
            rate_factor: factor of `schedule.plateau` on the learning rate.

        Raises:
            DivergedError: the loss is no longer a number.
        """
        optim = self._recipe.optim
        factor = learning_rate_factor(
            step, self._total_steps, self._recipe.schedule, self._epoch_steps
        )
        rate = self._peak_rate * factor * rate_factor
        set_learning_rate(self._optimizer, rate)
        shares, weight = self._shares(window)
        if optim.lbfgs is not None:
            norms: list[float] = []

            def closure() -> float:
                loss = self._gradient(window, shares, step, rate)
                norms.append(gradient_norm(self._parameters))
                return loss

            loss = float(self._optimizer.step(closure))  # the loss before the step
            norm = norms[0]
        else:
            loss = self._gradient(window, shares, step, rate)
            self._scaler.unscale_(self._optimizer)
            norm = None
            if self._looks_always or step % self._epoch_steps % LOOK_EVERY == 0:
                found = clip_gradient(self._parameters, optim.clip)
                norm = self._checked(found, window, step, rate)
            self._scaler.step(self._optimizer)
            self._scaler.update()
        if norm is not None:
            self._norms.append(norm)
        self._last = _rows_of(window), step, rate
        self._average.update()
        return Stepped(loss, weight, norm, rate)

    def check_weights(self) -> None:
        """Checks that the last step left finite weights, before they are evaluated or saved.

        Raises:
            DivergedError: a weight is not finite.
        """
        if self._last is None or self._looks_always:
            return
        learning = [p.detach() for p in self._parameters if p.requires_grad]
        if not math.isfinite(_number(_total_norm(learning))):
            lost = "the weights are no longer finite"
            raise self._diverged(lost, *self._last, BY_ANOMALY)

    def state(self) -> dict[str, Any]:
        """Returns the state of the scaler, the average and the device's random numbers."""
        random = random_state(self._device)
        return {"scaler": self._scaler.state_dict(), **random, **self._average.state()}

    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restores a `state`."""
        self._scaler.load_state_dict(saved["scaler"])
        restore_random_state(self._device, saved)
        self._average.restore(saved)

    def _gradient(
        self,
        window: Sequence[TrainingBatch],
        shares: Sequence[Weights | None],
        step: int,
        rate: float,
    ) -> float:
        """Sets the parameters' gradients to those of the step's mean loss, and returns the loss."""
        for parameter in self._parameters:
            parameter.grad = None
        losses: list[Tensor] = []
        for batch, share in zip(window, shares, strict=True):
            with self.replica.held_back(last=batch is window[-1], counts=batch.counts):
                try:
                    loss = self._forward(self.replica.run, batch, step, share)
                except Exception as error:  # the user's model may raise any exception
                    self._tell(error, step)
                losses.append(loss)
                if not loss.requires_grad:
                    raise TargetError(NOTHING_LEARNS.format(self._recipe.model.target))
                part = self._scaler.scale(loss)
                try:
                    part.backward()  # type: ignore[no-untyped-call]
                except Exception as error:  # and so may its own backward pass
                    if not (torch.is_anomaly_enabled() and isinstance(error, RuntimeError)):
                        self._tell(error, step)
                    self._values(losses, window, step, rate)
                    lost = "a gradient is not finite"
                    raise self._diverged(lost, batch.rows, step, rate, str(error)) from error
        # Reading a number waits for the device, so it comes after all work is submitted.
        return sum(self._values(losses, window, step, rate))

    def _tell(self, error: Exception, step: int) -> NoReturn:
        """Raises a user-code error with its location; re-raises other errors unchanged."""
        lost = self.replica.ranks.world > 1 and isinstance(error, RuntimeError)
        ours = isinstance(error, TrainingError) or is_of_memory(error)
        if lost or ours or type(error).__module__.startswith("torch._dynamo"):
            raise error
        what = f"model.target {self._recipe.model.target} fails in training, at step {step}"
        raise target_failure(what, error) from error

    def _values(
        self, losses: Sequence[Tensor], window: Sequence[TrainingBatch], step: int, rate: float
    ) -> list[float]:
        """Returns the losses as numbers, and checks that all are finite."""
        values = [loss.item() for loss in losses]
        if all(map(math.isfinite, values)):
            return values
        for value, batch in zip(values, window, strict=False):
            if not math.isfinite(value):
                self.check_weights()
                where = "train.parallel none shows from which layer"
                if not self.replica.is_sharded:  # else all ranks would have to run it again
                    run = partial(self._forward, self._model, batch, step)
                    where = first_not_finite(self._model, run, batch.inputs)
                raise self._diverged(f"the loss is {value}", batch.rows, step, rate, where)
        return values

    def _forward(
        self,
        run: Callable[..., Any],
        batch: TrainingBatch,
        step: int,
        shares: Weights | None = None,
    ) -> Tensor:
        """Returns the objective over a batch; see `Objective.of`."""
        batch = batch.on(self._device)
        told = self._told(batch.labels, step)
        if self._precision is torch.float32:
            outputs = run(*batch.inputs, **told)  # [N, K] or [N, T, K], or several
        else:
            with torch.autocast(self._device.type, self._precision):
                outputs = run(*batch.inputs, **told)
        return self._loss.of(outputs, batch.every_labels(), shares)

    def _shares(self, window: Sequence[TrainingBatch]) -> tuple[list[Weights | None], float]:
        """Returns each batch's share of a step's labels, and the weight of the step's mean.

        Processes average their gradients, so the shares of all of them add up to their number.
        """
        ranks = self.replica.ranks
        if len(window) == ranks.world == 1:  # sums take a thirtieth of a small network's step
            (batch,) = window
            labels = batch.every_labels()
            return [None], self._loss.first_weight(labels) if batch.counts else 0.0
        weights = [
            self._loss.weights(batch.every_labels()) * (1.0 if batch.counts else 0.0)
            for batch in window
        ]
        total: Weights = np.array(ranks.sums(*np.sum(weights, axis=0)))  # [L]
        none = np.zeros_like(total)
        shares: list[Weights | None] = [
            np.divide(weight * ranks.world, total, out=none.copy(), where=total > 0)
            for weight in weights
        ]
        return shares, float(total[0]) / ranks.world

    def _told(self, labels: Tensor, step: int) -> dict[str, Any]:
        """Returns the training-only arguments of a sequence model, in addition to its inputs."""
        forcing = self._recipe.train.teacher_forcing
        if forcing is None:
            return {}
        share = teacher_forcing_share(step, self._total_steps, forcing)
        return {"targets": labels, "teacher_forcing": share}

    def _checked(
        self, norm: float, window: Sequence[TrainingBatch], step: int, rate: float
    ) -> float:
        """Keeps a non-finite gradient from the weights; a scaler skips such a step."""
        if math.isfinite(norm):
            return norm
        if self._scaler.is_enabled():
            return 0.0
        lost = f"the gradient's norm is {norm}"
        raise self._diverged(lost, _rows_of(window), step, rate, BY_ANOMALY)

    def _largest_gradients(self) -> list[tuple[str, float]]:
        """Returns the largest gradient norms by parameter; those that are NaN come first."""
        if self.replica.is_sharded:  # all ranks would have to sum up their shares
            return []
        parameters = named_parameters(self._model).items()
        norms = [(n, p.grad.norm().item()) for n, p in parameters if p.grad is not None]
        norms.sort(key=lambda pair: pair[1] if pair[1] == pair[1] else math.inf, reverse=True)
        return norms[:NORMS_TOLD]

    def _diverged(
        self, lost: str, places: Places, step: int, rate: float, where: str
    ) -> DivergedError:
        norms = ", ".join(f"{norm:.3g}" for norm in self._norms) or "none yet"
        largest = ", ".join(f"{name} {norm:.3g}" for name, norm in self._largest_gradients())
        rows = ", ".join(str(row) for row in places[:ROWS_TOLD])
        more = f" and {len(places) - ROWS_TOLD} more" if len(places) > ROWS_TOLD else ""
        return DivergedError(
            f"{lost} at step {step} (epoch {step // self._epoch_steps + 1}, learning rate "
            f"{rate:.3g}); {self._what_to_do(step)}; {where}; gradient "
            f"norms of the steps before: {norms}; of parameters now, largest first: "
            f"{largest or 'none yet'}; training rows of the batch: {rows}{more}; the "
            "last checkpoint is kept"
        )

    def _what_to_do(self, step: int) -> str:
        """Returns likely causes: not the learning rate, if no step was taken."""
        optim = self._recipe.optim
        if step > 0 or self._last is not None or optim.lbfgs is not None:
            return (
                f"lower optim.{optim.choice}.lr ({optim.chosen.lr:g}) or optim.clip "
                f"({_clip_in_words(optim.clip)}), and look for NaN in the inputs"
            )
        words = (
            "no step was taken yet, so the learning rate is not the cause: look for NaN, infinity "
            "and very large numbers in the inputs and labels, at the first weights, and for a "
            "division by 0, the logarithm or root of 0, and torch.empty in forward and in the loss"
        )
        lost = [
            name
            for name, parameter in named_parameters(self._model).items()
            if not self.replica.is_sharded and not parameter.isfinite().all()
        ]
        told = f"; first weights that are not finite: {', '.join(lost[:NORMS_TOLD])}"
        return words + told if lost else words


def gradient_scaler(precision: str, device: str) -> torch.amp.GradScaler:
    """Returns a scaler that keeps small FP16 gradients above 0; disabled in other precisions.

    Raises:
        RecipeError: the device cannot train in this precision.
    """
    if precision == "fp16" and device == "cpu":
        raise RecipeError(
            "train.precision fp16 needs a GPU, and the model is on the CPU, where torch is slower "
            "in fp16 than in fp32; take bf16 or fp32"
        )
    return torch.amp.GradScaler(device, enabled=precision == "fp16")


def clip_gradient(parameters: Sequence[nn.Parameter], clip: ClipPart | None) -> float:
    """Clips the gradient in place.

    Returns:
        Its norm before clipping.
    """
    found = [_numbers_of(p) for p in parameters if p.grad is not None]
    norm = _total_norm(found)
    if clip is not None and clip.value is not None:
        if _alike(found):
            for gradient in found:
                gradient.clamp_(-clip.value, clip.value)
        else:
            nn.utils.clip_grad_value_(parameters, clip.value)
    elif clip is not None and clip.norm is not None:
        if _alike(found):
            torch._foreach_mul_(found, torch.clamp(clip.norm / (norm + 1e-6), max=1.0))
        else:
            nn.utils.clip_grads_with_norm_(parameters, clip.norm, norm)
    return _number(norm)


def _numbers_of(parameter: nn.Parameter) -> Tensor:
    """Returns the stored values of a gradient; changing them in place changes the gradient."""
    gradient = parameter.grad
    assert gradient is not None, "it has one"
    if not gradient.is_sparse:
        return gradient
    parameter.grad = gradient.coalesce()
    return parameter.grad._values()


def gradient_norm(parameters: Sequence[nn.Parameter]) -> float:
    """Returns the norm of the whole gradient."""
    return clip_gradient(parameters, None)


def _total_norm(gradients: list[Tensor]) -> Tensor:
    """Returns the result of `torch.nn.utils.get_total_norm`, bit for bit, in a third of its time.

    That function first sorts gradients by device and type, which for a small network takes longer
    than the norm.
    """
    if not _alike(gradients):
        return nn.utils.get_total_norm(gradients)
    norm: Tensor = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    return norm


def _number(norm: Tensor) -> float:
    # For shards of a tensor, the norm of the whole.
    return float(whole_tensors(norm).item())


def _alike(gradients: Sequence[Tensor]) -> bool:
    """Returns True if they are plain tensors of one device and type."""
    return len({(type(g), g.device, g.dtype) for g in gradients}) == 1 and (
        type(gradients[0]) is Tensor
    )


def _clip_in_words(clip: ClipPart | None) -> str:
    return "none" if clip is None else f"{clip.choice} {clip.chosen:g}"


def _rows_of(window: Sequence[TrainingBatch]) -> Places:
    return window[0].rows if len(window) == 1 else np.concatenate([b.rows for b in window])
