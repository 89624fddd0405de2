"""Gates as users write them, and as manifests have them."""

from typing import Any

import pytest
from pydantic import ValidationError

from flambeau.protocol.signature import TensorSpec
from model_store.gate_figures import GateValues, agreement_of, shares_text, worst_values
from model_store.gates import Gate, GateError, OwnGate, parse_gates
from model_store.tolerance import Tolerance

OUTPUTS = (
    TensorSpec(name="logits", datatype="FP32", shape=(-1, 3)),
    TensorSpec(name="text", datatype="BYTES", shape=(-1,)),
)


def test_a_gate_for_each_output_or_one_for_all_that_it_fits() -> None:
    told = {"logits": {"top1": 0.99}, "text": {"edit_distance": 0.1}}
    assert parse_gates(told, OUTPUTS) == {
        "logits": Gate(top1=0.99), "text": Gate(edit_distance=0.1),
    }  # fmt: skip
    assert parse_gates({"top1": 0.9}, OUTPUTS) == {"logits": Gate(top1=0.9)}
    assert parse_gates({"exact": True}, OUTPUTS) == {
        "logits": Gate(exact=1.0), "text": Gate(exact=1.0),
    }  # fmt: skip
    assert parse_gates(None, OUTPUTS) == parse_gates({}, OUTPUTS) == {}
    assert parse_gates(Gate(top1=1.0), OUTPUTS) == {"logits": Gate(top1=1.0)}


def test_a_function_is_named_by_its_location() -> None:
    own = OwnGate(function="gates.py:agree")
    assert parse_gates("gates.py:agree", OUTPUTS) == {"logits": own, "text": own}
    told = {"text": {"function": "gates.py:agree", "min": 0.5}}
    assert parse_gates(told, OUTPUTS) == {"text": OwnGate(function="gates.py:agree", min=0.5)}


@pytest.mark.parametrize(
    ("told", "words"),
    [
        ({"logit": {"top1": 1}}, "gates names 'logit'.*did you mean 'logits'"),
        ({"topp1": 0.9}, "gates names 'topp1'.*did you mean 'top1'"),
        ({"text": {"top1": 1}}, "top1 is for numbers, and output 'text' is text"),
        ({"logits": {"function": 3}}, "'function' is 3: write text"),
        ({"logits": {"function": "a" * 600}}, "write at most 512 characters"),
        ({"logits": {"absolute": -1}}, "write 0 or more"),
        ({"logits": {"axis": 1}}, "judges nothing"),
        ({"logits": {"axis": 99, "top1": 1}}, "write 15 or less"),
        ({"edit_distance": 0.1, "top1": 0.1}, "edit_distance is for text, and output 'logits'"),
        ([1], "gates is a list"),
    ],
)
def test_what_is_wrong_is_told(told: Any, words: str) -> None:
    with pytest.raises(GateError, match=words):
        parse_gates(told, OUTPUTS)


def test_a_tolerance_without_gates_reads_as_it_always_did() -> None:
    plain = {"max_abs_difference": 0.1, "min_agreement": 0.9, "max_probability_shift": 1.0}
    assert Tolerance.model_validate(plain).model_dump(mode="json") == plain
    gated = Tolerance.model_validate({**plain, "gates": {"boxes": {"iou": 0.9}}})
    assert gated.model_dump(mode="json") == {**plain, "gates": {"boxes": {"iou": 0.9}}}
    assert Tolerance.model_validate_json(gated.model_dump_json()) == gated


@pytest.mark.parametrize(
    "gate",
    [
        {},
        {"top1": "NaN"},
        {"top1": 1.5},
        {"top1": [0.5]},
        {"absolute": 1e400},
        {"axis": 10**9, "top1": 0.5},
        {"function": "os:system"},
        {"pickle": "gASVEw=="},
        None,
        "os:system",
    ],
)
def test_a_manifest_may_not_hold_other_gates(gate: Any) -> None:
    limits = {"max_abs_difference": 0.1, "min_agreement": 0.9}
    with pytest.raises(ValidationError):
        Tolerance.model_validate({**limits, "gates": {"logits": gate}})


def test_the_worst_values_of_all_outputs() -> None:
    one: GateValues = {"a": {"top1": 0.9, "absolute": 0.1}, "b": {"cosine": 0.5}}
    other: GateValues = {"a": {"top1": 1.0, "absolute": 0.3}, "b": {"cosine": None}}
    assert worst_values([one, other]) == {
        "a": {"top1": 0.9, "absolute": 0.3}, "b": {"cosine": None},
    }  # fmt: skip
    assert agreement_of(one) == 0.9
    assert agreement_of({}) == agreement_of({"b": {"cosine": 0.5}}) == 1
    assert agreement_of({"a": {"top1": None}}) == 0
    assert shares_text(one) == "top1 0.9000, cosine 0.5000"
