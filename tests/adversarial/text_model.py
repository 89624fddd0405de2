"""Models of BYTES.

`texts` returns the number of texts in each row, and of their bytes. `verbose`, a Python model in a
process of its own, returns texts of as many bytes as a request names; `parts`, which is decoupled,
returns as many of them as it is asked for.
"""

import tempfile
from pathlib import Path

import numpy as np

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import object_array
from model_store.golden import GoldenRows
from model_store.manifest import Golden, PythonStep
from model_store.store import ModelStore
from tests.fixtures import python_models
from tests.fixtures.onnx_models import linear
from tests.fixtures.store_versions import draft_in, entry_in

SLOW_TEXTS = 777
"""Number of texts in a row that makes the model take `SLOW_S`."""
SLOW_S = 6.0
_SOURCE = f"""
import time

import numpy as np


class Sizes:
    def __call__(self, inputs):
        if inputs["text"].shape[1] == {SLOW_TEXTS}:
            time.sleep({SLOW_S})
        x = np.zeros((len(inputs["text"]), 4), np.float32)
        for row, texts in zip(x, inputs["text"]):
            row[:2] = len(texts), sum(map(len, texts))
        return {{"x": x}}
""".encode()
_SIGNATURE = Signature(
    inputs=(TensorSpec(name="text", datatype="BYTES", shape=(-1, -1)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, 4)),),
    max_batch_size=8,
)


def publish_texts(store_url: str) -> None:
    """Publishes `texts`: `text`, BYTES [-1, -1], to `y`, FP32 [-1, 4]: texts, bytes, 0 and 0."""
    golden = GoldenRows(
        {"text": object_array([b"", b"bc"]).reshape(1, 2)},
        {"y": np.array([[2, 2, 0, 0]], np.float32)},
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        file = entry_in(folder, "rows.safetensors", golden.to_bytes())
        draft = draft_in(
            folder,
            "texts",
            linear(1.0),
            signature=_SIGNATURE,
            golden=Golden(file=file, rows=1),
            python_step=PythonStep(
                file=entry_in(folder, "step.py", _SOURCE),
                name="Sizes",
                args={},
                inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, 4)),),
            ),
        )
        ModelStore(store_url).publish(draft, folder)


_VERBOSE = """
import numpy as np

class Model:
    def infer(self, inputs):
        text = np.empty((len(inputs["count"]), 1), object)
        text[:, 0] = [b"a" * int(count) for count in inputs["count"][:, 0]]
        return {"text": text}
"""


def publish_verbose(store_url: str) -> None:
    """Publishes `verbose`: `count`, INT64 [-1, 1], to `text`, BYTES [-1, 1], of so many bytes."""
    signature = python_models.signature_of(
        [("count", "INT64", (-1, 1))], [("text", "BYTES", (-1, 1))]
    )
    golden = GoldenRows(
        {"count": np.array([[0], [2]])}, {"text": object_array([b"", b"aa"]).reshape(2, 1)}
    )
    python_models.publish(store_url, "verbose", _VERBOSE, signature, golden)


_PARTS = """
import numpy as np

class Model:
    def infer(self, inputs):
        text = np.array([[b"a" * int(inputs["size"][0, 0])]], object)
        for _ in range(int(inputs["count"][0, 0])):
            yield {"text": text}
"""


def publish_parts(store_url: str) -> None:
    """Publishes `parts`: `count` answers of `text`, BYTES [-1, 1], each of `size` bytes."""
    signature = python_models.signature_of(
        [("count", "INT64", (-1, 1)), ("size", "INT64", (-1, 1))], [("text", "BYTES", (-1, 1))], 1
    )
    golden = GoldenRows(
        {"count": np.array([[1]]), "size": np.array([[2]])},
        {"text": object_array([b"aa"]).reshape(1, 1)},
    )
    python_models.publish(store_url, "parts", _PARTS, signature, golden)
