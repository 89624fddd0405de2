"""Checks of requests against a signature, and the error messages."""

from typing import Any

import pytest
from pydantic import ValidationError

from flambeau.protocol.signature import Signature, SignatureError, TensorSpec
from flambeau.protocol.strict import explain

Given = dict[str, tuple[str, list[int]]]

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="tokens", datatype="INT64", shape=(-1, -1)),
        TensorSpec(name="mask", datatype="BOOL", shape=(-1, 4)),
    ),
    outputs=(
        TensorSpec(name="logits", datatype="FP32", shape=(-1, 10)),
        TensorSpec(name="label", datatype="BYTES", shape=(-1,)),
    ),
    max_batch_size=8,
)
GOOD: Given = {"tokens": ("INT64", [3, 7]), "mask": ("BOOL", [3, 4])}


@pytest.mark.parametrize("rows", [1, 8])
def test_fitting_inputs_give_their_rows(rows: int) -> None:
    given = {"tokens": ("INT64", [rows, 99]), "mask": ("BOOL", [rows, 4])}
    assert SIGNATURE.check_inputs(given) == rows


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokns": ("INT64", [3, 7])}, "unknown input 'tokns' (did you mean 'tokens'?)"),
        ({"x": ("INT64", [3, 7])}, "unknown input 'x' (known: mask, tokens)"),
        ({"mask": None}, "input 'mask' is missing"),
        ({"mask": ("UINT8", [3, 4])}, "input 'mask' has datatype UINT8; expected BOOL"),
        ({"mask": ("BOOL", [3, 5])}, "input 'mask' has shape [3,5]; expected [batch,4]"),
        ({"mask": ("BOOL", [3])}, "input 'mask' has shape [3]; expected [batch,4]"),
        ({"mask": ("BOOL", [3, 4, 1])}, "input 'mask' has shape [3,4,1]; expected [batch,4]"),
        ({"mask": ("BOOL", [])}, "input 'mask' has shape []; expected [batch,4]"),
        (
            {"mask": ("BOOL", [2, 4])},
            "inputs differ in batch size: {'tokens': 3, 'mask': 2}; give all the same",
        ),
        (
            {"tokens": ("INT64", [0, 7]), "mask": ("BOOL", [0, 4])},
            "the batch has 0 rows; give at least 1",
        ),
        (
            {"tokens": ("INT64", [9, 7]), "mask": ("BOOL", [9, 4])},
            "the batch has 9 rows; at most 8 fit, so split it",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_named(changes: dict[str, Any], message: str) -> None:
    given = {name: value for name, value in {**GOOD, **changes}.items() if value is not None}
    with pytest.raises(SignatureError) as refused:
        SIGNATURE.check_inputs(given)
    assert str(refused.value) == message


@pytest.mark.parametrize("names", [[], ["label"], ["label", "logits"]])
def test_known_outputs_may_be_asked_for(names: list[str]) -> None:
    SIGNATURE.check_outputs(names)


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["logit"], "unknown output 'logit' (did you mean 'logits'?)"),
        (["label", "label"], "an output is asked for twice in ['label', 'label']"),
    ],
)
def test_outputs_that_are_not_there_are_named(names: list[str], message: str) -> None:
    with pytest.raises(SignatureError) as refused:
        SIGNATURE.check_outputs(names)
    assert str(refused.value) == message


def explained(model: Any, fields: dict[str, Any]) -> str:
    with pytest.raises(ValidationError) as refused:
        model(**fields)
    return explain(refused.value, model)


@pytest.mark.parametrize("shape", [(), (1, 8), (0,), (-2, -1)])
def test_the_batch_comes_first_and_is_free(shape: tuple[int, ...]) -> None:
    message = explained(TensorSpec, {"name": "x", "datatype": "FP32", "shape": shape})
    assert "the first dimension is the batch and must be -1" in message


def test_an_unknown_datatype_is_named_with_those_known() -> None:
    message = explained(TensorSpec, {"name": "x", "datatype": "FLOAT", "shape": (-1,)})
    assert message.startswith("'datatype' is 'FLOAT': use one of BOOL, ")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"inputs": ()}, "'inputs' is ()"),
        ({"inputs": SIGNATURE.inputs * 2}, "a tensor name occurs twice in"),
        ({"outputs": SIGNATURE.outputs * 2}, "a tensor name occurs twice in"),
        ({"max_batch_size": 0}, "'max_batch_size' is 0"),
        ({"max_batch": 8}, "unknown key 'max_batch' (did you mean 'max_batch_size'?)"),
    ],
)
def test_a_signature_that_breaks_its_rules(changes: dict[str, Any], message: str) -> None:
    fields = {**dict(SIGNATURE), **changes}
    assert message in explained(Signature, fields)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ({"logit": ("a", "b")}, "labels names output 'logit', which the model does not have"),
        ({"logits": ("a", "b")}, "labels has 2 names for output 'logits', whose last axis has 3"),
    ],
)
def test_every_class_has_a_name_or_none_has(
    labels: dict[str, tuple[str, ...]], message: str
) -> None:
    document = {
        "inputs": ({"name": "x", "datatype": "FP32", "shape": (-1, 4)},),
        "outputs": ({"name": "logits", "datatype": "FP32", "shape": (-1, 3)},),
        "max_batch_size": 4,
    }
    found = Signature.model_validate({**document, "labels": {"logits": ("a", "b", "c")}})
    assert Signature.model_validate_json(found.model_dump_json()) == found
    assert "labels" not in Signature.model_validate(document).model_dump()
    with pytest.raises(ValidationError, match=message):
        Signature.model_validate({**document, "labels": labels})
