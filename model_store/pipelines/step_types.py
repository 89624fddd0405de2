"""Checks the tensors between the steps of a pipeline, and derives its own signature. Pure.

In: a pipeline, and the signature of each model that it names. Out: its steps in the order of their
dependencies, and the signature that callers see; or a refusal with the names of step and tensor.

Rules: datatypes are equal; sizes are equal, or one of them is known only at run time; an input of
the pipeline has the type of the inputs that read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import ValidationError

from flambeau.protocol.signature import Labels, Signature, TensorSpec
from flambeau.protocol.strict import explain, nearest_name
from model_store.pipelines.graph import INPUT, Pipeline, Step, refs_of, step_of

COUNTS = ("INT32", "INT64")
"""Datatypes of the number of items of each row."""


class PipelineTypeError(ValueError):
    """Tensors do not fit between two steps. The message names step, tensor and both types."""


@dataclass(frozen=True, slots=True)
class TypedStep:
    """A step whose tensors fit."""

    step: Step
    signature: Signature
    """Signature of its model."""
    by_item: frozenset[str]
    """Inputs that are given item by item; the others are repeated for each item."""
    outputs: tuple[str, ...]
    """Outputs of the model that the pipeline reads, in the model's order."""


@dataclass(frozen=True, slots=True)
class TypedPipeline:
    """A pipeline whose tensors fit."""

    signature: Signature
    """The signature that callers see."""
    steps: tuple[TypedStep, ...]
    """Each after those that it reads."""


def check_types(pipeline: Pipeline, signatures: Mapping[str, Signature]) -> TypedPipeline:
    """Checks the tensors between all steps.

    Args:
        pipeline: the graph.
        signatures: signature of each model, by the text that names it: `detector@^1`.

    Raises:
        PipelineTypeError: a tensor does not exist, or does not fit where it is read.
    """
    types = _Types(pipeline, signatures)
    steps = tuple(types.typed(step) for step in pipeline.in_order())
    outputs = tuple(
        TensorSpec(name=name, datatype=found.datatype, shape=found.shape)
        for name, source in pipeline.outputs.items()
        for found in [types.joined(f"output '{name}'", refs_of(source))]
    )
    whole = [s.signature for s in steps if s.step.for_each is None]
    rows = min(s.max_batch_size for s in whole or [s.signature for s in steps])
    signature = Signature(
        inputs=tuple(types.inputs.values()),
        outputs=outputs,
        max_batch_size=rows,
        labels=types.labels(),
    )
    return TypedPipeline(signature, steps)


def are_alike(one: Signature, other: Signature) -> bool:
    """Returns True if two signatures differ in order and largest batch at most.

    A later part may take larger batches; a step runs in several if its part takes smaller ones.
    """
    return _sorted(one) == _sorted(other)


def _sorted(signature: Signature) -> Signature:
    # A stored graph has lost the order in which its tensors were written.
    tensors: dict[str, object] = {
        side: tuple(sorted(getattr(signature, side), key=lambda spec: spec.name))
        for side in ("inputs", "outputs")
    }
    return signature.model_copy(update=tensors | {"max_batch_size": 1})


