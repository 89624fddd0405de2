"""The calls beside unary inference: streams, sequences, administration, and other protocols."""

import json
from collections.abc import Sequence
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2 as health
from grpc_health.v1.health_pb2_grpc import HealthStub
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import (
    ProtoReflectionDescriptorDatabase,
)

from tests.conformance.calls import (
    GRPC,
    REST,
    TIMEOUT_S,
    Call,
    Check,
    calling,
    getting,
    rest,
    stub_call,
)
from tests.conformance.fuzzer import PREDICTION
from tests.conformance.inference_calls import INFERENCE
from tests.conformance.messages import request, step
from tests.fixtures.servers import ServerProcess
from tests.fixtures.tensorflow_messages import tf
from tests.fixtures.triton_messages import GRPCInferenceServiceStub, pb

SERVICE = "inference.GRPCInferenceService"
ROW = [[1, 2, 3, 4]]
TEXT = {"text": "hi", "times": 1}
REGION = "nowhere"
INFORMATION = pb.LogSettingsRequest.SettingValue(bool_param=True)


def _posting(path: str, document: Any = None, status: int = 200, words: str = "") -> Check:
    """Returns a check of POST: its status, and a part of its body."""

    def check(server: ServerProcess) -> None:
        body = b"" if document is None else json.dumps(document).encode()
        found, told = rest(server, "POST", path, body)
        assert found == status, (found, told[:300])
        assert words.encode() in told, told[:300]

    return check


def _refused(call: str, code: grpc.StatusCode, **values: Any) -> Check:
    """Returns a check of a unary call that is refused."""

    def check(server: ServerProcess) -> None:
        with pytest.raises(grpc.RpcError) as caught:
            stub_call(server, call, getattr(pb, f"{call}Request")(**values))
        assert caught.value.code() is code, caught.value

    return check


def _index(server: ServerProcess) -> None:
    status, told = rest(server, "POST", "/v2/repository/index")
    assert status == 200, told[:300]
    assert {"name": "linear", "version": "1", "state": "READY"} in json.loads(told)


def _streamed(server: ServerProcess, *messages: Any) -> list[Any]:
    with grpc.insecure_channel(server.grpc) as channel:
        stream = GRPCInferenceServiceStub(channel).ModelStreamInfer
        return list(stream(iter(messages), timeout=TIMEOUT_S))


def _stream(server: ServerProcess) -> None:
    found = _streamed(server, *(request("linear", "x", ROW, id=str(n)) for n in range(3)))
    assert [one.infer_response.id for one in found] == ["0", "1", "2"]


def _decoupled_stream(server: ServerProcess) -> None:
    asked = request("count", "x", [[3] * 4], id="a", triton_enable_empty_final_response=True)
    found = _streamed(server, asked)
    assert [len(one.infer_response.outputs) for one in found] == [1, 1, 1, 0]


def _stream_error(server: ServerProcess) -> None:
    found = _streamed(server, request("nope", "x", ROW, id="a"), request("linear", "x", ROW))
    assert [bool(one.error_message) for one in found] == [True, False]
    assert found[0].infer_response.id == "a"


def _events(server: ServerProcess) -> None:
    body = json.dumps({**TEXT, "times": 2}).encode()
    status, told = rest(server, "POST", "/v2/models/say/generate_stream", body)
    assert status == 200, told[:300]
    events = [json.loads(one.removeprefix(b"data: ")) for one in told.split(b"\n\n") if one]
    assert [one["left"] for one in events] == [1, 0]


def _sequence_over_rest(server: ServerProcess) -> None:
    sums = []
    for number in range(3):
        parameters = {"sequence_id": 7, "sequence_start": number == 0, "sequence_end": number == 2}
        tensor = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}
        body = json.dumps({"inputs": [tensor], "parameters": parameters}).encode()
        status, told = rest(server, "POST", "/v2/models/sum/infer", body)
        assert status == 200, told[:300]
        sums += next(one["data"] for one in json.loads(told)["outputs"] if one["name"] == "sum")
    assert sums == [101, 102, 103]


def _sequence(server: ServerProcess) -> None:
    for number in range(3):
        stub_call(server, "ModelInfer", step(8, 1.0, start=number == 0, end=number == 2))


def _stream_of_a_sequence(server: ServerProcess) -> None:
    found = _streamed(server, *(step(9, 1.0, start=n == 0, end=n == 2) for n in range(3)))
    assert [one.error_message for one in found] == [""] * 3


def _serving(server: ServerProcess, path: str, request: Any, answer: Any) -> Any:
    with grpc.insecure_channel(server.grpc) as channel:
        call = channel.unary_unary(f"/tensorflow.serving.{path}", None, answer.FromString)
        return call(request.SerializeToString(), timeout=TIMEOUT_S)


def _predict(server: ServerProcess) -> None:
    asked = tf.PredictRequest.FromString(PREDICTION)
    found = _serving(server, "PredictionService/Predict", asked, tf.PredictResponse)
    assert list(found.outputs["y"].float_val) == [2, 4, 6, 8]


