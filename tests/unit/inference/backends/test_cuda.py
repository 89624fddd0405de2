"""The CUDA backends without a GPU: they run on the CPU, with CUDA faked.

`tests/gpu` runs the same backends on a real one.
"""

import gc
import io
import itertools
import logging
import weakref
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from services.errors import DeviceError
from services.inference.backends.gpu import cuda_torch
from services.inference.backends.gpu.cuda_graphs import LARGEST_ROWS, graph_sizes
from services.inference.backends.gpu.cuda_onnx import CudaOnnxBackend
from services.inference.backends.gpu.cuda_torch import CudaTorchBackend
from services.inference.backends.gpu.fp32_convolutions import CONVOLUTION, forbid_tf32
from services.inference.backends.gpu.module_state import changes_itself
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.torchscript import load_module
from tests.fixtures import misbehaving_models, onnx_models
from tests.fixtures.fake_cuda import FakeCuda, fake_cuda, onnx_on_cpu
from tests.fixtures.misbehaving_models import SIGNATURE, WIDTH
from tests.fixtures.signatures import one_to_one
from tests.fixtures.verified_artifacts import verified
from tests.gpu import networks


def signature(max_batch_size: int, *tail: int) -> Signature:
    return one_to_one(tail, rows=max_batch_size)


def rows(*values: float) -> Array:
    return np.repeat(np.array(values, np.float32)[:, None], WIDTH, axis=1)


@given(st.integers(1, 65_536))
def test_powers_of_two_up_to_the_maximum_are_captured(max_batch_size: int) -> None:
    sizes = graph_sizes(signature(max_batch_size, 4))
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == min(max_batch_size, LARGEST_ROWS)
    assert all(later <= 2 * earlier for earlier, later in itertools.pairwise(sizes))


def test_preferred_sizes_are_captured_instead_if_they_can_occur() -> None:
    assert graph_sizes(signature(16, 4), preferred=(12, 4, 4, 32)) == [4, 12]


def test_shapes_that_vary_are_not_captured() -> None:
    assert graph_sizes(signature(16, 4, -1), preferred=(4,)) == []


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    return fake_cuda(monkeypatch)


def opened(data: bytes, *sizes: int) -> CudaTorchBackend:
    return CudaTorchBackend(
        verified(data, SIGNATURE, "torchscript"), OpenOptions(preferred_batch_sizes=sizes)
    )


@pytest.fixture
def backend(cuda: FakeCuda) -> CudaTorchBackend:
    return opened(misbehaving_models.well_behaved(), 2, 4)


def test_a_batch_is_padded_up_to_a_graph_and_its_outputs_are_cut_back(
    backend: CudaTorchBackend, cuda: FakeCuda
) -> None:
    assert backend.run({"x": rows(1, 2, 3)})["y"].tolist() == rows(2, 4, 6).tolist()
    (captured,) = cuda.captured.values()
    assert captured.inputs[0].shape == captured.outputs[0].shape == (4, WIDTH)
    assert (cuda.captures, cuda.replays) == (1, 1)


def test_a_size_is_captured_once(backend: CudaTorchBackend, cuda: FakeCuda) -> None:
    for count in (1, 2, 3, 4, 2):
        assert backend.run({"x": rows(*range(count))})["y"].shape == (count, WIDTH)
    assert (cuda.captures, cuda.replays) == (2, 5)


def test_a_batch_larger_than_every_graph_runs_without(
    backend: CudaTorchBackend, cuda: FakeCuda
) -> None:
    assert backend.run({"x": rows(1, 2, 3, 4, 5)})["y"].tolist() == rows(2, 4, 6, 8, 10).tolist()
    assert cuda.captures == 0


def test_a_later_run_leaves_earlier_outputs_alone(backend: CudaTorchBackend) -> None:
    first = backend.run({"x": rows(1, 2)})["y"]
    backend.run({"x": rows(7, 8)})
    assert first.tolist() == rows(2, 4).tolist()


