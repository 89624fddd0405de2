"""Golden files that do not match their signature: refused by tensor, value and rule."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flambeau.protocol.signature import Padding, Signature, TensorSpec
from flambeau.protocol.tensors import Array, object_array
from model_store.arrays.tensor_file import encode_tensors
from model_store.errors import GoldenMismatchError
from model_store.golden import GoldenRows, parse_golden
from model_store.manifest import Draft
from model_store.store import ModelStore
from tests.fixtures.shaped_models import BIASED, MODELS, SHOUTING, STATEFUL, golden_of
from tests.fixtures.store_versions import draft_in, entry_in

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="tokens", datatype="INT64", shape=(-1, -1)),
        TensorSpec(name="mask", datatype="FP32", shape=(-1, -1)),
    ),
    outputs=(TensorSpec(name="labels", datatype="FP32", shape=(-1, -1, 3)),),
    max_batch_size=2,
    padding=Padding(inputs={"tokens": 1}, outputs={"labels": 1}, buckets=(4, 8), mask="mask"),
)
Change = Callable[[dict[str, Array]], object]


def tensors() -> dict[str, Array]:
    """Eight rows of length 5, more than fit into one batch."""
    inputs: dict[str, Array] = {
        "tokens": np.ones((8, 5), np.int64),
        "mask": np.ones((8, 5), np.float32),
    }
    return GoldenRows(inputs, {"labels": np.zeros((8, 5, 3), np.float32)}).to_tensors()


@pytest.fixture
def version(tmp_path: Path) -> Draft:
    return draft_in(tmp_path / "draft").model_copy(update={"signature": SIGNATURE})


def test_rows_that_fit_are_read(version: Draft) -> None:
    found = parse_golden(encode_tensors(tensors()), version)
    assert found.rows == 8
    assert set(found.inputs) == {"tokens", "mask"}
    assert set(found.outputs) == {"labels"}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop("input.mask"), "it lacks input 'mask'"),
        (lambda t: t.pop("output.labels"), "it lacks output 'labels'"),
        (
            lambda t: t.update({"output.label": t.pop("output.labels")}),
            "unknown output 'label' (did you mean 'labels'?)",
        ),
        (lambda t: t.update(logits=np.zeros(8)), "'logits' is neither input.NAME nor output.NAME"),
        (
            lambda t: t.update({"input.tokens": np.ones((8, 5), np.int32)}),
            "input 'tokens' has datatype INT32; the signature has INT64",
        ),
        (
            lambda t: t.update({"output.labels": np.zeros((8, 5, 4), np.float32)}),
            "output 'labels' has shape [8, 5, 4]; the signature has [-1, -1, 3]",
        ),
        (
            lambda t: t.update({"output.labels": np.zeros((7, 5, 3), np.float32)}),
            "output.labels has 7 rows; the manifest says 8",
        ),
        (
            lambda t: t.update({n: a[:0] for n, a in t.items()}),
            "has 0 rows; the manifest says 8",
        ),
        (
            lambda t: t.update({"input.mask": np.ones((8, 4), np.float32)}),
            "inputs differ in length",
        ),
        (
            lambda t: t.update({"output.labels": np.zeros((8, 4, 3), np.float32)}),
            "output 'labels' has 4 positions along axis 1, and the inputs have 5",
        ),
        (
            lambda t: t.update({n: np.repeat(a, 2, axis=1) for n, a in t.items()}),
            "the inputs have length 10; at most 8 fit",
        ),
    ],
)
def test_rows_that_do_not_fit_are_refused(version: Draft, change: Change, reason: str) -> None:
    wrong = tensors()
    change(wrong)
    with pytest.raises(GoldenMismatchError) as refused:
        parse_golden(encode_tensors(wrong), version)
    assert reason in str(refused.value)
    assert "does not match the signature" in str(refused.value)


def test_a_size_beyond_the_dynamic_axes(tmp_path: Path) -> None:
    signature = Signature(
        inputs=(TensorSpec(name="image", datatype="FP32", shape=(-1, -1)),),
        outputs=(TensorSpec(name="logits", datatype="FP32", shape=(-1,)),),
        max_batch_size=8,
        dynamic={"image": {1: (2, 4)}},
    )
    version = draft_in(tmp_path).model_copy(update={"signature": signature})
    rows = GoldenRows({"image": np.ones((8, 5), np.float32)}, {"logits": np.ones(8, np.float32)})
    with pytest.raises(GoldenMismatchError, match=r"size 5 along axis 1; give 2 to 4"):
        parse_golden(rows.to_bytes(), version)


@pytest.mark.parametrize("data", [b"", b"golden rows", encode_tensors(tensors())[:-1]])
def test_what_is_no_safetensors(version: Draft, data: bytes) -> None:
    with pytest.raises(GoldenMismatchError, match="cannot be read as safetensors"):
        parse_golden(data, version)


def test_nothing_is_published_with_them(tmp_path: Path) -> None:
    store, folder = ModelStore(str(tmp_path / "store")), tmp_path / "draft"
    draft = draft_in(folder)
    other = entry_in(folder, "golden.safetensors", encode_tensors(tensors()))
    wrong = draft.model_copy(update={"golden": draft.golden.model_copy(update={"file": other})})
    with pytest.raises(GoldenMismatchError, match=r"unknown input '(tokens|mask)'"):
        store.publish(wrong, folder)
    assert store.storage.list() == {}


@pytest.mark.parametrize("name", MODELS)
def test_rows_of_every_shape_come_back(tmp_path: Path, name: str) -> None:
    signature, make = MODELS[name]
    rows = golden_of(make(), signature)
    version = draft_in(tmp_path).model_copy(update={"signature": signature})
    found = parse_golden(rows.to_bytes(), version)
    for before, after in ((rows.inputs, found.inputs), (rows.outputs, found.outputs)):
        assert before.keys() == after.keys()
        for key, array in before.items():
            texts = [t.encode() if isinstance(t, str) else t for t in array.ravel().tolist()]
            assert (key, after[key].ravel().tolist()) == (key, texts)
            assert after[key].shape == array.shape


def texts(change: Change | None = None) -> bytes:
    """Returns the golden file of a model of texts, perhaps changed."""
    words = object_array([b"a"] * 8).reshape(8, 1)
    found = GoldenRows({"text": words}, {"loud": words}).to_tensors()
    if change is not None:
        change(found)
    return encode_tensors(found)


SHAPE, BYTES = "output-shape.loud", "output-bytes.loud"


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda t: t.pop(SHAPE), "it lacks 'output-shape.loud'"),
        (lambda t: t.pop(BYTES), "it lacks output 'loud'"),
        (lambda t: t.update({SHAPE: np.array([8, 2])}), "raw BYTES data holds 8 elements"),
        (lambda t: t.update({SHAPE: np.array([2**62, 2**62])}), "larger than any array"),
        (lambda t: t.update({SHAPE: np.array([-8, -1])}), "negative dimension"),
        (lambda t: t.update({SHAPE: np.array([[8, 1]])}), "'output-shape.loud' is no shape"),
        (lambda t: t.update({SHAPE: np.array([8.0, 1.0])}), "'output-shape.loud' is no shape"),
        (lambda t: t.update({SHAPE: np.ones(65, np.int64)}), "65 dimensions"),
        (lambda t: t.update({BYTES: np.full(8, 255, np.uint8)}), "claims 4294967295 bytes"),
        (lambda t: t.update({SHAPE: np.array([1, 8])}), "has 1 rows; the manifest says 8"),
    ],
)
def test_texts_that_do_not_fit_are_refused(tmp_path: Path, change: Change, reason: str) -> None:
    version = draft_in(tmp_path).model_copy(update={"signature": SHOUTING})
    assert parse_golden(texts(), version).rows == 8
    with pytest.raises(GoldenMismatchError) as refused:
        parse_golden(texts(change), version)
    assert reason in str(refused.value)


def test_an_optional_input_may_be_left_out(tmp_path: Path) -> None:
    version = draft_in(tmp_path).model_copy(update={"signature": BIASED})
    x = np.ones((8, 3), np.float32)
    assert set(parse_golden(GoldenRows({"x": x}, {"y": x}).to_bytes(), version).inputs) == {"x"}
    wrong = GoldenRows({"x": x, "bias": np.ones((8, 4), np.float32)}, {"y": x})
    with pytest.raises(GoldenMismatchError, match="input 'bias' has shape"):
        parse_golden(wrong.to_bytes(), version)


def test_rows_in_the_models_own_form_are_refused(tmp_path: Path) -> None:
    version = draft_in(tmp_path).model_copy(update={"signature": STATEFUL})
    rows = GoldenRows(
        {
            "sound": np.ones((8, 2), np.float32),
            "state": np.ones((2, 8, 3), np.float32),
            "rate": np.ones(8, np.int64),
        },
        {"level": np.ones((8, 1), np.float32), "next": np.ones((8, 2, 3), np.float32)},
    )
    with pytest.raises(GoldenMismatchError, match="input 'state' has shape"):
        parse_golden(rows.to_bytes(), version)