def _metadata(server: ServerProcess) -> None:
    spec = tf.ModelSpec(name="linear")
    asked = tf.GetModelMetadataRequest(model_spec=spec, metadata_field=["signature_def"])
    path = "PredictionService/GetModelMetadata"
    found = _serving(server, path, asked, tf.GetModelMetadataResponse)
    assert "signature_def" in found.metadata


def _status(server: ServerProcess) -> None:
    asked = tf.GetModelStatusRequest(model_spec=tf.ModelSpec(name="linear"))
    found = _serving(server, "ModelService/GetModelStatus", asked, tf.GetModelStatusResponse)
    assert [one.state for one in found.model_version_status] == [30]


def _health(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        stub: Any = HealthStub(channel)
        for name in ("", SERVICE):
            asked = health.HealthCheckRequest(service=name)
            assert stub.Check(asked, timeout=TIMEOUT_S).status == 1
            assert next(iter(stub.Watch(asked, timeout=TIMEOUT_S))).status == 1


def _reflection(server: ServerProcess) -> None:
    with grpc.insecure_channel(server.grpc) as channel:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert SERVICE in database.get_services()
        assert DescriptorPool(database).FindServiceByName(SERVICE)


CONFLICTS = "explicit model load / unload is not allowed"
FURTHER: Sequence[Call] = [
    Call("stream", GRPC, _stream),
    Call("stream, decoupled", GRPC, _decoupled_stream),
    Call("stream, error in band", GRPC, _stream_error),
    Call("stream, sequence", GRPC, _stream_of_a_sequence),
    Call("generate", REST, _posting("/v2/models/say/generate", TEXT, 200, '"said":"hi"')),
    Call("generate_stream", REST, _events),
    Call("sequence", REST, _sequence_over_rest),
    Call("sequence", GRPC, _sequence),
    Call("configuration", REST, getting("/v2/models/linear/config", "name", "max_batch_size")),
    Call("configuration", GRPC, calling("ModelConfig", "config", name="linear")),
    Call("statistics", REST, getting("/v2/models/linear/stats", "model_stats")),
    Call("statistics", GRPC, calling("ModelStatistics", "model_stats", name="linear")),
    Call("statistics of all", REST, getting("/v2/models/stats", "model_stats")),
    Call("statistics of all", GRPC, calling("ModelStatistics", "model_stats")),
    Call("repository index", REST, _index),
    Call("repository index", GRPC, calling("RepositoryIndex", "models")),
    Call("load, not allowed", REST,
         _posting("/v2/repository/models/sum/load", None, 503, CONFLICTS)),
    Call("load, not allowed", GRPC,
         _refused("RepositoryModelLoad", grpc.StatusCode.UNAVAILABLE, model_name="sum")),
    Call("unload, not allowed", REST,
         _posting("/v2/repository/models/sum/unload", None, 503, CONFLICTS)),
    Call("unload, not allowed", GRPC,
         _refused("RepositoryModelUnload", grpc.StatusCode.UNAVAILABLE, model_name="sum")),
    Call("OpenAPI document", REST, getting("/openapi.json", "paths")),
    Call("settings of logs", REST, getting("/v2/logging", "log_info", "log_verbose_level")),
    Call("settings of logs", GRPC, calling("LogSettings", "settings")),
    Call("change of logs", REST, _posting("/v2/logging", {"log_info": True}, 200, "log_info")),
    Call("change of logs", GRPC,
         calling("LogSettings", "settings", settings={"log_info": INFORMATION})),
    Call("settings of traces", REST, getting("/v2/trace/setting", "trace_level", "trace_rate")),
    Call("settings of traces", GRPC, calling("TraceSetting", "settings")),
    Call("traces of a model", REST, getting("/v2/models/linear/trace/setting", "trace_level")),
    Call("traces of a model", GRPC, calling("TraceSetting", "settings", model_name="linear")),
    *(
        call
        for kind in ("System", "Cuda")
        for call in (
            Call(f"{kind.lower()} memory, status", REST,
                 getting(f"/v2/{kind.lower()}sharedmemory/status")),
            Call(f"{kind.lower()} memory, status", GRPC, calling(f"{kind}SharedMemoryStatus")),
            Call(f"{kind.lower()} memory, unregister", REST,
                 _posting(f"/v2/{kind.lower()}sharedmemory/region/{REGION}/unregister")),
            Call(f"{kind.lower()} memory, unregister", GRPC,
                 calling(f"{kind}SharedMemoryUnregister", name=REGION)),
        )
    ),
    Call("KServe v1, models", REST, getting("/v1/models", "models")),
    Call("KServe v1, status", REST, getting("/v1/models/linear", "model_version_status")),
    Call("KServe v1, predict", REST,
         _posting("/v1/models/linear:predict", {"instances": ROW}, 200, "predictions")),
    Call("TensorFlow Serving, metadata", REST,
         getting("/v1/models/linear/metadata", "metadata")),
    Call("TensorFlow Serving, Predict", GRPC, _predict),
    Call("TensorFlow Serving, metadata", GRPC, _metadata),
    Call("TensorFlow Serving, status", GRPC, _status),
    Call("OpenAPI", REST, getting("/openapi.json", "paths")),
    Call("health", GRPC, _health),
    Call("reflection", GRPC, _reflection),
]  # fmt: skip
EVERY: Sequence[Call] = [*INFERENCE, *FURTHER]
