"""Runs the steps of a pipeline one after the other, without servers and queues. Pure NumPy.

In: a pipeline, a function for each of its models, and inputs. Out: outputs. It records the golden
outputs, and is what the servers' concurrent execution is compared with.
"""

from collections.abc import Mapping

import numpy as np

from flambeau.protocol.row_form import Run
from flambeau.protocol.tensors import DATATYPES, Array
from model_store.pipelines.graph import INPUT, Pipeline, refs_of, step_of
from model_store.pipelines.items import (
    Selection,
    Sliced,
    T,
    joined,
    nothing,
    put_back,
    select,
    taken,
)
from model_store.pipelines.step_types import TypedPipeline, TypedStep


def run_steps(
    pipeline: Pipeline,
    typed: TypedPipeline,
    runs: Mapping[str, Run],
    inputs: Mapping[str, Array],
) -> dict[str, Array]:
    """Returns the outputs of a pipeline, each [rows, ...].

    Args:
        pipeline: the graph.
        typed: its steps in order.
        runs: function that runs each model, by the text that names it.
        inputs: arrays by name, each [rows, ...].

    Raises:
        StepError: a model raised, or tensors of the request do not fit its step.
    """
    return _Running(pipeline, typed, runs, inputs).outputs()


class StepError(Exception):
    """A step failed; the message names it, and has the error."""


class _Running:
    """The tensors of one request."""

    def __init__(
        self,
        pipeline: Pipeline,
        typed: TypedPipeline,
        runs: Mapping[str, Run],
        inputs: Mapping[str, Array],
    ) -> None:
        self._pipeline, self._typed, self._runs = pipeline, typed, runs
        self._rows = len(next(iter(inputs.values())))
        self._values = {f"{INPUT}.{name}": array for name, array in inputs.items()}
        self._selections: dict[str, Selection] = {}

    def outputs(self) -> dict[str, Array]:
        for one in self._typed.steps:
            try:
                found = self._run(one)
            except Exception as error:  # a runtime may raise anything
                raise StepError(f"step '{one.step.name}': {error}") from error
            for name, array in found.items():
                self._values[f"{one.step.name}.{name}"] = array
        return {name: self._value(s) for name, s in self._pipeline.outputs.items()}

    def _value(self, source: str | tuple[str, ...]) -> Array:
        refs = refs_of(source)
        if len(refs) == 1:
            return self._values[refs[0]]
        chosen = [self._selections[step_of(ref)].chosen_rows() for ref in refs]
        return finished(joined([self._values[ref] for ref in refs], chosen))

    def _run(self, one: TypedStep) -> dict[str, Array]:
        step = one.step
        for_each = None if step.for_each is None else self._values[step.for_each]
        where = None if step.where is None else self._values[step.where]
        selection = Selection(self._rows, None, None)
        if for_each is not None or where is not None:
            selection = self._selections[step.name] = select(self._rows, for_each, where)
        specs = {spec.name: spec for spec in one.signature.outputs}
        if not selection.count:
            empty = {n: (specs[n].shape, DATATYPES[specs[n].datatype]) for n in one.outputs}
            return {n: nothing(shape, dtype, selection) for n, (shape, dtype) in empty.items()}
        inputs = {
            name: finished(taken(self._value(source), selection, name in one.by_item))
            for name, source in step.inputs.items()
        }
        at_once = one.signature.max_batch_size
        batches = [
            self._runs[step.model](
                {n: np.ascontiguousarray(a[start : start + at_once]) for n, a in inputs.items()}
            )
            for start in range(0, selection.count, at_once)
        ]
        return {
            name: finished(put_back([batch[name] for batch in batches], selection))
            for name in one.outputs
        }


def finished(work: Sliced[T]) -> T:
    """Does all slices of some work, and returns its result."""
    while True:
        try:
            next(work)
        except StopIteration as end:
            found: T = end.value
            return found
