"""The graph of a pipeline: steps, the models that they run, and the tensors between them. Pure.

    steps:
      - {name: detect, model: detector@^1, inputs: {image: input.image}}
      - name: read
        model: reader@~2.1
        for_each: detect.crops        # [rows, items, ...]: each item is a row of the step's batch
        where: detect.found           # [rows, items] BOOL, or the number of items of each row
        inputs: {crop: detect.crops}
    outputs: {text: read.text, boxes: detect.boxes}

A tensor is named `STEP.OUTPUT`, or `input.NAME` if a request brings it. A list of such names is a
join: each row comes from the first of these steps that ran for it (see `where`).

Rules: names are unique; every tensor has a source; no step depends on itself; each step is read by
another or by an output; a model is named with a range of semantic versions or with one version, so
that no moved pointer changes a type.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from graphlib import CycleError, TopologicalSorter
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from flambeau.protocol.strict import Matching, StrictModel, nearest_name
from flambeau.protocol.tensor_spec import TensorName
from model_store.semver.semver import SemverRange, parse_range, parse_semver

MAX_STEPS = 32
"""Steps of a pipeline, and thus its depth."""
MAX_TENSORS = 64
"""Inputs of a step, outputs of a pipeline, and names in a join."""
MAX_REFS = 4096
"""Tensors that all steps and outputs read: each is looked at when a version of a part changes."""
INPUT = "input"
"""The source of the tensors that a request brings; no step may have this name."""

StepName = Annotated[
    str,
    Matching(
        r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
        "1 to 64 letters, digits, '_' or '-', starting with a letter or digit",
    ),
]
TensorRef = Annotated[
    str, Matching(r"^[A-Za-z0-9][A-Za-z0-9_-]{0,63}\..{1,256}$", "STEP.OUTPUT or input.NAME")
]
Source = TensorRef | Annotated[tuple[TensorRef, ...], Field(min_length=2, max_length=MAX_TENSORS)]
"""A tensor, or a join of several."""


@dataclass(frozen=True, slots=True)
class Part:
    """A model and the versions of it that a step may run."""

    model: str
    wanted: SemverRange | int
    """A range of semantic versions, or the number of one version."""
    text: str
    """As it was written: `detector@^1`."""

    def fits(self, version: int, semver: str) -> bool:
        """Returns True if a version may run the step.

        Args:
            version: its number.
            semver: its semantic version; empty for none.
        """
        if isinstance(self.wanted, int):
            return version == self.wanted
        found = parse_semver(semver)
        return found is not None and self.wanted.holds(found)


def parse_part(text: str) -> Part:
    """Parses `model@range` or `model@number`.

    Raises:
        ValueError: it is neither.
    """
    model, _, wanted = text.partition("@")
    if wanted.isascii() and wanted.isdecimal() and 0 < len(wanted) < 10 and int(wanted):
        return Part(model, int(wanted), text)
    found = parse_range(wanted)
    if not model or found is None:
        raise ValueError(
            "write a model with a range of semantic versions or one version, as in detector@^1, "
            "detector@~1.4 or detector@3; an alias may move to a version of another signature"
        )
    return Part(model, found, text)


def refs_of(source: str | tuple[str, ...]) -> tuple[str, ...]:
    """Returns the tensors of a source: one, or those of a join."""
    return (source,) if isinstance(source, str) else source


def step_of(ref: str) -> str:
    """Returns the step that gives a tensor, or `input`."""
    return ref.partition(".")[0]


class Step(StrictModel):
    """One step: a model, and the tensors that it is given."""

    name: StepName
    model: str
    """The model and its versions: `detector@^1`."""
    inputs: dict[TensorName, Source] = Field(min_length=1, max_length=MAX_TENSORS)
    """Tensor of each input of the model."""
    for_each: TensorRef | None = Field(default=None, exclude_if=lambda ref: ref is None)
    """A tensor [rows, items, ...]: the step runs for each item, all items of a request in one
    batch. Its outputs are [rows, items, ...]; they are 0, or empty, for items left out by `where`.
    Inputs of the same dimensions are given item by item, others are repeated for each item."""
    where: TensorRef | None = Field(default=None, exclude_if=lambda ref: ref is None)
    """A BOOL tensor: the rows that the step runs for, [rows], or the items, [rows, items]; for
    items also an integer tensor [rows], the number of items of each row. None for all."""

    @field_validator("name")
    @classmethod
    def _not_reserved(cls, value: str) -> str:
        if value == INPUT:
            raise ValueError(f"'{INPUT}' names the tensors of the request; choose another name")
        return value

    @field_validator("model")
    @classmethod
    def _names_versions(cls, value: str) -> str:
        parse_part(value)
        return value

    @property
    def part(self) -> Part:
        """The model and its versions."""
        return parse_part(self.model)

    def refs(self) -> Iterator[str]:
        """Yields every tensor that the step reads."""
        for source in self.inputs.values():
            yield from refs_of(source)
        yield from (ref for ref in (self.for_each, self.where) if ref is not None)


class Pipeline(StrictModel):
    """A graph of steps, and the tensors that answer a request."""

    steps: tuple[Step, ...] = Field(min_length=1, max_length=MAX_STEPS)
    outputs: dict[TensorName, Source] = Field(min_length=1, max_length=MAX_TENSORS)
    """Tensor of each output of the pipeline."""

    @model_validator(mode="after")
    def _is_a_graph(self) -> "Pipeline":
        names = [step.name for step in self.steps]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ValueError(f"two steps are named '{twice}'; give each its own name")
        reads = sum(map(len, self._sources()))
        if reads > MAX_REFS:
            raise ValueError(
                f"it reads {reads:,} tensors, and {MAX_REFS:,} are allowed; join fewer"
            )
        for step in self.steps:
            for ref in step.refs():
                _check_source(f"step '{step.name}'", ref, names)
        for name, source in self.outputs.items():
            for ref in refs_of(source):
                _check_source(f"output '{name}'", ref, names)
        self._check_joins()
        self._check_acyclic()
        self._check_used()
        return self

    def in_order(self) -> list[Step]:
        """Returns the steps so that each comes after those that it reads."""
        steps = {step.name: step for step in self.steps}
        return [steps[name] for name in self._sorter().static_order()]

    def models(self) -> tuple[str, ...]:
        """Returns the models with their versions, as they are written, each once."""
        return tuple(dict.fromkeys(step.model for step in self.steps))

    def reads(self) -> dict[str, set[str]]:
        """Returns the outputs of each step that another step or an output of the pipeline reads."""
        refs = [ref for step in self.steps for ref in step.refs()]
        refs += [ref for source in self.outputs.values() for ref in refs_of(source)]
        found: dict[str, set[str]] = {}
        for ref in refs:
            step, _, tensor = ref.partition(".")
            found.setdefault(step, set()).add(tensor)
        return found

    def with_models(self, models: Mapping[str, str]) -> "Pipeline":
        """Returns the graph with other models, by the text that names each now."""
        steps = [s.model_copy(update={"model": models.get(s.model, s.model)}) for s in self.steps]
        return self.model_copy(update={"steps": tuple(steps)})

    def before(self, step: Step, outputs: Mapping[str, Source]) -> "Pipeline":
        """Returns the graph of the steps that a step reads, or that these read.

        Args:
            step: the step.
            outputs: the tensors of them that are the outputs of that graph.
        """
        needed = {step_of(ref) for ref in step.refs()}
        for one in reversed(self.in_order()):
            if one.name in needed:
                needed |= {step_of(ref) for ref in one.refs()}
        steps = tuple(one for one in self.steps if one.name in needed)
        return Pipeline.model_construct(steps=steps, outputs=dict(outputs))

    def _sources(self) -> Iterator[tuple[str, ...]]:
        for step in self.steps:
            yield from map(refs_of, step.inputs.values())
        yield from map(refs_of, self.outputs.values())

    def _sorter(self) -> TopologicalSorter[str]:
        return TopologicalSorter(
            {s.name: {step_of(ref) for ref in s.refs()} - {INPUT} for s in self.steps}
        )

    def _check_joins(self) -> None:
        """Checks that a join names steps that may not run for a row."""
        steps = {step.name: step for step in self.steps}
        for refs in self._sources():
            for ref in refs if len(refs) > 1 else ():
                step = steps.get(step_of(ref))
                if step is None or step.where is None or step.for_each is not None:
                    raise ValueError(
                        f"the join {list(refs)} names '{ref}', which every row has; join steps "
                        "that have `where` and no `for_each`"
                    )

    def _check_acyclic(self) -> None:
        try:
            self._sorter().prepare()
        except CycleError as error:
            path = " -> ".join(reversed(error.args[1]))
            raise ValueError(
                f"the steps form a cycle: {path}; remove one of these inputs"
            ) from None

    def _check_used(self) -> None:
        read = self.reads()
        if idle := next((step.name for step in self.steps if step.name not in read), None):
            raise ValueError(f"no step and no output reads step '{idle}'; remove it, or use it")


def _check_source(reader: str, ref: str, steps: list[str]) -> None:
    source = step_of(ref)
    if source != INPUT and source not in steps:
        raise ValueError(
            f"{reader} reads '{ref:.200}', and there is no step '{source}'"
            f"{nearest_name(source, [INPUT, *steps])}"
        )
