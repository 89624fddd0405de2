"""Evaluates a model on a split: its loss, and every metric of its task."""

import numpy as np
import torch
from torch import nn

from flambeau.protocol.tensors import Array
from training.distributed.ranks import ALONE, Ranks
from training.loading.batch import TrainingBatch
from training.loading.label_arrays import LabelArray
from training.loading.row_order import Places
from training.loading.splits import Split
from training.loop.device import device_of
from training.loop.objective import Objective, make_objective
from training.metrics.task_metric import Tally, TaskMetric
from training.network.model import outputs_of
from training.recipe.recipe import Recipe


def evaluate(
    model: nn.Module,
    split: Split,
    recipe: Recipe,
    name: str,
    loss: Objective | None = None,
    ranks: Ranks = ALONE,
) -> dict[str, float]:
    """Returns the loss and every metric of the task of a model on a split.

    Args:
        model: the model; put into evaluation mode.
        split: the rows.
        recipe: has the batch size and the task.
        name: prefix of the metrics' names, as in `val/accuracy`.
        loss: the objective; None makes it from the recipe and this split.
        ranks: processes that share the rows; each row counts once, and all get the same figures.
    """
    model.eval()
    device = device_of(model)
    metric, answers = TaskMetric.of(recipe), Tally()
    judged: list[tuple[Array, LabelArray]] = []  # only for a metric of the user's own
    loss_sums, weight_sums = np.zeros(0), np.zeros(0)  # of each loss, once one is seen
    with torch.inference_mode():
        for start in range(0, split.rows, recipe.data.batch_size):
            rows = np.arange(start, min(start + recipe.data.batch_size, split.rows))
            batch = _batch(split, rows, ranks)
            found = outputs_of(model(*batch.on(device).inputs))
            outputs = tuple(output.cpu() for output in found)
            widths = [output.shape[-1] for output in outputs]
            loss = loss or make_objective(recipe, split.every_labels(), widths)
            if not loss_sums.size:
                loss_sums, weight_sums = np.zeros((2, len(loss.terms)))
            if not batch.counts:
                continue
            labels = batch.every_labels()
            weights = loss.weights(labels)
            means = np.array([mean.item() for mean in loss.means(outputs, labels)])
            # The mean over no label is NaN, and counts for nothing.
            loss_sums = loss_sums + np.where(weights > 0, means, 0.0) * weights
            weight_sums = weight_sums + weights
            answers += metric.tally(outputs[0].numpy(), split.labels[batch.rows])
            if metric.own is not None:
                judged.append((outputs[0].numpy(), split.labels[batch.rows]))
    assert loss is not None, "a split has rows"
    loss_sums, weight_sums = np.split(np.array(ranks.sums(*loss_sums, *weight_sums)), 2)
    answers = sum(ranks.gather(answers), Tally())
    metrics = {"loss": loss.value(loss_sums / weight_sums), **answers.metrics()}
    if metric.own is not None:
        parts = [part for of_rank in ranks.gather(judged) for part in of_rank]
        answered, told = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        metrics[metric.own.name] = metric.own.value(answered, told)
    return {f"{name}/{metric}": value for metric, value in metrics.items()}


def _batch(split: Split, rows: Places, ranks: Ranks) -> TrainingBatch:
    rows, counts = ranks.share(rows)
    inputs = {name: array[rows] for name, array in split.inputs.items()}
    labels = {name: array[rows] for name, array in split.every_labels().items()}
    return TrainingBatch.of(rows, inputs, labels, counts)
