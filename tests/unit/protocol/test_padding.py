"""Padding: requests of different lengths that may share a batch, and the rules of a signature."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from flambeau.protocol.signature import Padding, Signature, SignatureError, TensorSpec
from flambeau.protocol.strict import explain

Given = dict[str, tuple[str, list[int]]]

SPECS = {
    "tokens": TensorSpec(name="tokens", datatype="INT64", shape=(-1, -1)),
    "features": TensorSpec(name="features", datatype="FP16", shape=(-1, 3, -1)),
    "mask": TensorSpec(name="mask", datatype="BOOL", shape=(-1, -1)),
    "count": TensorSpec(name="count", datatype="INT32", shape=(-1,)),
    "scale": TensorSpec(name="scale", datatype="FP32", shape=(-1, 4)),
}
FIELDS: dict[str, Any] = {
    "inputs": {"tokens": 1, "features": 2},
    "outputs": {"labels": 1},
    "buckets": [4, 16],
    "values": {"tokens": -1},
    "mask": "mask",
    "lengths": "count",
}
SIGNATURE = Signature(
    inputs=tuple(SPECS.values()),
    outputs=(
        TensorSpec(name="labels", datatype="FP32", shape=(-1, -1, 5)),
        TensorSpec(name="logits", datatype="FP32", shape=(-1, 10)),
    ),
    max_batch_size=8,
    padding=Padding.model_validate(FIELDS),
)


def request(length: int = 7, **changes: tuple[str, list[int]] | None) -> Given:
    """Three rows with everything in them; None leaves a tensor out."""
    everything: dict[str, tuple[str, list[int]] | None] = {
        "tokens": ("INT64", [3, length]),
        "features": ("FP16", [3, 3, length]),
        "mask": ("BOOL", [3, length]),
        "count": ("INT32", [3]),
        "scale": ("FP32", [3, 4]),
        **changes,
    }
    return {name: tensor for name, tensor in everything.items() if tensor is not None}


def shapes(tensors: Given) -> dict[str, list[int]]:
    return {name: shape for name, (_, shape) in tensors.items()}


def refusal(tensors: Given) -> str:
    with pytest.raises(SignatureError) as refused:
        SIGNATURE.check_inputs(tensors)
    return str(refused.value)


def explained(**changes: Any) -> str:
    """Returns the error of a signature with these padding fields."""
    document = SIGNATURE.model_dump()
    document["padding"] = {**FIELDS, **changes}
    with pytest.raises(ValidationError) as refused:
        Signature.model_validate(document)
    return explain(refused.value, Signature)


@pytest.mark.parametrize("length", [1, 4, 5, 16])
def test_every_length_that_a_bucket_holds_is_let_through(length: int) -> None:
    tensors = request(length)
    assert SIGNATURE.check_inputs(tensors) == 3
    assert SIGNATURE.length_of(shapes(tensors)) == length


@pytest.mark.parametrize("absent", [{"mask"}, {"count"}, {"mask", "count"}])
def test_a_request_may_leave_out_what_the_server_can_write(absent: set[str]) -> None:
    tensors = {name: tensor for name, tensor in request().items() if name not in absent}
    assert SIGNATURE.check_inputs(tensors) == 3
    assert SIGNATURE.length_of(shapes(tensors)) == 7


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        (request(tokens=None), "input 'tokens' is missing"),
        (request(scale=None), "input 'scale' is missing"),
        (request(17), "the inputs have length 17; at most 16 fit, so shorten them"),
        (request(0), "the inputs have length 0; give at least 1"),
        (
            request(features=("FP16", [3, 3, 8])),
            "inputs differ in length: {'tokens': 7, 'features': 8, 'mask': 7}; give all the same",
        ),
        (
            request(mask=("BOOL", [3, 6])),
            "inputs differ in length: {'tokens': 7, 'features': 7, 'mask': 6}; give all the same",
        ),
        (
            request(mask=("BOOL", [2, 7])),
            "inputs differ in batch size: {'tokens': 3, 'features': 3, 'mask': 2, 'count': 3, "
            "'scale': 3}; give all the same",
        ),
        (request(mask=("INT64", [3, 7])), "input 'mask' has datatype INT64; expected BOOL"),
        (request(count=("INT32", [3, 1])), "input 'count' has shape [3,1]; expected [batch]"),
    ],
)
def test_a_request_that_does_not_fit_is_named(tensors: Given, message: str) -> None:
    assert refusal(tensors) == message


def test_a_model_without_padding_has_no_length_and_nothing_optional() -> None:
    plain = SIGNATURE.model_copy(update={"padding": None})
    assert plain.length_of(shapes(request())) is None
    assert plain.check_inputs(request(99)) == 3
    with pytest.raises(SignatureError, match="input 'mask' is missing"):
        plain.check_inputs(request(mask=None))


lengths = st.lists(st.integers(1, 300), min_size=1, max_size=6, unique=True).map(sorted)


@given(buckets=lengths, length=st.integers(-1, 320))
def test_a_bucket_is_the_smallest_that_holds_the_length(buckets: list[int], length: int) -> None:
    padding = Padding(inputs={"tokens": 1}, buckets=tuple(buckets))
    if 1 <= length <= buckets[-1]:
        assert padding.bucket_of(length) == min(b for b in buckets if b >= length)
    else:
        with pytest.raises(SignatureError, match=f"have length {length};"):
            padding.bucket_of(length)


@given(first=st.integers(1, 20), second=st.integers(1, 20))
def test_lengths_that_differ_never_pass_and_equal_ones_do(first: int, second: int) -> None:
    tensors = request(first, features=("FP16", [3, 3, second]))
    if first == second <= 16:
        assert SIGNATURE.check_inputs(tensors) == 3
    else:
        assert refusal(tensors)


def test_which_axis_holds_the_length() -> None:
    assert SIGNATURE.padding is not None
    axes = {name: SIGNATURE.padding.axis_of(name) for name in SPECS}
    assert axes == {"tokens": 1, "features": 2, "mask": 1, "count": None, "scale": None}
    optional = [name for name in SPECS if SIGNATURE.padding.is_optional(name)]
    assert optional == ["mask", "count"]


@pytest.mark.parametrize("name", ["mask", "count"])
def test_without_a_mask_or_lengths_nothing_is_optional(name: str) -> None:
    padding = Padding(inputs={"tokens": 1}, buckets=(16,))
    assert not padding.is_optional(name)
    assert padding.axis_of(name) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"buckets": []}, "'padding.buckets' is []"),
        ({"buckets": [0, 4]}, "each larger than the one before"),
        ({"buckets": [4, 4]}, "each larger than the one before"),
        ({"buckets": [8, 4]}, "each larger than the one before"),
        ({"bucket": [8]}, "unknown key 'bucket' in 'padding' (did you mean 'buckets'?)"),
        ({"inputs": {}}, "'padding.inputs' is {}"),
        ({"inputs": {"tokens": 0}}, "'padding.inputs.tokens' is 0"),
        ({"inputs": {"tokens": 1, "mask": 1}}, "'mask' is both in inputs and the mask"),
        ({"inputs": {"tokens": 1, "count": 1}}, "'count' is both in inputs and the lengths"),
        ({"lengths": "mask"}, "'mask' is both mask and lengths"),
        ({"values": {"token": 3}}, "'token', which is not padded (did you mean 'tokens'?)"),
        ({"values": {"tokens": float("nan")}}, "'padding.values.tokens' is nan"),
        (
            {"inputs": {"token": 1}, "values": {}},
            "padding names input 'token', which the model does not have (did you mean 'tokens'?)",
        ),
        (
            {"outputs": {"label": 1}},
            "padding names output 'label', which the model does not have (did you mean 'labels'?)",
        ),
        (
            {"inputs": {"tokens": 2}},
            "axis 2 of input 'tokens' holds the length, and its shape is [-1,-1]",
        ),
        (
            {"inputs": {"tokens": 1, "features": 1}},
            "axis 1 of input 'features' holds the length, and its shape is [-1,3,-1]; "
            "name an axis that is -1",
        ),
        ({"outputs": {"logits": 1}}, "axis 1 of output 'logits' holds the length"),
        ({"mask": "masks"}, "padding.mask is 'masks', which is no input (did you mean 'mask'?)"),
        ({"mask": "scale"}, "padding.mask is 'scale' of shape [-1,4]; it must be [-1,-1]"),
        ({"lengths": "counts"}, "'counts', which is no input (did you mean 'count'?)"),
        ({"lengths": "scale"}, "padding.lengths is 'scale' of shape [-1,4]; it must be [-1]"),
        ({"values": {"tokens": 0.5}}, "input 'tokens' is INT64 and cannot be padded with 0.5"),
        ({"values": {"tokens": 1e30}}, "input 'tokens' is INT64 and cannot be padded with 1e+30"),
        ({"values": {"features": 1e6}}, "input 'features' is FP16 and cannot be padded with 1e+06"),
    ],
)
def test_a_padding_that_breaks_its_rules_is_named(changes: dict[str, Any], message: str) -> None:
    assert message in explained(**changes)


@pytest.mark.parametrize(
    ("datatype", "padding", "message"),
    [
        ("BYTES", {"inputs": {"x": 1}}, "input 'x' is BYTES, which cannot be padded"),
        ("BF16", {"inputs": {"x": 1}}, "input 'x' is BF16, which cannot be padded"),
        ("BYTES", {"mask": "x"}, "padding.mask is 'x' of datatype BYTES; use one of BOOL, "),
        ("BOOL", {"inputs": {"x": 1}, "values": {"x": 2}}, "is BOOL and cannot be padded with 2"),
        ("UINT8", {"inputs": {"x": 1}, "values": {"x": -1}}, "UINT8 and cannot be padded with -1"),
    ],
)
def test_datatypes_that_cannot_be_what_the_padding_says(
    datatype: str, padding: dict[str, Any], message: str
) -> None:
    document = SIGNATURE.model_dump()
    document["inputs"] = [
        *document["inputs"],
        {"name": "x", "datatype": datatype, "shape": [-1, -1]},
    ]
    document["padding"] = {"inputs": {"tokens": 1}, "buckets": [4], **padding}
    with pytest.raises(ValidationError) as refused:
        Signature.model_validate(document)
    assert message in explain(refused.value, Signature)


@pytest.mark.parametrize("datatype", ["FP32", "INT8", "UINT32"])
def test_lengths_are_integers_of_some_size(datatype: str) -> None:
    document = SIGNATURE.model_dump(mode="json")
    document["inputs"][3] = {"name": "count", "datatype": datatype, "shape": [-1]}
    with pytest.raises(ValidationError) as refused:
        Signature.model_validate(document)
    message = f"padding.lengths is 'count' of datatype {datatype}; use one of INT32, INT64"
    assert message in explain(refused.value, Signature)


def test_a_signature_reads_back_from_what_it_writes() -> None:
    assert Signature.model_validate_json(SIGNATURE.model_dump_json()) == SIGNATURE