def test_buffers_and_read_only_and_strided_arrays_are_run(backend: CudaTorchBackend) -> None:
    buffer = backend.buffer("x", (2, WIDTH), np.dtype(np.float32))
    buffer[:] = rows(1, 2)
    read_only = rows(1, 2)
    read_only.flags.writeable = False
    strided = np.repeat(rows(1, 2), 2, axis=0)[::2]
    for x in (buffer, read_only, strided):
        assert backend.run({"x": x})["y"].tolist() == rows(2, 4).tolist()


def test_a_model_that_cannot_be_captured_runs_without_and_is_warned_of_once(
    backend: CudaTorchBackend, cuda: FakeCuda, caplog: pytest.LogCaptureFixture
) -> None:
    cuda.fails = RuntimeError("operation not permitted when stream is capturing")
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert backend.run({"x": rows(1, 2)})["y"].tolist() == rows(2, 4).tolist()
    assert [record.message for record in caplog.records] == [
        "no CUDA graph of this model; it runs without"
    ]
    assert cuda.captures == 2, "a capture that succeeds ends what the broken one began"


def test_a_model_that_loses_rows_is_not_captured(
    cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cutting its outputs to the batch would hide it."""
    doubles = Mock(side_effect=lambda x: torch.cat([x, x]))
    monkeypatch.setattr(cuda_torch, "load_module", lambda *_: doubles)
    backend = opened(b"", 4)
    assert backend.run({"x": rows(1, 2)})["y"].shape == (4, WIDTH)
    assert cuda.captured == {}


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
        torch.AcceleratorError("CUDA error: an illegal memory access was encountered"),
    ],
    ids=repr,
)
def test_a_fault_of_the_gpu_is_a_device_error(
    monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    monkeypatch.setattr(cuda_torch, "load_module", lambda *_: Mock(side_effect=error))
    backend = opened(b"")
    with pytest.raises(DeviceError, match="the device failed, not the input: CUDA"):
        backend.run({"x": rows(1)})


def test_a_fault_of_the_model_is_none_of_the_device(backend: CudaTorchBackend) -> None:
    with pytest.raises(KeyError):
        backend.run({"z": rows(1)})
    with pytest.raises(RuntimeError, match="tensor"):  # it does not fit the captured shape
        backend.run({"x": np.zeros((2, WIDTH + 1), np.float32)})


def test_a_twin_shares_the_module_and_nothing_else(
    backend: CudaTorchBackend, cuda: FakeCuda
) -> None:
    backend.run({"x": rows(1, 2)})
    twin = backend.twin()
    assert twin is not None
    assert twin.run({"x": rows(3, 4)})["y"].tolist() == rows(6, 8).tolist()
    assert cuda.captures == 2, "a graph has memory of its own, for one run at a time"
    backend.close()
    assert twin.run({"x": rows(5, 6)})["y"].tolist() == rows(10, 12).tolist()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_that_changes_itself_has_no_twin() -> None:
    class InPlace(torch.nn.Module):
        total: torch.Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(WIDTH))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.relu_(x + self.total)

    class Sets(InPlace):
        def __init__(self) -> None:
            super().__init__()
            self.number = 0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.number += 1
            return x

    class Adds(InPlace):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if bool(x.sum() > 0):
                self.total.add_(x[0])
            return x

    class Stores(InPlace):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.total[0] = x[0, 0]
            return x

    class Picks(InPlace):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            target = self.total if bool(x.sum() > 0) else x[0]
            target.zero_()
            return x

    def changes(module: torch.nn.Module) -> bool:
        return changes_itself(torch.jit.script(module))

    assert not changes(InPlace())
    assert not changes(networks.convolutions())
    assert all(changes(module()) for module in (Sets, Adds, Stores, Picks))


def test_closing_frees_the_module(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded: list[weakref.ref[object]] = []

    def load(*given: Any) -> Any:
        module = load_module(*given)
        loaded.append(weakref.ref(module))
        return module

    monkeypatch.setattr(cuda_torch, "load_module", load)
    backend = opened(misbehaving_models.well_behaved())
    backend.run({"x": rows(1)})
    assert loaded[0]() is not None
    backend.close()
    gc.collect()
    assert loaded[0]() is None


class CallsTraced(torch.nn.Module):
    """Scripted, with a traced convolution inside of a branch."""

    def __init__(self, traced: torch.nn.Module) -> None:
        super().__init__()
        self.traced = traced

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """FP32 [N, 3, 32, 32] to the same."""
        return self.traced(x) if bool(x.sum() > 0) else x


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_trace_does_not_keep_tf32_from_the_process_that_traced_it() -> None:
    example = torch.rand(2, *networks.IMAGE)
    network = networks.convolutions()
    traced = torch.jit.load(io.BytesIO(networks.torchscript(network, example)))  # type: ignore[no-untyped-call]
    for data in (
        networks.torchscript(network, example),
        networks.torchscript(CallsTraced(traced)),
        networks.torchscript(network),  # scripted: nothing to do
    ):
        module = load_module(data, "cpu")
        forbid_tf32(module)
        with torch.inference_mode():
            for _ in range(3):  # the third run has an optimized graph
                torch.testing.assert_close(module(example), network(example))
        graph: Any = torch.jit.last_executed_optimized_graph()  # type: ignore[attr-defined]
        flags = [n.inputsAt(12).toIValue() for n in graph.findAllNodes(CONVOLUTION, True)]
        assert not any(flags)
        assert len(flags) in (0, 4)


@pytest.fixture
def session(cuda: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> CudaOnnxBackend:
    """The ONNX backend with the CPU in the GPU's place."""
    onnx_on_cpu(monkeypatch)
    specs = tuple(
        TensorSpec(name=name, datatype="FP32", shape=(-1, -1))
        for name in ("a", "b", "difference", "total")
    )
    # The file's own order of outputs is the other one.
    both = Signature(inputs=specs[:2], outputs=specs[2:], max_batch_size=4)
    return CudaOnnxBackend(verified(onnx_models.pair(), both), OpenOptions())


def test_bound_inputs_and_outputs_keep_their_names(session: CudaOnnxBackend) -> None:
    for count in (2, 1, 4):  # a binding would hold on to the shapes of its first run
        buffer = session.buffer("a", (count, WIDTH), np.dtype(np.float32))
        buffer[:] = 5
        outputs = session.run({"b": np.ones((count, WIDTH), np.float32), "a": buffer})
        assert {name: array.tolist() for name, array in outputs.items()} == {
            "total": [[6.0] * WIDTH] * count,
            "difference": [[4.0] * WIDTH] * count,
        }


def test_arrays_that_cannot_be_bound_are_copied(session: CudaOnnxBackend) -> None:
    a = np.arange(2 * WIDTH, dtype=np.float32).reshape(WIDTH, 2).T
    a.flags.writeable = False
    assert session.run({"a": a, "b": a})["total"].tolist() == (a + a).tolist()


def test_a_killed_session_raises(session: CudaOnnxBackend) -> None:
    session.kill()
    a = np.ones((1, WIDTH), np.float32)
    with pytest.raises(Exception, match="terminate"):
        session.run({"a": a, "b": a})


def test_a_twin_shares_the_session_and_is_killed_by_itself(session: CudaOnnxBackend) -> None:
    twin = session.twin()
    assert twin is not None
    session.kill()
    a = np.ones((1, WIDTH), np.float32)
    assert twin.run({"a": a, "b": a})["total"].tolist() == (a + a).tolist()
    session.close()
    assert twin.run({"a": a, "b": a})["total"].tolist() == (a + a).tolist()


@pytest.mark.usefixtures("cuda")
@pytest.mark.parametrize(("sizes", "has_twin"), [((), False), ((2, 4), False), ((4,), True)])
def test_convolutions_overlap_only_if_all_batches_have_one_size(
    monkeypatch: pytest.MonkeyPatch, sizes: tuple[int, ...], has_twin: bool
) -> None:
    onnx_on_cpu(monkeypatch)
    backend = CudaOnnxBackend(
        verified(onnx_models.convolution(), one_to_one((1, 4, 4), rows=4)),
        OpenOptions(preferred_batch_sizes=sizes),
    )
    assert (backend.twin() is not None) == has_twin
