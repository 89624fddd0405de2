"""Signatures whose batch is another axis than the first, or none, and optional inputs."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from flambeau.protocol.signature import Padding, Signature, SignatureError, TensorSpec
from flambeau.protocol.strict import explain
from tests.fixtures.shaped_models import BIASED, SCALED, STATEFUL, WHOLE, spec
from tests.fixtures.signatures import one_to_one


def test_usual_signatures_serialize_as_before() -> None:
    text = one_to_one((3,)).model_dump_json()
    assert "batch_axis" not in text
    assert "optional" not in text


@pytest.mark.parametrize("signature", [SCALED, STATEFUL, WHOLE, BIASED])
def test_others_come_back_from_json(signature: Signature) -> None:
    assert Signature.model_validate(json.loads(signature.model_dump_json())) == signature


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"shape": []}, "write batch_axis: null for a tensor without a batch"),
        ({"shape": [-1, 2], "batch_axis": 1}, "dimension 1 is the batch and must be -1"),
        ({"shape": [-1], "batch_axis": 1}, "dimension 1 is the batch"),
        ({"shape": [-1], "batch_axis": -1}, "batch_axis"),
        ({"shape": [-1], "batch_axis": 2**63}, "batch_axis"),
        ({"shape": [-1], "batch_axis": True}, "batch_axis"),
        ({"shape": [-1, -2]}, "write -1 for a dimension that varies"),
        ({"shape": [-2], "batch_axis": None}, "write -1 for a dimension that varies"),
        ({"shape": [-1] * 33}, "shape"),
        ({"shape": [-1], "optional": "perhaps"}, "optional"),
    ],
)
def test_what_is_no_shape_is_refused(fields: dict[str, Any], message: str) -> None:
    document = {"name": "x", "datatype": "FP32", **fields}
    with pytest.raises(ValidationError) as caught:
        TensorSpec.model_validate(document)
    assert message in explain(caught.value, TensorSpec)


X, Y = spec("x", "FP32", -1), spec("y", "FP32", -1)
SCALAR = spec("s", "FP32", batch=None)


@pytest.mark.parametrize(
    ("inputs", "outputs", "fields", "message"),
    [
        ([X], [Y.model_copy(update={"optional": True})], {}, "output 'y' is optional"),
        ([spec("x", "FP32", -1, optional=True)], [Y], {}, "every input is optional"),
        (
            [spec("x", "FP32", -1, optional=True), SCALAR],
            [Y],
            {},
            "every input with a batch is optional",
        ),
        ([SCALAR], [SCALAR], {"max_batch_size": 2}, "max_batch_size is 2, and no input has a"),
        ([SCALAR], [Y], {"max_batch_size": 1}, "output 'y' has a batch axis and no input has"),
        (
            [spec("x", "FP32", -1, -1), SCALAR],
            [Y],
            {"padding": Padding(inputs={"x": 1}, buckets=(4,))},
            "padding needs tensors whose batch is the first dimension",
        ),
        (
            [spec("x", "FP32", 2, -1, batch=1)],
            [Y],
            {"dynamic": {"x": {1: [1, 4]}}},
            "axis 1 of input 'x' varies, and it is the batch",
        ),
        ([X], [Y], {"dynamic": {"x": {0: [1, 4]}}}, "axis 0 of input 'x' varies, and it is the"),
        (
            [X, SCALAR],
            [Y],
            {"dynamic": {"s": {0: [1, 4]}}},
            "its shape is []; name an axis that is -1",
        ),
        ([X], [Y, SCALAR], {"labels": {"s": ["a"]}}, "whose last axis has no fixed size"),
    ],
)
def test_what_does_not_go_together_is_refused(
    inputs: list[TensorSpec], outputs: list[TensorSpec], fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        Signature(inputs=tuple(inputs), outputs=tuple(outputs), **{"max_batch_size": 4, **fields})
    assert message in explain(caught.value, Signature)


@pytest.mark.parametrize(
    ("signature", "given", "rows"),
    [
        (SCALED, {"x": (3, 4), "factor": ()}, 3),
        (WHOLE, {"matrix": (7, 3), "scale": ()}, 1),
        (WHOLE, {"matrix": (0, 3), "scale": ()}, 1),
        (STATEFUL, {"sound": (5, 9), "state": (2, 5, 3), "rate": ()}, 5),
        (BIASED, {"x": (2, 3)}, 2),
        (BIASED, {"x": (2, 3), "bias": (3,)}, 2),
    ],
)
def test_rows_are_counted_along_the_batch_axis(
    signature: Signature, given: dict[str, tuple[int, ...]], rows: int
) -> None:
    datatypes = {one.name: one.datatype for one in signature.inputs}
    assert signature.check_inputs({n: (datatypes[n], s) for n, s in given.items()}) == rows


@pytest.mark.parametrize(
    ("signature", "given", "message"),
    [
        (SCALED, {"x": (3, 4), "factor": (1,)}, r"has shape \[1\]; expected \[\]"),
        (SCALED, {"x": (3, 4)}, "input 'factor' is missing"),
        (STATEFUL, {"sound": (5, 9), "state": (2, 4, 3), "rate": ()}, "differ in batch size"),
        (STATEFUL, {"sound": (0, 9), "state": (2, 0, 3), "rate": ()}, "the batch has 0 rows"),
        (STATEFUL, {"sound": (17, 9), "state": (2, 17, 3), "rate": ()}, "at most 16 fit"),
        (STATEFUL, {"sound": (5, 9), "state": (3, 5, 3), "rate": ()}, "has shape"),
        (BIASED, {"bias": (3,)}, "input 'x' is missing"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(
    signature: Signature, given: dict[str, tuple[int, ...]], message: str
) -> None:
    datatypes = {one.name: one.datatype for one in signature.inputs}
    with pytest.raises(SignatureError, match=message):
        signature.check_inputs({n: (datatypes[n], s) for n, s in given.items()})


def test_sizes_along_any_axis_are_limited() -> None:
    signature = Signature(
        inputs=(spec("wave", "FP32", -1, batch=None),),
        outputs=(spec("y", "FP32", batch=None),),
        max_batch_size=1,
        dynamic={"wave": {0: (2, 8)}},
    )
    assert signature.check_inputs({"wave": ("FP32", (8,))}) == 1
    with pytest.raises(SignatureError, match="size 9 along axis 0; give 2 to 8"):
        signature.check_inputs({"wave": ("FP32", (9,))})
    assert signature.in_rows().dynamic == {"wave": {1: (2, 8)}}


def test_limits_move_with_the_batch_and_may_have_no_largest() -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [-1, 3, -1], "batch_axis": 2}
    signature = Signature.model_validate(
        {"inputs": [x], "outputs": [x], "max_batch_size": 4, "limits": {"x": {0: [3, None]}}}
    )
    assert signature.check_inputs({"x": ("FP32", (3, 3, 2))}) == 2
    with pytest.raises(SignatureError, match="size 2 along axis 0; give 3 or more"):
        signature.check_inputs({"x": ("FP32", (2, 3, 2))})
    assert signature.in_rows().limits == {"x": {1: (3, None)}}
    assert Signature.model_validate_json(signature.model_dump_json()) == signature
    with pytest.raises(ValidationError, match="or null for none"):
        Signature.model_validate({**signature.model_dump(), "limits": {"x": {0: [3, 2]}}})


@pytest.mark.parametrize(
    "limits",
    [{"limits": {"x": {0: [2**63, None]}}}, {"limits": {"x": {0: [1, 2**63]}}},
     {"dynamic": {"x": {0: [1, 2**63]}}}],
)  # fmt: skip
def test_sizes_beyond_64_bits_are_refused(limits: dict[str, object]) -> None:
    x = {"name": "x", "datatype": "FP32", "shape": [-1, 3, -1], "batch_axis": 2}
    with pytest.raises(ValidationError, match="9223372036854775807 at most"):
        Signature.model_validate({"inputs": [x], "outputs": [x], "max_batch_size": 4, **limits})


def test_rows_of_a_signature_have_the_batch_first() -> None:
    rows = STATEFUL.in_rows()
    assert rows.is_plain
    assert [one.shape for one in rows.inputs] == [(-1, -1), (-1, 2, 3), (-1,)]
    plain = one_to_one((3,))
    assert plain.in_rows() is plain
    state = STATEFUL.inputs[1]
    assert [state.row_axis(axis) for axis in (0, 2)] == [1, 2]
    assert state.row_shape == (2, 3)
