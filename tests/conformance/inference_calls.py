"""The calls of inference and metadata, over each protocol and in each form."""

import gzip
from collections.abc import Sequence

from tests.conformance.calls import GRPC, REST, Call, Check, calling, getting, rest, stub_call
from tests.conformance.fuzzer import HEALTHY
from tests.conformance.generated import Asked
from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_messages import pb

LIVE, READY, READY_MODEL = "/v2/health/live", "/v2/health/ready", "/v2/models/linear/ready"


def _infer(form: str) -> Check:
    asked = Asked(model="linear", form=form, inputs=HEALTHY.inputs, id="mine")

    def check(server: ServerProcess) -> None:
        if asked.over_rest:
            body, headers = asked.body()
            status, told = rest(server, "POST", asked.path, body, headers)
            assert status == 200, told[:300]
            assert b'"id":"mine"' in told
            return
        message = pb.ModelInferRequest.FromString(asked.message().SerializeToString())
        answer = stub_call(server, "ModelInfer", message)
        assert answer.id == "mine"
        assert bool(answer.raw_output_contents) == (form == "raw")

    return check


def _classes(form: str) -> Check:
    wanted = (("y", {"classification": 2}),)
    asked = Asked(model="linear", form=form, inputs=HEALTHY.inputs, outputs=wanted)

    def check(server: ServerProcess) -> None:
        if asked.over_rest:
            told = rest(server, "POST", asked.path, *asked.body())[1]
        else:
            message = pb.ModelInferRequest.FromString(asked.message().SerializeToString())
            told = stub_call(server, "ModelInfer", message).SerializeToString()
        assert b"8.000000:3:dog" in told, told[:300]
        assert b"6.000000:2:cat" in told, told[:300]

    return check


def _compressed(server: ServerProcess) -> None:
    body, _ = HEALTHY.body()
    headers = {"content-encoding": "gzip"}
    status, told = rest(server, "POST", HEALTHY.path, gzip.compress(body), headers)
    assert status == 200, told[:300]


INFERENCE: Sequence[Call] = [
    Call("live", REST, getting(LIVE)),
    Call("live", GRPC, calling("ServerLive", "live")),
    Call("ready", REST, getting(READY)),
    Call("ready", GRPC, calling("ServerReady", "ready")),
    Call("server metadata", REST, getting("/v2", "name", "version", "extensions")),
    Call("server metadata", GRPC, calling("ServerMetadata", "extensions")),
    Call("model ready", REST, getting(READY_MODEL, "name", "ready")),
    Call("model ready", GRPC, calling("ModelReady", "ready", name="linear")),
    Call("model metadata", REST, getting("/v2/models/linear", "platform", "inputs", "outputs")),
    Call("model metadata", GRPC, calling("ModelMetadata", "inputs", name="linear")),
    Call("infer, JSON flat", REST, _infer("json")),
    Call("infer, JSON nested", REST, _infer("nested")),
    Call("infer, binary", REST, _infer("binary")),
    Call("infer, gzip", REST, _compressed),
    Call("infer, classification", REST, _classes("json")),
    Call("infer, classification", GRPC, _classes("contents")),
    Call("infer, contents", GRPC, _infer("contents")),
    Call("infer, raw", GRPC, _infer("raw")),
]  # fmt: skip
