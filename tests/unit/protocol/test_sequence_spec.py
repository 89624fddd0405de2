"""Declarations of sequences: checked against the tensors of their model; what callers see of it."""

from typing import Any

import pytest
from pydantic import ValidationError

from flambeau.protocol.called_signature import for_callers
from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.strict import explain

STATES = {"h": "h_out", "sum": {"output": "sum_out", "initial": 7}}
CONTROLS: dict[str, Any] = {
    "start": "first", "end": {"input": "last", "false": -1, "true": 1}, "ready": "on", "id": "who",
}  # fmt: skip


def tensor(name: str, datatype: str = "FP32", *row: int, batch_axis: int | None = 0) -> TensorSpec:
    shape = [*row] if batch_axis is None else [*row[:batch_axis], -1, *row[batch_axis:]]
    return TensorSpec(name=name, datatype=datatype, shape=tuple(shape), batch_axis=batch_axis)


INPUTS = (
    tensor("x", "FP32", 4),
    tensor("h", "FP32", 2, 3, batch_axis=1),
    tensor("sum", "INT32"),
    tensor("first", "FP32", 1),
    tensor("last", "INT32", 1),
    tensor("on", "BOOL", 1),
    tensor("who", "UINT64", 1),
)
OUTPUTS = (
    tensor("y", "FP32", 2),
    tensor("h_out", "FP32", 2, 3),
    tensor("sum_out", "INT32"),
)


def declared(inputs: tuple[TensorSpec, ...] = INPUTS, rows: int = 8, **sequence: Any) -> Signature:
    return Signature.model_validate(
        {"inputs": inputs, "outputs": OUTPUTS, "max_batch_size": rows, "sequence": sequence}
    )


def test_callers_see_no_tensor_that_the_server_fills_in() -> None:
    signature = declared(states=STATES, **CONTROLS, strategy="direct", max_idle_s=5)
    seen = for_callers(signature)
    assert [spec.name for spec in seen.inputs] == ["x"]
    assert [spec.name for spec in seen.outputs] == ["y"]
    assert seen.max_batch_size == 1
    assert seen.sequence is not None
    assert (seen.sequence.strategy, seen.sequence.max_idle_s) == ("direct", 5.0)
    assert Signature.model_validate_json(seen.model_dump_json()) == seen
    assert Signature.model_validate_json(signature.model_dump_json()) == signature


def test_model_without_sequences_is_seen_whole_and_written_as_before() -> None:
    signature = Signature(inputs=INPUTS[:1], outputs=OUTPUTS[:1], max_batch_size=8)
    assert for_callers(signature) is signature
    assert "sequence" not in signature.model_dump(mode="json")


def test_model_that_keeps_its_state_itself_needs_no_tensors() -> None:
    seen = for_callers(declared(inputs=INPUTS[:1]))
    assert [spec.name for spec in seen.outputs] == ["y", "h_out", "sum_out"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"states": {"g": "h_out"}}, "names input 'g', which the model does not have"),
        ({"states": {"h": "g_out"}}, "names output 'g_out'"),
        ({"states": {"h": "sum_out"}}, "'sum_out' is INT32 [-1] after it"),
        ({"states": {"h": "h_out", "sum": "h_out"}}, "uses output 'h_out' twice"),
        ({"states": STATES, "start": "h"}, "uses input 'h' twice"),
        ({"states": {"h": {"output": "h_out", "initial": [0] * 5}}}, "5 numbers, and a row has 6"),
        ({"states": {"sum": {"output": "sum_out", "initial": 2**31}}}, "INT32 and cannot be"),
        ({"states": {"sum": {"output": "sum_out", "initial": 0.5}}}, "INT32 and cannot be 0.5"),
        ({"states": {"sum": {"output": "sum_out", "initial": [1, 2]}}}, "a row has 1"),
        ({"start": "x"}, "sequence.start is input 'x', FP32 [-1,4]"),
        ({"start": "who"}, "of BOOL, INT32, FP32"),
        ({"ready": {"input": "on", "false": 2}}, "BOOL and cannot be 2"),
        ({"id": "first"}, "of UINT64, INT64, UINT32, INT32, BYTES"),
        ({"strategy": "newest"}, "write 'oldest' or 'direct'"),
        ({"max_idle_s": 0}, "write a number above 0"),
        ({"max_sequences": 0}, "write 1 or more"),
    ],
)  # fmt: skip
def test_declaration_that_does_not_fit(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError) as raised:
        declared(**changes)
    assert said in explain(raised.value, Signature)


@pytest.mark.parametrize(
    ("inputs", "sequence", "said"),
    [
        ((tensor("x"), tensor("h", "BYTES", 2, 3)), {"states": {"h": "h_out"}}, "no fixed size"),
        ((tensor("h", "FP32", 2, 3),), {"states": {"h": "h_out"}}, "no inputs that callers send"),
        (
            (tensor("x"), tensor("h", "FP32", 2, 3, batch_axis=None)),
            {"states": {"h": "h_out"}},
            "it must have one too",
        ),
    ],
)
def test_tensors_that_are_no_state(
    inputs: tuple[TensorSpec, ...], sequence: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValidationError) as raised:
        declared(inputs, **sequence)
    assert said in explain(raised.value, Signature)


def test_state_of_many_bytes_is_refused() -> None:
    spec = tensor("h", "FP32", 2**12, 2**12 + 1)
    with pytest.raises(ValidationError, match="state of a sequence has 67125248 bytes; the limit"):
        Signature.model_validate(
            {
                "inputs": (tensor("x"), spec),
                "outputs": (tensor("y"), spec.model_copy(update={"name": "h_out"})),
                "max_batch_size": 1,
                "sequence": {"states": {"h": "h_out"}},
            }
        )
