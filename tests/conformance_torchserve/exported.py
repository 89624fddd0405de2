"""Versions that were exported as archives: TorchServe and ours serve them alike, and right.

Their answers are known, so a fault that both servers have shows, too.
"""

import io
import json
import tempfile
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

from flambeau.protocol.tensors import Array
from tests.conformance_torchserve.clients import Answer, Clients
from tests.conformance_torchserve.inference_scripts import (
    GRPC,
    JSON,
    MULTIPART,
    REST,
    Script,
    predict,
    rest,
)
from tests.fixtures import exported_models, onnx_models, python_models
from tests.fixtures.exported_archives import export
from tests.fixtures.misbehaving_models import WIDTH

NAMES = ("exported-onnx", "exported-script", "exported-python")
NEEDED = ("onnxruntime", "flatbuffers")
"""Packages that they need where they are served."""
ROW = [float(number) for number in range(WIDTH)]
_CODE = """
class Model:
    def infer(self, inputs):
        if (inputs["x"] < 0).any():
            raise ValueError("x is below 0")
        return {"y": 2 * inputs["x"]}
"""


def write_exported(folder: Path) -> None:
    """Writes the archives of `NAMES` into a folder."""
    with tempfile.TemporaryDirectory() as made:
        store = f"{made}/store"
        for manifest in (
            onnx_models.publish(store, NAMES[0], onnx_models.linear(2), max_batch_size=8),
            exported_models.publish(store, NAMES[1], _script),
            python_models.publish(store, NAMES[2], _CODE),
        ):
            export(store, manifest, folder / f"{manifest.model}.mar", max_batch_delay_ms=20)


def _script(folder: Path) -> Any:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        example = torch.zeros(2, WIDTH)
        torch.jit.save(torch.jit.trace(exported_models.Network().eval(), example), buffer)  # type: ignore[no-untyped-call]
    return exported_models.artifact_of(folder, "torchscript", buffer.getvalue())


def _expected(model: str, row: Sequence[float]) -> Array:
    x = np.array(row, np.float32)
    return exported_models.right(x) if model == NAMES[1] else 2 * x


def _right(script: Script, model: str, row: Sequence[float]) -> Script:
    """Returns a script whose answer must be the outputs of a row."""

    def ask(server: Clients) -> Answer:
        answer = script.ask(server)
        assert isinstance(answer, Answer)
        body = answer.body["prediction"] if script.protocol == GRPC else answer.body
        assert answer.code in ("200", "OK"), answer
        np.testing.assert_allclose(body["y"], _expected(model, row).tolist(), atol=1e-5)
        return answer

    return Script(script.name, script.protocol, ask)


def _npy(row: Sequence[float]) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array(row, np.float32))
    return file.getvalue()


def _multipart(name: str, data: bytes) -> bytes:
    head = f'--cut\r\ncontent-disposition: form-data; name="{name}"; filename="{name}"\r\n\r\n'
    return head.encode() + data + b"\r\n--cut--\r\n"


def _of(model: str) -> list[Script]:
    named = json.dumps({"x": ROW}).encode()
    calls: list[tuple[str, tuple[bytes, dict[str, str]]]] = [
        ("by name", (named, JSON)),
        ("the value alone", (json.dumps(ROW).encode(), JSON)),
        ("without a type", (named, {})),
        ("as .npy", (_npy(ROW), {"content-type": "application/octet-stream"})),
        ("as a part", (_multipart("x", _npy(ROW)), MULTIPART)),
    ]
    bad: list[tuple[str, tuple[bytes, dict[str, str]]]] = [
        ("no JSON", (b"{", JSON)),
        ("another shape", (b"[1]", JSON)),
        ("another input", (b'{"z": [1]}', JSON)),
        ("an object array", (_npy(ROW).replace(b"<f4", b"|O8"), {})),
        ("nothing", (b"", {})),
    ]
    return [
        *(_right(predict(f"{model}: {what}", model, *how), model, ROW) for what, how in calls),
        *(predict(f"{model}: {what}", model, *how) for what, how in bad),
        _right(_grpc(f"{model}: JSON", model, named), model, ROW),
        _right(_grpc(f"{model}: .npy", model, _npy(ROW)), model, ROW),
        _grpc(f"{model}: no JSON", model, b"{"),
        rest(f"{model}: explanation", "POST", f"/explanations/{model}", named, JSON),
        rest(f"{model}: described", "GET", f"/models/{model}?customized=true", port="management"),
        Script(f"{model}: many at once", REST, lambda server: _many(server, model)),
    ]


def _grpc(name: str, model: str, data: bytes) -> Script:
    fields: dict[str, Any] = {"model_name": model, "input": {"data": data}}
    return Script(name, GRPC, lambda server: server.grpc("inference", "Predictions", **fields))


def _many(server: Clients, model: str) -> list[Answer]:
    """Sends rows at once, so that they come into batches, every fifth a bad one."""
    rows = [[float(number)] * (WIDTH if number % 5 else 1) for number in range(40)]

    def ask(row: Sequence[float]) -> Answer:
        return server.rest("POST", f"/predictions/{model}", json.dumps(row).encode(), JSON)

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, rows))
    for row, answer in zip(rows, answers, strict=True):
        assert answer.code == ("200" if len(row) == WIDTH else "400"), answer
        if answer.code == "200":
            right = _expected(model, row).tolist()
            np.testing.assert_allclose(answer.body["y"], right, atol=1e-4)
    return [Answer(answer.code) for answer in answers]


EXPORTED: Sequence[Script] = [script for model in NAMES for script in _of(model)]