class _Types:
    """The types of the tensors that are known so far."""

    def __init__(self, pipeline: Pipeline, signatures: Mapping[str, Signature]) -> None:
        self._pipeline = pipeline
        self._signatures = signatures
        self._known: dict[str, TensorSpec] = {}
        self._read = pipeline.reads()
        self.inputs: dict[str, TensorSpec] = {}
        """Inputs of the pipeline, in the order in which steps read them."""

    def typed(self, step: Step) -> TypedStep:
        """Checks the inputs of a step whose sources are known, and learns its outputs."""
        signature = self._signatures[step.model]
        if signature.sequence is not None:
            raise PipelineTypeError(
                f"step '{step.name}': {step.model} keeps state over a sequence of requests, and a "
                "pipeline's requests are independent; name a model without a sequence"
            )
        given = [s for s in signature.inputs if not s.optional or s.name in step.inputs]
        odd = next((s for s in (*given, *signature.outputs) if s.batch_axis != 0), None)
        if odd is not None:
            raise PipelineTypeError(
                f"step '{step.name}': '{odd.name}' of {step.model} has its batch in another "
                "dimension than the first, or none; a step works on rows, so name a model whose "
                "tensors are all [rows, ...]"
            )
        known = {spec.name: spec for spec in signature.inputs}
        for name in step.inputs:
            if name not in known:
                raise PipelineTypeError(
                    f"step '{step.name}': {step.model} has no input '{name}'"
                    f"{nearest_name(name, known)}"
                )
        items = self._items(step, known)
        by_item = frozenset(
            name for name, spec in known.items() if self._fits(step, spec, items is not None)
        )
        self._check_where(step, items)
        for spec in signature.outputs:
            shape = spec.shape if items is None else (-1, items, *spec.shape[1:])
            ref = f"{step.name}.{spec.name}"
            self._known[ref] = _spec(f"'{ref}'", spec.name, spec.datatype, shape)
        read = self._read.get(step.name, ())
        outputs = tuple(spec.name for spec in signature.outputs if spec.name in read)
        return TypedStep(step, signature, by_item, outputs)

    def joined(self, reader: str, refs: tuple[str, ...]) -> TensorSpec:
        """Returns the type of a tensor or of a join, whose tensors have one type."""
        found = [self._type_of(reader, ref) for ref in refs]
        for ref, other in zip(refs[1:], found[1:], strict=True):
            if (other.datatype, other.shape) != (found[0].datatype, found[0].shape):
                raise PipelineTypeError(
                    f"{reader} joins '{refs[0]}', which is {_text(found[0])}, and '{ref}', which "
                    f"is {_text(other)}; join tensors of one type"
                )
        return found[0]

    def labels(self) -> Labels:
        """Returns the class names of outputs that are outputs of a model with class names."""
        steps = {step.name: step for step in self._pipeline.steps}
        found: Labels = {}
        for name, source in self._pipeline.outputs.items():
            step, _, tensor = refs_of(source)[0].partition(".")
            if step in steps:
                labels = self._signatures[steps[step].model].labels.get(tensor)
                found |= {name: labels} if labels else {}
        return found

    def _items(self, step: Step, specs: Mapping[str, TensorSpec]) -> int | None:
        """Returns the size of the axis of items, -1 if it varies; None without `for_each`."""
        ref = step.for_each
        if ref is None:
            return None
        if step_of(ref) == INPUT and ref not in self._known:
            reader = next((n for n, s in step.inputs.items() if refs_of(s) == (ref,)), None)
            if reader is None:
                raise PipelineTypeError(
                    f"step '{step.name}': for_each is '{ref}', which no input of the step reads, "
                    "so its type is unknown; name a tensor that an input reads"
                )
            item = specs[reader]
            self._learn_input(f"step '{step.name}'", ref, item.datatype, (-1, -1, *item.shape[1:]))
        found = self._type_of(f"step '{step.name}'", ref)
        if len(found.shape) < 2:
            raise PipelineTypeError(
                f"step '{step.name}': for_each is '{ref}', which is {_text(found)}; name a tensor "
                "[rows, items, ...]"
            )
        return found.shape[1]

    def _fits(self, step: Step, spec: TensorSpec, for_each: bool) -> bool:
        """Checks one input of a model. Returns True if it is given item by item."""
        source, padding = step.inputs.get(spec.name), self._signatures[step.model].padding
        reader = f"step '{step.name}': input '{spec.name}'"
        if source is None:
            if spec.optional or (padding is not None and padding.is_optional(spec.name)):
                return False
            raise PipelineTypeError(f"{reader} of {step.model} is missing; name its tensor")
        refs = refs_of(source)
        for ref in refs:
            if step_of(ref) == INPUT and ref != step.for_each:
                self._learn_input(reader, ref, spec.datatype, spec.shape)
        found = self.joined(reader, refs)
        by_item = for_each and len(found.shape) == len(spec.shape) + 1
        shape = (-1, *found.shape[2:]) if by_item else found.shape
        if found.datatype != spec.datatype or _merged(shape, spec.shape) is None:
            each = ", of which each item" if by_item else ""
            raise PipelineTypeError(
                f"{reader} takes {_text(spec)}, and '{' or '.join(refs)}' is {_text(found)}{each}"
                f"{f' is {list(shape)}' if by_item else ''}; put a step between that converts it"
            )
        return by_item

    def _learn_input(self, reader: str, ref: str, datatype: str, shape: tuple[int, ...]) -> None:
        """Learns the type of an input of the pipeline; several readers must agree."""
        known = self._known.get(ref)
        merged = shape if known is None else _merged(known.shape, shape)
        if merged is None or (known is not None and known.datatype != datatype):
            assert known is not None
            raise PipelineTypeError(
                f"{reader} takes '{ref}' as {datatype} {list(shape)}, and another step as "
                f"{_text(known)}; give the pipeline two inputs"
            )
        name = ref.partition(".")[2]
        self._known[ref] = self.inputs[name] = _spec(reader, name, datatype, merged)

    def _check_where(self, step: Step, items: int | None) -> None:
        ref = step.where
        if ref is None:
            return
        wanted = (-1,) if items is None else (-1, items)
        if step_of(ref) == INPUT and ref not in self._known:
            self._learn_input(f"step '{step.name}'", ref, "BOOL", wanted)
        found = self._type_of(f"step '{step.name}'", ref)
        if found.datatype == "BOOL" and _merged(found.shape, wanted) is not None:
            return
        if items is not None and found.datatype in COUNTS and found.shape == (-1,):
            return
        counts = "" if items is None else f", or {' or '.join(COUNTS)} [-1], the number of items"
        raise PipelineTypeError(
            f"step '{step.name}': where is '{ref}', which is {_text(found)}; it must be BOOL "
            f"{list(wanted)}{counts}"
        )

    def _type_of(self, reader: str, ref: str) -> TensorSpec:
        found = self._known.get(ref)
        if found is None:
            source, _, tensor = ref.partition(".")
            prefix = f"{source}."
            known = [one.removeprefix(prefix) for one in self._known if one.startswith(prefix)]
            what = f"step '{source}' has no output '{tensor}'"
            if source == INPUT:
                what = f"no step reads '{ref}', so its type is unknown"
            raise PipelineTypeError(f"{reader}: {what}{nearest_name(tensor, known)}")
        return found


def _spec(where: str, name: str, datatype: str, shape: tuple[int, ...]) -> TensorSpec:
    try:
        return TensorSpec(name=name, datatype=datatype, shape=shape)
    except ValidationError as error:  # the axis of items may be one dimension too many
        raise PipelineTypeError(f"{where}: {explain(error, TensorSpec)}") from None


def _merged(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Returns the shape that fits both, sizes that vary replaced; None if there is none."""
    if len(one) != len(other) or any(
        -1 not in (a, b) and a != b for a, b in zip(one, other, strict=True)
    ):
        return None
    return tuple(b if a == -1 else a for a, b in zip(one, other, strict=True))


def _text(spec: TensorSpec) -> str:
    return f"{spec.datatype} {list(spec.shape)}"
