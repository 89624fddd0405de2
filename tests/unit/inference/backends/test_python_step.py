"""A Python step before a backend, in this process and in one of its own."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array, object_array
from model_store.arrays.tensor_file import encode_tensors
from model_store.golden import GoldenRows, parse_golden
from model_store.manifest import PythonStep
from model_store.python_step import PythonStepError, open_step
from services.errors import BackendError, InputRefusedError
from services.inference.backends.backend import Backend
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import StepCode, VerifiedArtifact
from services.inference.isolation.isolated_backend import open_isolated_backend
from tests.fixtures.misbehaving_models import artifact_of
from tests.fixtures.onnx_models import linear
from tests.fixtures.store_versions import draft_in, entry_in

SOURCE = b"""
import numpy as np

class Numbers:
    def __init__(self, factor=1.0):
        self.factor = factor

    def __call__(self, inputs):
        found = [[float(n) for n in text.split(b",")] for text in inputs["text"]]
        if any(n == 13 for row in found for n in row):
            raise RuntimeError("thirteen")
        return {"x": self.factor * np.array(found, np.float32)}
"""
RAW = Signature(
    inputs=(TensorSpec(name="text", datatype="BYTES", shape=(-1,)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 4)),),
    max_batch_size=8,
)


def text(*rows: str) -> dict[str, Array]:
    return {"text": object_array([row.encode() for row in rows])}


def code_in(folder: Path, source: bytes = SOURCE) -> StepCode:
    step = PythonStep(
        file=entry_in(folder, "preprocess.py", source),
        name="Numbers",
        args={"factor": 10.0},
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),),
    )
    return StepCode(step, source)


@pytest.fixture(scope="module", params=[open_backend, open_isolated_backend])
def backend(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Backend]:
    folder, data = tmp_path_factory.mktemp("step"), linear(2.0)
    opens: Callable[..., Backend] = request.param
    opened = opens(
        VerifiedArtifact(
            entry=artifact_of(folder, data), signature=RAW, data=data, code=code_in(folder)
        ),
        OpenOptions(),
    )
    yield opened
    opened.close()


def test_raw_inputs_go_through_the_step(backend: Backend) -> None:
    assert backend.platform == "onnx_onnxv1"
    for _ in range(2):
        found = backend.run(text("1,2,3,4", "0,0,0,0.5"))
        assert found["y"].tolist() == [[20, 40, 60, 80], [0, 0, 0, 10]]
    joined = backend.buffer("text", (1,), np.dtype(object))
    joined[:] = text("1,1,1,1" + " " * 10_000)["text"]
    assert backend.run({"text": joined})["y"].tolist() == [[20, 20, 20, 20]]


def test_what_the_step_refuses_is_the_callers_fault_and_the_rest_is_not(backend: Backend) -> None:
    with pytest.raises(InputRefusedError, match=r"^could not convert"):
        backend.run(text("1,2,3,four"))
    # In this process the instance makes a BackendError of it.
    with pytest.raises((BackendError, RuntimeError), match="thirteen") as failed:
        backend.run(text("1,2,3,13"))
    assert not isinstance(failed.value, InputRefusedError)
    with pytest.raises(BackendError, match=r"gave 'x' as FP32 \[1, 2\]; the model takes FP32 \[-1"):
        backend.run(text("1,2"))
    assert backend.run(text("1,1,1,1"))["y"].tolist() == [[20, 20, 20, 20]]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"class Number: pass", r"has no 'Numbers' \(did you mean 'Number'\?\)"),
        (b"import nothing_like_it", "its file does not run: ModuleNotFoundError"),
        (b"def Numbers(factor): return factor", "made a float; make a callable"),
        (b"class Numbers: pass", "fails: TypeError"),
    ],
)
def test_a_step_that_cannot_be_made_is_refused(source: bytes, message: str, tmp_path: Path) -> None:
    data = linear(2.0)
    with pytest.raises(BackendError, match=message):
        open_backend(
            VerifiedArtifact(
                entry=artifact_of(tmp_path, data),
                signature=RAW,
                data=data,
                code=code_in(tmp_path, source),
            ),
            OpenOptions(),
        )


@pytest.mark.parametrize(
    ("result", "message"),
    [
        ("3", "returned a int; return arrays by input name"),
        ("{}", "return arrays by input name"),
        ("{'x': [1.0, 2.0]}", r"'x' of shape \[2\] for 1 rows"),
        ("{'x': ['text']}", "'x' as text or objects; return numbers"),
        ("{'x': [1j]}", "arrays of type complex128 have no datatype"),
    ],
)
def test_what_a_step_returns_is_checked(result: str, message: str) -> None:
    step = open_step(f"def S(): return lambda inputs: {result}".encode(), "S", {})
    with pytest.raises(PythonStepError, match=message):
        step(text("a"))


def test_golden_rows_of_text_survive_their_file(tmp_path: Path) -> None:
    rows: dict[str, Array] = {
        "text": object_array([b"", b"\0end\0", "°".encode()]),
        "pairs": object_array([b"a", b"b", b"c", b"d", b"e", b"f"]).reshape(3, 2),
        "x": np.arange(3.0),
    }
    tensors = GoldenRows(rows, {"y": np.arange(3.0)}).to_tensors()
    assert all(array.dtype.kind in "fiu" for array in tensors.values())
    signature = Signature(
        inputs=(
            TensorSpec(name="text", datatype="BYTES", shape=(-1,)),
            TensorSpec(name="pairs", datatype="BYTES", shape=(-1, 2)),
            TensorSpec(name="x", datatype="FP64", shape=(-1,)),
        ),
        outputs=(TensorSpec(name="y", datatype="FP64", shape=(-1,)),),
        max_batch_size=4,
    )
    draft = draft_in(tmp_path)
    golden = draft.golden.model_copy(update={"rows": 3})
    version = draft.model_copy(update={"signature": signature, "golden": golden})
    found = parse_golden(encode_tensors(tensors), version)
    assert found.rows == 3
    got: dict[str, Any] = {name: array.tolist() for name, array in found.inputs.items()}
    assert got == {name: array.tolist() for name, array in rows.items()}
    assert found.outputs["y"].tolist() == [0, 1, 2]
