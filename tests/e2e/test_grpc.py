"""gRPC: health and metadata calls, inference in both forms, deadlines and cancelled calls."""

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.grpc_calls import (
    TIMEOUT_S,
    error_of,
    linear_request,
    lookup_request,
    outputs,
    raw_request,
    trailing,
    typed_request,
)
from tests.e2e.tensor_values import (
    JSON_DATATYPES,
    RUNTIME_DATATYPES,
    VALUES,
    assert_same_bits,
    echo_model,
)
from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_messages import pb

ROW = [1.0, 2.0, 3.0, 4.0]
PAIR = {
    "a": ("FP32", np.array([[5]], np.float32)),
    "b": ("FP32", np.array([[3]], np.float32)),
}
LONG = 100_000
"""Matrix products that keep the worker busy for about a second."""


def test_live_ready_and_server_metadata(stub: Any) -> None:
    assert stub.ServerLive(pb.ServerLiveRequest()).live
    assert stub.ServerReady(pb.ServerReadyRequest()).ready
    metadata = stub.ServerMetadata(pb.ServerMetadataRequest())
    assert metadata.name == "flambeau"
    assert metadata.version
    assert "binary_tensor_data" in metadata.extensions


@pytest.mark.parametrize(
    ("model", "version", "ready"),
    [
        ("linear", "", True),
        ("linear", "1", True),
        ("linear", "3", False),
        ("refused", "", False),
        ("refused", "1", False),
        ("nowhere", "", False),
    ],
)
def test_model_ready(stub: Any, model: str, version: str, ready: bool) -> None:
    request = pb.ModelReadyRequest(name=model, version=version)
    assert stub.ModelReady(request).ready is ready


@pytest.mark.parametrize("version", ["", "1", "2"])
def test_model_metadata(stub: Any, version: str) -> None:
    metadata = stub.ModelMetadata(pb.ModelMetadataRequest(name="linear", version=version))
    assert (metadata.name, list(metadata.versions)) == ("linear", ["1", "2"])
    assert metadata.platform == "onnx_onnxv1"
    for tensors, name in ((metadata.inputs, "x"), (metadata.outputs, "y")):
        assert [(t.name, t.datatype, list(t.shape)) for t in tensors] == [(name, "FP32", [-1, 4])]


@pytest.mark.parametrize(("version", "scale"), [("", 2), ("1", 1), ("2", 2)])
def test_newest_version_unless_one_is_named(stub: Any, version: str, scale: int) -> None:
    response = stub.ModelInfer(linear_request(ROW, model_version=version))
    assert (response.model_name, response.model_version) == ("linear", str(scale))
    assert outputs(response)["y"].tolist() == [[scale * x for x in ROW]]


@pytest.mark.parametrize("datatype", RUNTIME_DATATYPES)
def test_datatype_in_raw_contents(stub: Any, datatype: str) -> None:
    values = VALUES[datatype]
    response = stub.ModelInfer(
        raw_request(echo_model(datatype), {f"in_{datatype}": (datatype, values)})
    )
    assert response.raw_output_contents, "raw in, raw out"
    assert_same_bits(outputs(response)[f"out_{datatype}"], values)


@pytest.mark.parametrize("datatype", JSON_DATATYPES)
def test_datatype_in_typed_contents(stub: Any, datatype: str) -> None:
    values = VALUES[datatype]
    response = stub.ModelInfer(
        typed_request(echo_model(datatype), {f"in_{datatype}": (datatype, values)})
    )
    assert not response.raw_output_contents, "typed in, typed out"
    assert_same_bits(outputs(response)[f"out_{datatype}"], values)


def test_all_datatypes_in_one_request(stub: Any) -> None:
    inputs = {f"in_{datatype}": (datatype, values) for datatype, values in VALUES.items()}
    found = outputs(stub.ModelInfer(raw_request("echo", inputs)))
    for datatype, values in VALUES.items():
        assert_same_bits(found[f"out_{datatype}"], values)


@pytest.mark.parametrize("request_of", [raw_request, typed_request])
def test_nan_and_infinity(stub: Any, request_of: Any) -> None:
    values = np.array([[np.nan, np.inf, -np.inf]], np.float64)
    response = stub.ModelInfer(request_of("echo-fp64", {"in_FP64": ("FP64", values)}))
    np.testing.assert_array_equal(outputs(response)["out_FP64"], values)


@pytest.mark.parametrize("request_of", [raw_request, typed_request])
def test_dimension_of_zero(stub: Any, request_of: Any) -> None:
    nothing = np.empty((2, 0), np.float32)
    response = stub.ModelInfer(request_of("echo-fp32", {"in_FP32": ("FP32", nothing)}))
    assert outputs(response)["out_FP32"].shape == (2, 0)


def test_outputs_wanted_and_their_order(stub: Any) -> None:
    def wanted(*names: str) -> dict[str, list[float]]:
        tensors = [pb.ModelInferRequest.InferRequestedOutputTensor(name=name) for name in names]
        response = stub.ModelInfer(raw_request("pair", PAIR, outputs=tensors))
        return {name: array.ravel().tolist() for name, array in outputs(response).items()}

    assert list(wanted().items()) == [("total", [8]), ("difference", [2])]
    assert wanted("difference") == {"difference": [2]}
    assert list(wanted("difference", "total")) == ["difference", "total"]


def test_messages_beyond_the_default_limit_of_grpc(stub: Any) -> None:
    large = np.arange(1_500_000, dtype=np.float32).reshape(1, -1)
    response = stub.ModelInfer(raw_request("echo-fp32", {"in_FP32": ("FP32", large)}))
    assert_same_bits(outputs(response)["out_FP32"], large)


