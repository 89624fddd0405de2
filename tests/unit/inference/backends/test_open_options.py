"""The options of a backend reach it whole, whichever way it is opened."""

import dataclasses
import socket
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from flambeau.protocol.tensors import Array
from model_store.manifest import PythonStep
from services.inference.backends.backend import Backend
from services.inference.backends.device import Device
from services.inference.backends.gpu import cuda_onnx
from services.inference.backends.onnx_providers import OnnxOnGpu
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import StepCode, VerifiedArtifact
from services.inference.isolation.channel import Channel
from tests.fixtures.misbehaving_models import artifact_of
from tests.fixtures.onnx_models import linear
from tests.fixtures.signatures import one_to_one
from tests.fixtures.store_versions import entry_in

OPTIONS = OpenOptions(
    device=Device("cuda", 3),
    threads=7,
    preferred_batch_sizes=(2, 8),
    onnx_on_gpu=OnnxOnGpu(
        providers=("tensorrt", "cuda"), engine_cache="elsewhere", engine_cache_bytes=11
    ),
)
SIGNATURE = one_to_one((4,))
STEP = b"""
class Same:
    def __call__(self, inputs):
        return dict(inputs)
"""


class Recorder(Backend):
    """In the place of the backend for GPUs: keeps what it was opened with."""

    platform = "onnx_onnxv1"
    opened_with: OpenOptions

    def __init__(self, artifact: VerifiedArtifact, options: OpenOptions) -> None:
        type(self).opened_with = options

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        return {"y": np.asarray(inputs["x"])}

    def close(self) -> None:
        pass


def step_in(folder: Path) -> StepCode:
    step = PythonStep(
        file=entry_in(folder, "preprocess.py", STEP), name="Same", args={}, inputs=SIGNATURE.inputs
    )
    return StepCode(step, STEP)


def test_every_field_of_these_options_differs_from_its_default() -> None:
    """Or the tests below would not see that one is lost."""
    for made, default in (
        (OPTIONS, OpenOptions()),
        (OPTIONS.onnx_on_gpu, OnnxOnGpu()),
    ):
        for field in dataclasses.fields(made):
            assert getattr(made, field.name) != getattr(default, field.name), field.name


@pytest.mark.parametrize("has_step", [False, True])
def test_options_reach_the_backend_whole_also_behind_a_python_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_step: bool
) -> None:
    monkeypatch.setattr(cuda_onnx, "CudaOnnxBackend", Recorder)
    data = linear(2.0)
    code = step_in(tmp_path) if has_step else None
    open_backend(
        VerifiedArtifact(
            entry=artifact_of(tmp_path, data), signature=SIGNATURE, data=data, code=code
        ),
        OPTIONS,
    ).close()
    assert Recorder.opened_with == OPTIONS


def test_options_reach_a_worker_process_whole() -> None:
    ours, theirs = (Channel(end) for end in socket.socketpair(type=socket.SOCK_SEQPACKET))
    ours.send("open", {"options": OPTIONS})
    _, content, _ = theirs.receive()
    assert TypeAdapter(OpenOptions).validate_python(content["options"]) == OPTIONS
    ours.close()
    theirs.close()
