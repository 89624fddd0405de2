"""Models with a known signature: what does not fit never reaches the server."""

import re
from pathlib import Path
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
        ({"image": IMAGES[:, :, :2]}, "input 'image' has shape [2,2,2]; expected [batch,2,3]"),
        ({"image": IMAGES[0, 0]}, "input 'image' has shape [3]; expected [batch,2,3]"),
        ({"image": IMAGES[:0]}, "the batch has 0 rows"),
        ({"image": np.zeros((5, 2, 3), np.float32)}, "has 5 rows; at most 4 fit, so split it"),
        ({"image": [[["1"]]]}, "model 'digits': input 'image': '1' is no FP32; give numbers"),
        ({"image": "IMAGES"}, "input 'image': 'IMAGES' is no FP32; give numbers"),
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


def test_values_become_arrays_of_the_signature(server: ScriptedServer, client: Client) -> None:
    digits = client.model("digits")
    np.testing.assert_array_equal(digits(image=IMAGES.tolist()), IMAGES)
    np.testing.assert_array_equal(digits(IMAGES), IMAGES)
    np.testing.assert_array_equal(digits({"image": IMAGES[0]}), IMAGES[:1])
    np.testing.assert_array_equal(digits(list(IMAGES)), IMAGES)
    assert server.received[-1].request.inputs[0].datatype == "FP32"


def test_text_and_files_are_elements_of_bytes(
    server: ScriptedServer, client: Client, tmp_path: Path
) -> None:
    server.digits = metadata([("x", "BYTES", [-1])], [("x", "BYTES", [-1])])
    digits = client.model("digits")
    image = tmp_path / "seven.jpg"
    image.write_bytes(b"\xff\xd8\0")
    assert digits("größer").tolist() == ["größer".encode()]
    assert digits(["a", "b"]).tolist() == [b"a", b"b"]
    assert digits([image, b"\0"]).tolist() == [b"\xff\xd8\0", b"\0"]
    with pytest.raises(InvalidRequestError, match=r"input 'x': .*none\.jpg: No such file"):
        digits(tmp_path / "none.jpg")


def test_values_of_several_inputs_have_names_or_an_order(
    server: ScriptedServer, client: Client
) -> None:
    tensors = [("a", "INT64", [-1]), ("b", "INT64", [-1])]
    server.digits = metadata(tensors, tensors)
    digits = client.model("digits")
    with pytest.raises(InvalidRequestError, match="input 'b' is missing"):
        digits([1])
    with pytest.raises(InvalidRequestError, match="3 values were given, and the model has 2"):
        digits([1], [2], [3])
    assert digits(a=[1], b=[2])["b"].tolist() == [2]
    assert digits([1], [2])["b"].tolist() == [2]


def test_artifact_and_accuracy_are_parameters(server: ScriptedServer, client: Client) -> None:
    digits = client.model("digits")
    digits.infer({"image": IMAGES}, artifact="onnx-int8")
    digits.infer({"image": IMAGES}, accuracy="balanced")
    sent = [received.request.parameters for received in server.received[1:]]
    assert [{name: each.string_param for name, each in one.items()} for one in sent] == [
        {"artifact": "onnx-int8"},
        {"accuracy": "balanced"},
    ]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"accuracy": "exakt"}, "accuracy is 'exakt' (did you mean 'exact'?); give one of exact,"),
        ({"artifact": "onnx", "accuracy": "fast"}, "'onnx' and accuracy 'fast' are both given"),
    ],
)
def test_a_wrong_choice_of_artifact_is_never_sent(
    server: ScriptedServer, client: Client, options: Any, message: str
) -> None:
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        client.infer("digits", {"image": IMAGES}, **options)
    assert server.attempts() == 0


def classifier(server: ScriptedServer, **properties: str) -> None:
    tensors = [("logits", "FP32", [-1, 3])]
    server.digits = metadata(tensors, tensors, **properties)


def test_classes_come_with_labels_and_probabilities(server: ScriptedServer, client: Client) -> None:
    classifier(server, labels='{"logits": ["cat", "dog", "owl"]}')
    first, second = client.model("digits").classify([[0, 2, 1], [1000, 0, 0]], top=2)
    assert [each.label for each in first] == ["dog", "owl"]
    exponentials = np.exp([0, 2, 1])
    assert first[0].score == pytest.approx(exponentials[1] / exponentials.sum())
    assert second[0] == ("cat", 1.0)
    assert [output.name for output in server.received[-1].request.outputs] == ["logits"]


def test_probabilities_stay_as_they_are(server: ScriptedServer, client: Client) -> None:
    classifier(server)
    digits = client.model("digits")
    row = [0.2, 0.7, 0.1]
    ((found,),) = digits.classify(row)
    assert (found.label, round(found.score, 6)) == ("1", 0.7)
    ((made,),) = digits.classify(row, softmax=True)
    assert made.score < 0.5
    ((kept, *_),) = digits.classify([5, 1, 2], top=9, softmax=False)
    assert kept == ("0", 5.0)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top": 0}, "top is 0; give the number of classes"),
        ({}, "a, b may have the classes; give the name of one as output"),
        (
            {"output": "b"},
            "output 'b' has shape [-1]; classify takes an output of rows",
        ),
        ({"output": "c"}, "unknown output 'c'"),
    ],
)
def test_an_output_without_classes_is_refused(
    server: ScriptedServer, client: Client, options: Any, message: str
) -> None:
    server.digits = metadata([("x", "FP32", [-1])], [("a", "FP32", [-1, 3]), ("b", "FP32", [-1])])
    with pytest.raises(InvalidRequestError, match=re.escape(message)):
        client.model("digits").classify([1.0], **options)
    assert server.attempts() == 0
