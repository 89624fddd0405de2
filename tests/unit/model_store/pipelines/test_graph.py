"""Graphs of pipelines: what is a graph, and which types its tensors have."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flambeau.protocol.signature import Padding, Signature, TensorSpec
from flambeau.protocol.strict import explain
from flambeau.protocol.tensor_spec import MAX_RANK
from model_store.pipelines.graph import (
    MAX_STEPS,
    MAX_TENSORS,
    Pipeline,
    parse_part,
    refs_of,
    step_of,
)
from model_store.pipelines.step_types import PipelineTypeError, are_alike, check_types
from tests.fixtures.signatures import one_to_one


def step(name: str, *reads: str | list[str], **fields: Any) -> dict[str, Any]:
    """Returns a step of the model `m`, whose input `x` is the first tensor, `x1` the second."""
    inputs = {f"x{number or ''}": ref for number, ref in enumerate(reads)}
    return {"name": name, "model": "m@^1", "inputs": inputs, **fields}


def graph(*steps: dict[str, Any], **outputs: Any) -> Pipeline:
    return Pipeline.model_validate({"steps": steps, "outputs": outputs})


def refusal(*steps: dict[str, Any], **outputs: Any) -> str:
    """Returns the message with which a graph is refused."""
    with pytest.raises(ValidationError) as caught:
        graph(*steps, **outputs)
    return explain(caught.value, Pipeline)


def test_steps_come_after_those_that_they_read() -> None:
    found = graph(step("c", "b.y"), step("a", "input.x"), step("b", "a.y"), y="c.y")
    assert [one.name for one in found.in_order()] == ["a", "b", "c"]
    assert found.models() == ("m@^1",)


@pytest.mark.parametrize(
    ("steps", "outputs", "words"),
    [
        ([step("a", "a.y")], {"y": "a.y"}, "the steps form a cycle: a -> a"),
        ([step("a", "b.y"), step("b", "a.y")], {"y": "a.y"}, "the steps form a cycle: "),
        ([step("a", "input.x"), step("a", "input.x")], {"y": "a.y"}, "two steps are named 'a'"),
        (
            [step("a", "detct.y"), step("detect", "input.x")],
            {"y": "a.y"},
            "step 'a' reads 'detct.y', and there is no step 'detct' (did you mean 'detect'?)",
        ),
        ([step("a", "input.x")], {"y": "b.y"}, "output 'y' reads 'b.y', and there is no step 'b'"),
        (
            [step("a", "input.x"), step("idle", "input.x")],
            {"y": "a.y"},
            "no step and no output reads step 'idle'",
        ),
        ([step("input", "input.x")], {"y": "input.x"}, "'input' names the tensors of the request"),
        ([step("a", "input.x") | {"model": "m"}], {"y": "a.y"}, "as in detector@^1"),
        ([step("a", "input.x") | {"model": "m@production"}], {"y": "a.y"}, "an alias may move"),
        ([step("a", "x")], {"y": "a.y"}, "STEP.OUTPUT or input.NAME"),
        ([step("a b", "input.x")], {"y": "a b.y"}, "letters, digits"),
        ([], {"y": "input.x"}, "at least 1"),
        ([step("a", "input.x")], {}, "at least 1"),
        (
            [step("a", "input.x"), step("b", "input.x")],
            {"y": ["a.y", "b.y"]},
            "join steps that have `where`",
        ),
        ([step("a", ["input.x", "input.z"])], {"y": "a.y"}, "join steps that have `where`"),
    ],
)
def test_what_is_no_graph_is_refused(
    steps: list[dict[str, Any]], outputs: dict[str, Any], words: str
) -> None:
    assert words in refusal(*steps, **outputs)


def test_a_graph_reads_a_limited_number_of_tensors() -> None:
    steps = [step("a", "input.x", where="input.w")]
    join = [f"a.y{number}" for number in range(MAX_TENSORS)]
    steps += [step(f"b{number}", *[join] * 33) for number in range(2)]
    assert "it reads 4,227 tensors, and 4,096 are allowed" in refusal(*steps, y="b0.y", z="b1.y")
    steps[2] = step("b1", *[join] * 30)
    graph(*steps, y="b0.y", z="b1.y")


def test_a_pipeline_is_not_deeper_than_its_limit() -> None:
    def chain(length: int) -> list[dict[str, Any]]:
        names = ["input.x", *(f"s{number}.y" for number in range(length))]
        return [step(f"s{number}", names[number]) for number in range(length)]

    graph(*chain(MAX_STEPS), y=f"s{MAX_STEPS - 1}.y")
    assert "at most 32" in refusal(*chain(MAX_STEPS + 1), y=f"s{MAX_STEPS}.y")


@given(st.lists(st.lists(st.integers(0, 11), max_size=3), min_size=1, max_size=12))
def test_a_graph_is_accepted_if_and_only_if_its_steps_can_be_ordered(
    reads: list[list[int]],
) -> None:
    reads = [[other for other in found if other < len(reads)] for found in reads]
    steps = [
        step(f"s{number}", "input.x", *(f"s{other}.y" for other in found))
        for number, found in enumerate(reads)
    ]
    outputs = {f"y{number}": f"s{number}.y" for number in range(len(reads))}
    done: set[int] = set()
    while ready := {n for n, found in enumerate(reads) if n not in done and set(found) <= done}:
        done |= ready
    if len(done) < len(reads):
        assert "the steps form a cycle" in refusal(*steps, **outputs)
        return
    seen: set[str] = set()
    for one in graph(*steps, **outputs).in_order():
        assert {step_of(ref) for ref in one.refs()} - {"input"} <= seen
        seen.add(one.name)


@pytest.mark.parametrize(
    ("text", "version", "semver", "fits"),
    [
        ("m@^1", 7, "1.9.0", True),
        ("m@^1", 7, "2.0.0", False),
        ("m@~1.4", 7, "1.4.9", True),
        ("m@~1.4", 7, "1.5.0", False),
        ("m@1.2.3", 7, "1.2.3", True),
        ("m@7", 7, "9.0.0", True),
        ("m@7", 8, "7.0.0", False),
        ("m@^1", 7, "", False),
    ],
)
def test_a_part_fits_by_its_range_or_its_number(
    text: str, version: int, semver: str, fits: bool
) -> None:
    part = parse_part(text)
    assert (part.model, part.text) == ("m", text)
    assert part.fits(version, semver) is fits


@pytest.mark.parametrize(
    "text", ["m", "m@", "@^1", "m@0", "m@production", "m@^1 ", "m@1.2", "m@-1"]
)
def test_what_may_move_to_another_signature_is_no_part(text: str) -> None:
    with pytest.raises(ValueError, match=r"detector@\^1"):
        parse_part(text)


def tensor(name: str, *shape: int, datatype: str = "FP32") -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=(-1, *shape))


FIND = Signature(
    inputs=(tensor("image", 8, 8),),
    outputs=(
        tensor("crops", 4, 3, 3),
        tensor("found", 4, datatype="BOOL"),
        tensor("count", datatype="INT64"),
        tensor("is_day", datatype="BOOL"),
    ),
    max_batch_size=8,
)
READ = Signature(
    inputs=(tensor("crop", 3, 3), tensor("image", 8, 8)),
    outputs=(tensor("classes", 2),),
    max_batch_size=64,
    labels={"classes": ("no", "yes")},
)
SIGNATURES = {"find@^1": FIND, "read@^1": READ}
FIND_STEP = {"name": "find", "model": "find@^1", "inputs": {"image": "input.image"}}


def read_step(**fields: Any) -> dict[str, Any]:
    inputs = {"crop": "find.crops", "image": "input.image"}
    found = {"name": "read", "model": "read@^1", "inputs": inputs, "for_each": "find.crops"}
    return {key: value for key, value in {**found, **fields}.items() if value is not None}


def test_items_add_an_axis_to_the_outputs_and_repeat_the_other_inputs() -> None:
    found = check_types(graph(FIND_STEP, read_step(), classes="read.classes"), SIGNATURES)
    assert found.signature.inputs == (tensor("image", 8, 8),)
    assert found.signature.outputs == (tensor("classes", 4, 2),)
    assert found.signature.labels == {"classes": ("no", "yes")}
    assert found.signature.max_batch_size == 8  # of the steps for whole rows
    assert [one.by_item for one in found.steps] == [frozenset(), {"crop"}]
    assert [one.outputs for one in found.steps] == [("crops",), ("classes",)]


@pytest.mark.parametrize("where", ["find.found", "find.count", "input.wanted", None])
def test_items_are_selected_by_marks_or_by_their_number(where: str | None) -> None:
    check_types(graph(FIND_STEP, read_step(where=where), y="read.classes"), SIGNATURES)


@pytest.mark.parametrize(
    ("fields", "outputs", "words"),
    [
        (
            {"for_each": None},
            {"y": "read.classes"},
            "step 'read': input 'crop' takes FP32 [-1, 3, 3], and 'find.crops' is FP32 "
            "[-1, 4, 3, 3]; put a step between",
        ),
        (
            {"inputs": {"crop": "find.found", "image": "input.image"}},
            {"y": "read.classes"},
            "'find.found' is BOOL [-1, 4]",
        ),
        ({"inputs": {"crop": "find.crops"}}, {"y": "read.classes"}, "input 'image' of read@^1 is "),
        (
            {"inputs": {"crop": "find.crops", "imag": "input.image"}},
            {"y": "read.classes"},
            "read@^1 has no input 'imag' (did you mean 'image'?)",
        ),
        ({"for_each": "find.count"}, {"y": "read.classes"}, "name a tensor [rows, items, ...]"),
        ({"where": "find.crops"}, {"y": "read.classes"}, "it must be BOOL [-1, 4], or INT32 or "),
        ({"where": "find.is_day"}, {"y": "read.classes"}, "it must be BOOL [-1, 4]"),
        ({}, {"y": "read.clases"}, "step 'read' has no output 'clases' (did you mean 'classes'?)"),
        ({}, {"y": "read.classes", "z": "input.other"}, "no step reads 'input.other'"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_with_their_step(
    fields: dict[str, Any], outputs: dict[str, Any], words: str
) -> None:
    with pytest.raises(PipelineTypeError) as caught:
        check_types(graph(FIND_STEP, read_step(**fields), **outputs), SIGNATURES)
    assert words in str(caught.value)


@pytest.mark.parametrize("ref", ["input.x", "first.y"])
def test_the_axis_of_items_is_within_the_rank_of_a_tensor(ref: str) -> None:
    flat, deep = [1] * (MAX_RANK - 2), [1] * (MAX_RANK - 1)
    item = deep if ref == "input.x" else flat
    first, each = (
        Signature(inputs=(tensor("x", *x),), outputs=(tensor("y", *deep),), max_batch_size=4)
        for x in (deep, item)
    )
    steps = [{"name": "first", "model": "a@^1", "inputs": {"x": "input.z"}}]
    steps += [{"name": "each", "model": "b@^1", "for_each": ref, "inputs": {"x": ref}}]
    pipeline = graph(*steps, y="each.y", z="first.y")
    with pytest.raises(PipelineTypeError, match=f"at most {MAX_RANK} of them"):
        check_types(pipeline, {"a@^1": first, "b@^1": each})


def test_an_input_has_the_type_of_all_its_readers() -> None:
    signatures = {"a@1": one_to_one((-1, 3)), "b@1": one_to_one((8, -1)), "c@1": one_to_one((9, 3))}
    steps = [step(name, "input.x") | {"model": f"{name}@1"} for name in "abc"]
    found = check_types(graph(*steps[:2], y="a.y", z="b.y"), signatures)
    assert found.signature.inputs == (tensor("x", 8, 3),)
    with pytest.raises(PipelineTypeError, match=r"step 'c'.*give the pipeline two inputs"):
        check_types(graph(*steps, y="a.y", z="b.y", w="c.y"), signatures)


def test_items_of_the_request_itself_are_an_input_of_any_number() -> None:
    found = check_types(
        graph(step("a", "input.x", for_each="input.x"), y="a.y"), {"m@^1": one_to_one((3,))}
    )
    assert found.signature.inputs == (tensor("x", -1, 3),)
    assert found.signature.outputs == (tensor("y", -1, 3),)


def test_joined_tensors_have_one_type() -> None:
    def joined(other: Signature) -> Signature:
        steps = [
            step("a", "input.x", where="input.is_a") | {"model": "a@1"},
            step("b", "input.x", where="input.is_b") | {"model": "b@1"},
        ]
        pipeline = graph(*steps, y=["a.y", "b.y"])
        return check_types(pipeline, {"a@1": one_to_one((3,)), "b@1": other}).signature

    assert joined(one_to_one((3,))).outputs == (tensor("y", 3),)
    with pytest.raises(PipelineTypeError, match="join tensors of one type"):
        joined(one_to_one((3,), (4,)))


def test_the_mask_of_a_padded_model_may_be_left_out() -> None:
    padded = Signature(
        inputs=(tensor("x", -1), tensor("mask", -1, datatype="BOOL")),
        outputs=(tensor("y", 2),),
        max_batch_size=4,
        padding=Padding(inputs={"x": 1}, buckets=(8,), mask="mask"),
    )
    check_types(graph(step("a", "input.x"), y="a.y"), {"m@^1": padded})


@pytest.mark.parametrize("batch_axis", [None, 1])
def test_a_model_whose_tensors_are_not_rows_is_no_step(batch_axis: int | None) -> None:
    odd = TensorSpec(name="z", datatype="FP32", shape=(-1, -1), batch_axis=batch_axis)
    signature = Signature(inputs=(tensor("x", 1), odd), outputs=(tensor("y", 1),), max_batch_size=4)
    with pytest.raises(PipelineTypeError, match=r"step .a.: .z. of m@.*a step works on rows"):
        check_types(graph(step("a", "input.x"), y="a.y"), {"m@^1": signature})


def test_an_optional_input_may_be_left_out_or_be_rows() -> None:
    inputs = [tensor("x", 1), tensor("z", 1).model_copy(update={"optional": True})]
    signature = Signature(inputs=tuple(inputs), outputs=(tensor("y", 1),), max_batch_size=4)
    found = check_types(graph(step("a", "input.x"), y="a.y"), {"m@^1": signature})
    assert [spec.name for spec in found.signature.inputs] == ["x"]
    both = step("a") | {"inputs": {"x": "input.x", "z": "input.z"}}
    assert len(check_types(graph(both, y="a.y"), {"m@^1": signature}).signature.inputs) == 2
    shared = inputs[1].model_copy(update={"batch_axis": None})
    signature = Signature(inputs=(inputs[0], shared), outputs=signature.outputs, max_batch_size=4)
    check_types(graph(step("a", "input.x"), y="a.y"), {"m@^1": signature})
    with pytest.raises(PipelineTypeError, match="'z' of m@"):
        check_types(graph(both, y="a.y"), {"m@^1": signature})


def test_signatures_are_alike_whatever_the_order_of_their_tensors() -> None:
    one = Signature(
        inputs=(tensor("x", 1), tensor("z", 2)), outputs=(tensor("y"),), max_batch_size=4
    )
    assert are_alike(one, one.model_copy(update={"inputs": one.inputs[::-1]}))
    assert are_alike(one, one.model_copy(update={"max_batch_size": 5}))
    assert not are_alike(one, one.model_copy(update={"outputs": (tensor("z"),)}))


def test_a_source_is_one_tensor_or_several() -> None:
    assert refs_of("a.y") == ("a.y",)
    assert refs_of(("a.y", "b.y")) == ("a.y", "b.y")
    assert step_of("a.y.z") == "a"
