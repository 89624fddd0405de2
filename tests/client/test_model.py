"""Models with a known signature: what does not fit never reaches the server."""

import re
from typing import Any

import numpy as np
import pytest

from flambeau.client import Client
from flambeau.errors import InvalidRequestError, NotFoundError, ServerError
from flambeau.metadata import TensorMetadata
from tests.client.scripted_server import ScriptedServer, metadata

IMAGES = np.arange(12, dtype=np.float32).reshape(2, 2, 3)


def test_the_one_output_comes_as_an_array(client: Client) -> None:
    digits = client.model("digits")
    np.testing.assert_array_equal(digits(image=IMAGES), IMAGES)
    assert list(digits.infer({"image": IMAGES})) == ["image"]


def test_several_outputs_come_by_name(server: ScriptedServer, client: Client) -> None:
    tensors = [("image", "FP32", [-1, 3]), ("label", "BYTES", [-1])]
    server.digits = metadata(tensors, tensors)
    digits = client.model("digits", "1")
    given = {"image": IMAGES[0], "label": np.array(["a", "b"])}

    outputs = digits(**given)

    assert list(outputs) == ["image", "label"]
    assert outputs["label"].tolist() == [b"a", b"b"]
    assert list(digits.infer(given, outputs=["label"])) == ["label"]
    assert {received.request.version for received in server.received[:1]} == {"1"}
    assert server.received[-1].request.model_version == "1"


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"imgae": IMAGES}, "unknown input 'imgae' (did you mean 'image'?)"),
        ({}, "input 'image' is missing"),
        ({"image": IMAGES.astype(np.float64)}, "has datatype FP64; expected FP32"),
        ({"image": IMAGES[:, :, :2]}, "input 'image' has shape [2,2,2]; expected [-1,2,3]"),
        ({"image": IMAGES[0]}, "input 'image' has shape [2,3]; expected [-1,2,3]"),
        ({"image": IMAGES[:0]}, "the batch has 0 rows"),
        ({"image": np.zeros((5, 2, 3), np.float32)}, "has 5 rows; at most 4 fit, so split it"),
        ({"image": IMAGES.tolist()}, "input 'image' is a list; give a NumPy array"),
    ],
)
def test_what_does_not_fit_is_never_sent(
    server: ScriptedServer, client: Client, inputs: dict[str, Any], message: str
) -> None:
    tensors = [("image", "FP32", [-1, 2, 3])]
    server.digits = metadata(tensors, tensors, max_batch_size="4")
    digits = client.model("digits")
    with pytest.raises(InvalidRequestError, match=re.escape(message)) as caught:
        digits(**inputs)
    assert caught.value.grpc_code == "INVALID_ARGUMENT"
    assert server.attempts() == 0


def test_an_unknown_output_is_never_sent(server: ScriptedServer, client: Client) -> None:
    digits = client.model("digits", "7")
    with pytest.raises(InvalidRequestError, match="model 'digits' version 7: unknown output 'im'"):
        digits.infer({"image": IMAGES}, outputs=["im"])
    assert server.attempts() == 0


def test_bf16_goes_and_comes_as_bit_patterns(server: ScriptedServer, client: Client) -> None:
    server.digits = metadata([("x", "BF16", [-1])], [("x", "BF16", [-1])])
    digits = client.model("digits")
    patterns = np.array([0x3F80, 0x7FC0], np.uint16)

    np.testing.assert_array_equal(digits(x=patterns), patterns)

    assert server.received[-1].request.inputs[0].datatype == "BF16"
    with pytest.raises(InvalidRequestError, match="expected BF16, given as its bit pattern"):
        digits(x=np.zeros(2, np.float32))


def test_without_a_limit_any_batch_fits(server: ScriptedServer, client: Client) -> None:
    server.digits = metadata([("x", "UINT8", [-1])], [("x", "UINT8", [-1])])
    assert client.model("digits")(x=np.zeros(70_000, np.uint8)).shape == (70_000,)


def test_metadata_is_the_servers_answer_field_by_field(
    server: ScriptedServer, client: Client
) -> None:
    server.digits = metadata([("x", "UINT8", [-1, 8])], [], team="vision")
    found = client.metadata("digits")
    assert (found.name, found.versions, found.platform) == ("digits", ("1",), "")
    assert found.inputs == (TensorMetadata(name="x", datatype="UINT8", shape=(-1, 8)),)
    assert found.outputs == ()
    assert found.properties == {"team": "vision"}


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        (metadata([("x", "FP8", [-1])], [("x", "FP32", [-1])]), "'inputs.0.datatype' is 'FP8'"),
        (metadata([("x", "FP32", [2])], [("x", "FP32", [-1])]), "first dimension is the batch"),
        (
            metadata([("x", "FP32", [-1])], [("x", "FP32", [-1])], max_batch_size="many"),
            "'max_batch_size' is 'many'",
        ),
    ],
)
def test_metadata_that_is_no_signature_says_what_to_do(
    server: ScriptedServer, client: Client, reply: Any, message: str
) -> None:
    server.digits = reply
    with pytest.raises(ServerError, match=re.escape(message)) as caught:
        client.model("digits")
    assert "use Client.infer" in str(caught.value)


def test_an_unknown_model_is_not_found(client: Client) -> None:
    with pytest.raises(NotFoundError, match="no model 'letters' is served"):
        client.model("letters")