def test_id_in_the_metadata_counts_where_the_message_has_none(stub: Any) -> None:
    metadata = (("x-request-id", "from-metadata"),)
    _, call = stub.ModelInfer.with_call(linear_request(ROW), metadata=metadata)
    assert trailing(call)["x-request-id"] == "from-metadata"
    _, call = stub.ModelInfer.with_call(linear_request(ROW, id="mine"), metadata=metadata)
    assert trailing(call)["x-request-id"] == "mine"


def test_id_is_echoed_in_message_and_trailing_metadata(stub: Any) -> None:
    response, call = stub.ModelInfer.with_call(linear_request(ROW, id="mine-7"))
    assert response.id == "mine-7"
    assert trailing(call)["x-request-id"] == "mine-7"


def test_request_without_an_id_gets_one(stub: Any) -> None:
    response, call = stub.ModelInfer.with_call(linear_request(ROW))
    assert response.id == ""
    assert re.fullmatch("[0-9a-f]{28}", trailing(call)["x-request-id"])


def test_id_that_no_metadata_can_hold_is_echoed_in_the_message(stub: Any) -> None:
    response, call = stub.ModelInfer.with_call(linear_request(ROW, id="né\n"))
    assert response.id == "né\n"
    assert re.fullmatch("[0-9a-f]{28}", trailing(call)["x-request-id"])


def test_failed_request_has_its_id_too(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(linear_request(ROW, id="mine-8", model_version="9"))
    assert trailing(caught.value)["x-request-id"] == "mine-8"


def test_concurrent_requests_share_batches_and_each_gets_its_own_answer(
    stub: Any, server: ServerProcess
) -> None:
    rows = server.metric("flambeau_batch_size_sum", model="lookup")
    batches = server.metric("flambeau_batch_size_count", model="lookup")
    calls = [stub.ModelInfer.future(lookup_request(n % 10, work=2000)) for n in range(64)]
    answers = [outputs(call.result(TIMEOUT_S))["value"].tolist() for call in calls]
    assert answers == [[n % 10] for n in range(64)]
    rows = server.metric("flambeau_batch_size_sum", model="lookup") - rows
    batches = server.metric("flambeau_batch_size_count", model="lookup") - batches
    assert rows == 64
    assert batches <= 32, "concurrent requests were not batched"


class BusyWorker:
    """The lookup lane held by one long request, so that later requests wait."""

    def __init__(self, stub: Any, server: ServerProcess) -> None:
        self._server = server
        self._stub = stub
        self._rows = server.metric("flambeau_batch_size_sum", model="lookup")
        self.call = stub.ModelInfer.future(lookup_request(1, work=LONG))
        server.wait_for_metric(1, "flambeau_in_flight_requests")
        server.wait_for_metric(0, "flambeau_queue_depth", model="lookup")

    def finish(self) -> float:
        """Ends it and runs one more request; returns the rows of all batches since the start."""
        assert not self.call.done(), "the lane was never held; give it more work"
        assert outputs(self.call.result(TIMEOUT_S))["value"].tolist() == [1]
        assert outputs(self._stub.ModelInfer(lookup_request(2)))["value"].tolist() == [2]
        return self._server.metric("flambeau_batch_size_sum", model="lookup") - self._rows


def test_request_out_of_time_is_dropped_before_the_backend(
    stub: Any, server: ServerProcess
) -> None:
    busy = BusyWorker(stub, server)
    code, _ = error_of(lambda: stub.ModelInfer(lookup_request(3, id="late"), timeout=0.2))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    server.wait_for_log(request_id="late", code="DEADLINE_EXCEEDED")
    assert busy.finish() == 2, "the late request ran"


def test_timeout_parameter_is_a_deadline_too(stub: Any, server: ServerProcess) -> None:
    busy = BusyWorker(stub, server)
    request = lookup_request(3, id="impatient")
    request.parameters["timeout"].int64_param = 200_000  # microseconds
    code, details = error_of(lambda: stub.ModelInfer(request, timeout=TIMEOUT_S))
    assert code is grpc.StatusCode.DEADLINE_EXCEEDED
    assert "reached its deadline" in details
    server.wait_for_log(request_id="impatient", code="DEADLINE_EXCEEDED")
    assert busy.finish() == 2, "the late request ran"


def test_cancelled_request_is_dropped_before_the_backend(stub: Any, server: ServerProcess) -> None:
    busy = BusyWorker(stub, server)
    cancelled = stub.ModelInfer.future(lookup_request(3, id="cancelled"))
    server.wait_for_metric(1, "flambeau_queue_depth", model="lookup")
    cancelled.cancel()
    server.wait_for_log(request_id="cancelled", code="CANCELLED")
    assert busy.finish() == 2, "the cancelled request ran"


def test_cancelled_request_harms_no_neighbour_in_its_batch(
    stub: Any, server: ServerProcess
) -> None:
    """Cancelled in mid-run: the batch goes on, and who shares it is answered."""
    busy = BusyWorker(stub, server)
    with ThreadPoolExecutor(1) as threads:
        doomed = stub.ModelInfer.future(lookup_request(3, work=LONG, id="doomed"))
        server.wait_for_metric(1, "flambeau_queue_depth", model="lookup")
        neighbour = threads.submit(stub.ModelInfer, lookup_request(4))
        server.wait_for_metric(2, "flambeau_queue_depth", model="lookup")
        server.wait_for_metric(0, "flambeau_queue_depth", model="lookup")  # their batch runs
        doomed.cancel()
        server.wait_for_log(request_id="doomed", code="CANCELLED")
        assert not neighbour.done(), "the batch was over before the cancellation"
        assert outputs(neighbour.result(TIMEOUT_S))["value"].tolist() == [4]
    assert busy.call.done()
