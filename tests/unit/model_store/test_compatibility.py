"""The necessary rise of the semantic version: in doubt the larger one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.signature import Signature, TensorSpec
from model_store.golden import GoldenRows
from model_store.manifest import FileEntry, PythonStep
from model_store.semver.compatibility import Identity, answers_differ, needed_bump

IMAGE = TensorSpec(name="image", datatype="FP32", shape=(-1, 1, 8, 8))
MASK = TensorSpec(name="mask", datatype="BOOL", shape=(-1, 8))
LOGITS = TensorSpec(name="logits", datatype="FP32", shape=(-1, 2))
LABELS = {"logits": ("cat", "dog")}
STEP = PythonStep(
    file=FileEntry(file="preprocess.py", sha256="5" * 64, size_bytes=7),
    name="Step",
    args={},
    inputs=(IMAGE,),
)


def signature(**changes: Any) -> Signature:
    fields: dict[str, Any] = {
        "inputs": (IMAGE, MASK), "outputs": (LOGITS,), "max_batch_size": 8, "labels": LABELS,
    }  # fmt: skip
    return Signature(**(fields | changes))


OLD = Identity(
    signature=signature(),
    weights={"checkpoint.safetensors": "1" * 64},
    network_sha256="2" * 64,
    python_step=None,
)


def test_the_same_weights_exported_anew_are_a_patch() -> None:
    need = needed_bump(OLD, OLD)
    assert (need.bump, need.reason) == ("patch", "network, weights and signature are the same")


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"inputs": (IMAGE,)}, "input 'mask' is removed"),
        ({"inputs": (MASK, IMAGE)}, "the inputs are in a different order"),
        (
            {"inputs": (IMAGE.model_copy(update={"datatype": "UINT8"}), MASK)},
            "input 'image' changes from FP32 [-1, 1, 8, 8] to UINT8 [-1, 1, 8, 8]",
        ),
        (
            {"outputs": (LOGITS, TensorSpec(name="more", datatype="FP32", shape=(-1,)))},
            "output 'more' is new",
        ),
        ({"labels": {"logits": ("dog", "cat")}}, "labels of the signature changes"),
        ({"max_batch_size": 4}, "max_batch_size falls from 8 to 4"),
        (
            {
                "inputs": (
                    IMAGE,
                    TensorSpec(name="mask", datatype="BOOL", shape=(-1, 8), batch_axis=None),
                )
            },
            "input 'mask' changes from BOOL [-1, 8] to BOOL [-1, 8] with batch axis None",
        ),
    ],
)
def test_another_signature_is_major(changes: dict[str, Any], reason: str) -> None:
    need = needed_bump(OLD, replace(OLD, signature=signature(**changes), weights={}))
    assert (need.bump, need.reason) == ("major", reason)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"weights": {"checkpoint.safetensors": "9" * 64}}, "the weights changed"),
        (
            {"weights": {**OLD.weights, "checkpoint.qat.safetensors": "9" * 64}},
            "the weights changed",
        ),
        ({"network_sha256": "9" * 64}, "the network changed"),
        ({"python_step": STEP}, "the python step changed"),
        ({"signature": signature(max_batch_size=16)}, "max_batch_size rises from 8 to 16"),
    ],
)
def test_another_network_or_other_weights_are_minor(changes: dict[str, Any], reason: str) -> None:
    need = needed_bump(OLD, replace(OLD, **changes))
    assert need.bump == "minor"
    assert need.reason.startswith(reason)


def test_weights_that_nobody_kept_may_have_changed() -> None:
    bare = replace(OLD, weights={})
    assert needed_bump(bare, bare).bump == "minor"


def test_other_answers_to_the_same_questions_are_another_network() -> None:
    asked, answered = {"x": np.ones((2, 3), np.float32)}, np.ones((2, 2), np.float32)
    old = GoldenRows(asked, {"y": answered})
    assert not answers_differ(old, GoldenRows(asked, {"y": answered + np.float32(1e-5)}))
    assert answers_differ(old, GoldenRows(asked, {"y": answered + np.float32(1e-1)}))
    other = {"x": np.zeros((2, 3), np.float32)}
    assert not answers_differ(old, GoldenRows(other, {"y": answered + 1})), "they prove nothing"


OPTIONAL = MASK.model_copy(update={"optional": True})


@pytest.mark.parametrize(
    "inputs", [(IMAGE, OPTIONAL), (IMAGE, MASK, OPTIONAL.model_copy(update={"name": "more"}))]
)
def test_an_input_that_may_be_omitted_is_minor(inputs: tuple[TensorSpec, ...]) -> None:
    need = needed_bump(OLD, replace(OLD, signature=signature(inputs=inputs)))
    assert (need.bump, need.reason) == ("minor", f"input '{inputs[-1].name}' is optional")


def test_an_input_that_is_required_again_is_major() -> None:
    old = replace(OLD, signature=signature(inputs=(IMAGE, OPTIONAL)))
    need = needed_bump(old, OLD)
    assert need.bump == "major"
    assert need.reason == "input 'mask' changes from optional BOOL [-1, 8] to BOOL [-1, 8]"


def test_other_texts_for_the_same_rows_are_other_answers() -> None:
    inputs = {"x": np.ones((2, 1), np.float32)}
    one, same, other = (
        GoldenRows(inputs, {"y": np.array([b"a", last], object)}) for last in (b"b", b"b", b"c")
    )
    assert not answers_differ(one, same)
    assert answers_differ(one, other)
