"""Triton's words: every message as Triton 2.51 gave it to the same request, to the letter."""

from collections.abc import Sequence

import pytest

from flambeau.protocol.signature import Signature, TensorSpec
from services.errors import (
    BackendError,
    NoSequenceError,
    ServingError,
    SeveralAnswersError,
)
from services.gateway.triton.words import Tensors, of_error, refusal, unknown

NOTE = (
    " NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be "
    "prepended to each input shape. If you want to specify the full shape including the batch dim "
    "in your input dims config, try setting max_batch_size to zero. See the model configuration "
    "docs for more info on max_batch_size."
)
ID = "[request id: <id_unknown>] "


def spec(name: str, datatype: str, *shape: int, batch: int | None = 0) -> TensorSpec:
    return TensorSpec(name=name, datatype=datatype, shape=shape, batch_axis=batch)


LINEAR = Signature(
    inputs=(spec("x", "FP32", -1, 4),), outputs=(spec("y", "FP32", -1, 4),), max_batch_size=8
)
PAIR = Signature(
    inputs=(spec("a", "FP32", -1, 4), spec("b", "INT32", -1, 4)),
    outputs=(spec("c", "FP32", -1, 4),),
    max_batch_size=8,
)
WHOLE = Signature(
    inputs=(spec("x", "FP32", 2, 3, batch=None),),
    outputs=(spec("y", "FP32", 2, 3, batch=None),),
    max_batch_size=1,
)
X = ("x", "FP32", (1, 4))
A = ("a", "FP32", (1, 4))
Z = ("z", "FP32", (1, 4))


@pytest.mark.parametrize(
    ("signature", "model", "inputs", "outputs", "told"),
    [
        (LINEAR, "linear", [Z], [], "unexpected inference input 'z' for model 'linear'"),
        (
            LINEAR, "linear", [Z, X], [],
            f"{ID}expected 1 inputs but got 2 inputs for model 'linear'. Got input(s) ['z','x'], "
            "but missing required input(s) ]. Please provide all required input(s).",
        ),
        (
            LINEAR, "linear", [], [],
            f"{ID}expected 1 inputs but got 0 inputs for model 'linear'. Got input(s) [], but "
            "missing required input(s) ['x']. Please provide all required input(s).",
        ),
        (
            PAIR, "pair", [A], [],
            f"{ID}expected 2 inputs but got 1 inputs for model 'pair'. Got input(s) ['a'], but "
            "missing required input(s) ['b']. Please provide all required input(s).",
        ),
        (PAIR, "pair", [A, Z], [], "unexpected inference input 'z' for model 'pair'"),
        (LINEAR, "linear", [X, X], [], f"{ID}input 'x' already exists in request"),
        (
            LINEAR, "linear", [("x", "INT32", (1, 4))], [],
            f"{ID}inference input 'x' data-type is 'INT32', but model 'linear' expects 'FP32'",
        ),
        (
            LINEAR, "linear", [("x", "FP32", (1, 3))], [],
            f"{ID}unexpected shape for input 'x' for model 'linear'. Expected [-1,4], got [1,3]."
            f"{NOTE}",
        ),
        (
            LINEAR, "linear", [("x", "FP32", (4,))], [],
            f"{ID}unexpected shape for input 'x' for model 'linear'. Expected [-1,4], got [4]."
            f"{NOTE}",
        ),
        (
            WHOLE, "whole", [("x", "FP32", (3, 2))], [],
            f"{ID}unexpected shape for input 'x' for model 'whole'. Expected [2,3], got [3,2]. ",
        ),
        (
            LINEAR, "linear", [("x", "FP32", (9, 4))], [],
            f"{ID}inference request batch-size must be <= 8 for 'linear'",
        ),
        (LINEAR, "linear", [X], ["q"], "unexpected inference output 'q' for model 'linear'"),
        (LINEAR, "linear", [("x", "FP32", (0, 4))], [], ""),
    ],
)  # fmt: skip
def test_words(
    signature: Signature, model: str, inputs: Tensors, outputs: Sequence[str], told: str
) -> None:
    assert refusal(lambda _: "", signature, model, "made-up", inputs, outputs) == told


def test_id_of_the_caller() -> None:
    told = refusal(str, LINEAR, "linear", "abc", [X, X], [])
    assert told == "[request id: abc] input 'x' already exists in request"


def test_unknown_names() -> None:
    assert unknown("nope", "") == "Request for unknown model: 'nope' is not found"
    assert unknown("linear", "9") == "Request for unknown model: 'linear' version 9 is not found"


def test_long_names_are_cut() -> None:
    name = "n" * 100_000
    told = refusal(lambda _: "", LINEAR, "linear", "", [(name, "FP32", (1, 4))] * 2000, [name])
    assert len(told) < 1000
    many = [(str(number), name, (1,)) for number in range(2000)]
    assert len(refusal(lambda _: "", LINEAR, "linear", "", many, [])) < 9000
    assert len(unknown(name, name)) < 1000


@pytest.mark.parametrize(
    ("error", "protocol", "message"),
    [
        (
            NoSequenceError("none"), "http",
            "inference request to model 'sum' must specify a non-zero or non-empty correlation ID",
        ),
        (
            SeveralAnswersError("two"), "grpc",
            "ModelInfer RPC doesn't support models with decoupled transaction policy",
        ),
        (
            SeveralAnswersError("two"), "http",
            "HTTP end point doesn't support models with decoupled transaction policy",
        ),
        (BackendError("it failed"), "grpc", "it failed"),
    ],
)  # fmt: skip
def test_errors_of_inferences(error: ServingError, protocol: str, message: str) -> None:
    found = of_error(error, "sum", protocol)
    assert (type(found), str(found)) == (type(error), message)
