"""Compares the answers of two versions to the same inputs. Pure; arrays of any size.

By the task:
- *classes*: rows whose largest element is at another place differ;
- *scores*: numbers between 0 and 1 disagree by their difference;
- other numbers: a row disagrees by the distance of both answers, divided by the sum of their
  lengths: 0 if they are equal, 1 if they have opposite signs or one is 0;
- whole numbers, booleans and BYTES: elements that are not equal differ.

An answer's disagreement is the mean over its rows, and the largest of its outputs; if outputs of
classes or scores are known, these alone count. Another name or shape, or a NaN in one alone, is 1.
"""

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array, bf16_numbers
from model_store.rollouts.guards import OutputGuard
from services.queueing.records import InferReply
from services.rollouts.evidence.evidence import MAX_PLACE, score_step

CHECKED_ELEMENTS = 4096
"""Evenly spread elements of an answer that are checked on the event loop: some 10 µs."""


_Floats = npt.NDArray[np.float64]


class Task(NamedTuple):
    """What a model's outputs mean, as far as that is known."""

    kind: Literal["classes", "scores", "numbers"] = "numbers"
    values: int = 0
    """Number of classes."""
    named: frozenset[str] = frozenset()
    """Outputs that have names of classes."""


class Judged(NamedTuple):
    """The comparison of two answers."""

    disagreement: float
    """Between 0 and 1."""
    difference: float
    """Largest difference of two finite numbers; 0 where there are none."""
    nan: bool
    """True if the candidate alone has a NaN or an infinity."""


def task_of(guard: OutputGuard | None, signature: Signature) -> Task:
    """Returns the task by the guard of a rollout, or else by the names of classes."""
    named = frozenset(signature.labels)
    if guard is None:
        return Task("classes" if named else "numbers", 0, named)
    return Task(guard.kind, guard.values, named)


def numbers_of(reply: InferReply) -> Mapping[str, Array]:
    """Returns the outputs of an answer; those of BF16, which are bit patterns, as numbers."""
    types, outputs = reply.datatypes, reply.outputs
    if "BF16" not in types.values():
        return outputs
    return {
        name: bf16_numbers(array) if types[name] == "BF16" else array
        for name, array in outputs.items()
    }


def output_of(outputs: Mapping[str, Array], task: Task) -> int | None:
    """Returns the class of the first row, or its score in steps; None if no output has one.

    It takes a few microseconds: a row of classes has at most `MAX_PLACE` elements.
    """
    if task.kind == "numbers":
        return None
    for name, array in outputs.items():
        if not array.size or not _is_judged(name, array, task):
            continue
        if task.kind == "scores":
            return score_step(float(array.item(0)))
        classes = array.shape[-1]
        if classes <= (task.values or MAX_PLACE):
            return int(array.reshape(-1, classes)[0].argmax())
    return None


def has_nan(outputs: Iterable[Array]) -> bool:
    """Returns True if an element is no finite number; of large outputs, some are looked at."""
    for array in outputs:
        if array.dtype.kind not in "fc":
            continue
        some = array
        if array.size > CHECKED_ELEMENTS and array.flags.c_contiguous:
            some = array.reshape(-1)[:: -(-array.size // CHECKED_ELEMENTS)]
        if not np.isfinite(some).all():
            return True
    return False


def compared(live: Mapping[str, Array], candidate: Mapping[str, Array], task: Task) -> Judged:
    """Compares two answers."""
    judged = list(live)
    if task.kind != "numbers":
        judged = [name for name, array in live.items() if _is_judged(name, array, task)] or judged
    disagreement, difference, nan = 0.0, 0.0, False
    for name in live:
        other = candidate.get(name)
        if other is None or other.shape != live[name].shape:
            found = Judged(1.0, 0.0, False)
        else:
            found = _compared(name, live[name], other, task)
        if name in judged:
            disagreement = max(disagreement, found.disagreement)
        difference = max(difference, found.difference)
        nan = nan or found.nan
    if candidate.keys() - live.keys():
        disagreement = 1.0
    return Judged(1.0 if nan else disagreement, difference, nan)


def _is_judged(name: str, array: Array, task: Task) -> bool:
    """Returns True if an output has the classes or the scores of the task."""
    if array.dtype.kind not in "fc" or array.ndim == 0:
        return False
    if task.kind == "scores":
        return math.prod(array.shape[1:]) == 1
    return name in task.named or array.shape[-1] == task.values > 1


def _compared(name: str, live: Array, candidate: Array, task: Task) -> Judged:
    if not live.size:
        return Judged(0.0, 0.0, False)
    if live.dtype.kind not in "fc":
        differ = np.not_equal(live, candidate)
        difference = 0.0
        if live.dtype.kind in "biu" and candidate.dtype.kind in "biuf":
            difference = float(np.abs(_floats(live) - _floats(candidate)).max())
        return Judged(float(np.mean(differ.astype(bool))), difference, False)
    one, other = _floats(live), _floats(candidate)
    both_odd = (np.isnan(one) & np.isnan(other)) | (one == other)  # equal infinities, too
    one, other = np.where(both_odd, 0, one), np.where(both_odd, 0, other)
    odd = ~(np.isfinite(one) & np.isfinite(other))
    nan = bool((~np.isfinite(other) & np.isfinite(one)).any())
    one, other = np.where(odd, 0, one), np.where(odd, 0, other)
    difference = float(np.abs(one - other).max())
    if task.kind == "classes" and _is_judged(name, live, task):
        places = [np.nan_to_num(_floats(x)).argmax(-1) for x in (live, candidate)]
        return Judged(float(np.mean(places[0] != places[1])), difference, nan)
    if task.kind == "scores" and _is_judged(name, live, task):
        return Judged(float(np.clip(np.abs(one - other), 0, 1).mean()), difference, nan)
    rows = (live.shape[0], -1) if live.ndim > 1 else (-1, 1)
    distance = _distance(one.reshape(rows), other.reshape(rows), odd.reshape(rows))
    return Judged(distance, difference, nan)


def _distance(live: _Floats, candidate: _Floats, odd: npt.NDArray[np.bool_]) -> float:
    """Returns the mean over rows of the distance, divided by the sum of both lengths."""
    lengths = np.linalg.norm(live, axis=1) + np.linalg.norm(candidate, axis=1)
    apart = np.linalg.norm(live - candidate, axis=1)
    shares = np.divide(apart, lengths, out=np.zeros_like(apart), where=lengths > 0)
    shares[odd.any(1)] = 1.0
    return float(shares.mean())


def _floats(array: Array) -> _Floats:
    return array.astype(np.float64)
