"""FP16: made and proven on a GPU or a processor that has it, refused with the reason elsewhere."""

import itertools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from model_store.manifest import MadeWith
from tests.unit.training.recipes import export_here, recipe, splits, untrained
from training.errors import ExportError
from training.exporters import half_precision
from training.exporters.export import Exported
from training.exporters.half_precision import half_device
from training.network.runner import module_runner
from training.verification import verify
from training.verification.runners import file_runner

HALF = {"kind": "onnx", "precision": "fp16"}


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Sets the features of the processor, the GPU and the providers of ONNX Runtime."""

    def has(*features: str, gpu: bool = False, providers: tuple[str, ...] = ()) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: gpu)
        monkeypatch.setattr(half_precision, "cpu_features", lambda: features)
        monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: list(providers))

    return has


@pytest.mark.parametrize(
    ("gpu", "providers", "message"),
    [
        (False, (), "finds no CUDA GPU here; this processor has neither amx_fp16 nor avx512_fp16"),
        (True, ("CPUExecutionProvider",), "ONNX Runtime here has no CUDA: install onnxruntime-gpu"),
    ],
)
def test_a_machine_without_fp16_refuses_it_with_what_it_costs(
    machine: Any, gpu: bool, providers: tuple[str, ...], message: str
) -> None:
    machine("avx2", "avx512f", gpu=gpu, providers=providers)
    with pytest.raises(ExportError, match=message) as refused:
        half_device()
    assert "torch takes 7 times as long as in FP32" in str(refused.value)


def test_a_gpu_comes_before_a_processor_that_has_it(machine: Any) -> None:
    machine("avx512_fp16", gpu=True, providers=("CUDAExecutionProvider",))
    assert half_device() == "cuda"
    machine("avx512_fp16", gpu=True)
    assert half_device() == "cpu"


def test_a_graph_of_halves_takes_and_gives_what_the_checkpoint_does(
    machine: Any, tmp_path: Path
) -> None:
    machine("amx_fp16")
    chosen, data = recipe(export=[HALF]), splits()
    trained = untrained(chosen, data, tmp_path / "trained")
    (made,) = export_here(chosen, trained, data, tmp_path)
    assert (made.entry.name, made.path.name) == ("onnx-fp16", "model.fp16.onnx")
    graph = onnx.load(made.path).graph
    kinds = {tensor.data_type for tensor in graph.initializer}
    assert onnx.TensorProto.FLOAT16 in kinds
    assert onnx.TensorProto.FLOAT not in kinds
    run = file_runner("onnx", "fp16", made.path, trained.signature)
    found = run(data.test.inputs)["logits"]
    with torch.inference_mode():
        right = trained.model(torch.from_numpy(data.test.inputs["image"])).numpy()
    assert found.dtype == np.float32
    assert 0 < np.abs(np.subtract(found, right)).max() < 0.01


def test_what_a_gpu_ran_is_timed_by_the_clock_on_the_wall(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """CPU time of the calling thread does not include the work of a GPU."""
    found: list[set[float]] = []
    chosen = recipe(export=[HALF, {"kind": "onnx"}])
    trained = untrained(chosen, splits(), tmp_path)
    right = module_runner(trained.model, trained.signature)
    monkeypatch.setattr(verify, "file_runner", lambda *_: right)
    expected, _ = verify.reference(trained, splits().test)
    wall, cpu = itertools.count(0.0, 0.003), itertools.count(0.0, 0.001)
    clocks = SimpleNamespace(perf_counter=wall.__next__, thread_time=cpu.__next__)
    monkeypatch.setattr(verify, "time", clocks)
    makers = MadeWith(device="cuda"), MadeWith()
    for entry, made_with in zip(chosen.listed_exports(), makers, strict=True):
        (tmp_path / entry.file).write_bytes(b"")
        exported = Exported(entry, tmp_path / entry.file, None, made_with)
        verdict = verify.verify(exported, expected)
        assert verdict.refusal is None
        found.append(set(verdict.latency_ms.values()))
    assert found == [{3.0}, {1.0}]
