"""Backends with scalars, texts, optional inputs and dictionaries, in this process."""

import io
import warnings

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array, object_array
from services.errors import InputRefusedError
from services.inference.backends.onnx_runtime import MAX_TEXTS, open_session
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.torchscript import TorchScriptBackend
from tests.fixtures.shaped_models import SHOUTING, shouting, spec
from tests.fixtures.verified_artifacts import verified

BOTH = Signature(
    inputs=(spec("x", "FP32", -1, 2), spec("bias", "FP32", batch=None, optional=True)),
    outputs=(spec("total", "FP32", -1), spec("y", "FP32", -1, 2)),
    max_batch_size=4,
)


class _Network(nn.Module):
    def forward(self, x: Tensor, bias: Tensor | None = None) -> dict[str, Tensor]:
        y = x if bias is None else x + bias
        return {"y": y, "total": y.sum(1)}


def test_torchscript_runs_without_an_optional_input_and_names_a_dictionary() -> None:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        torch.jit.save(torch.jit.script(_Network().eval()), buffer)
    artifact = verified(buffer.getvalue(), BOTH)
    backend = TorchScriptBackend(artifact, OpenOptions())
    x: Array = np.ones((3, 2), np.float32)
    assert backend.run({"x": x})["total"].tolist() == [2, 2, 2]
    found = backend.run({"x": x, "bias": np.array(1, np.float32)})
    assert found["y"].tolist() == [[2, 2]] * 3
    assert found["total"].tolist() == [4, 4, 4]
    backend.close()


def test_onnx_runtime_takes_text_in_utf8() -> None:
    backend = open_session(verified(shouting(), SHOUTING), OpenOptions())
    found = backend.run({"text": object_array(["é".encode(), b"", b"a\0b"]).reshape(3, 1)})
    assert found["loud"].ravel().tolist() == ["é!", "!", "a\0b!"]
    with pytest.raises(InputRefusedError, match=r"not UTF-8 .*b'\\xff'.*; encode it as UTF-8"):
        backend.run({"text": object_array([b"\xff"]).reshape(1, 1)})
    backend.close()


def test_texts_that_would_hold_the_interpreter_are_refused() -> None:
    backend = open_session(verified(shouting(), SHOUTING), OpenOptions())
    texts = object_array([b""] * (MAX_TEXTS + 1)).reshape(1, -1)
    with pytest.raises(InputRefusedError, match=r"holds 65,537 texts, .* up to 65,536 at once"):
        backend.run({"text": texts})
    backend.close()
