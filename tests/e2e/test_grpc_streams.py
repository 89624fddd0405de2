"""ModelStreamInfer with third-party clients, on a server of every shape."""

import threading
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.conftest import SHAPES
from tests.e2e.grpc_calls import raw_request
from tests.e2e.stream_models import stream_server
from tests.fixtures.misbehaving_models import WIDTH
from tests.fixtures.redis_servers import until_true
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.triton_client import Inputs, TritonAnswer, TritonClient, TritonError
from tests.fixtures.triton_messages import GRPCInferenceServiceStub, pb

TIMEOUT_S = 60.0
DOES_NOT_TAKE = "model 'count' version 1 does not take this input"


@pytest.fixture(scope="module")
def server(shape: str, folder: Path) -> Iterator[ServerProcess]:
    with stream_server(SHAPES[shape], folder / "store") as server:
        yield server


@pytest.fixture
def stub(server: ServerProcess) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield GRPCInferenceServiceStub(channel)


def x(value: float) -> Inputs:
    return {"x": np.full((1, WIDTH), value, np.float32)}


def asked(model: str, value: float, id: str = "") -> Any:
    return raw_request(model, {"x": ("FP32", np.full((1, WIDTH), value, np.float32))}, id=id)


def said(text: bytes, times: int, id: str = "") -> Any:
    request = pb.ModelInferRequest(model_name="say", id=id)
    request.inputs.add(name="text", datatype="BYTES", shape=[1])
    request.inputs.add(name="times", datatype="INT32", shape=[1])
    raw = (len(text).to_bytes(4, "little") + text, times.to_bytes(4, "little"))
    request.raw_input_contents.extend(raw)
    return request


def told(found: list[TritonAnswer | TritonError]) -> list[tuple[str, object]]:
    """Returns the id of each answer, and its first number; the message of each error."""
    return [
        ("error", one.message)
        if isinstance(one, TritonError)
        else (one.id, float(one.outputs["y"][0, 0]) if one.outputs else "end")
        for one in found
    ]


@pytest.mark.parametrize("kind", ["grpc", "grpc.aio"])
def test_answers_of_tritonclient(server: ServerProcess, kind: str) -> None:
    with TritonClient(kind, server.grpc) as client:
        found = client.stream(
            *[("double", x(n), {"request_id": f"d{n}"}) for n in range(4)],
            ("nowhere", x(1), {"request_id": "bad"}),
            ("double", x(9), {"request_id": "last"}),
        )
        one, none = found[0], client.stream()
    assert told(found) == [
        ("d0", 0.0), ("d1", 2.0), ("d2", 4.0), ("d3", 6.0),
        ("error", "model 'nowhere' is not served (known: count, double, endless, say)"),
        ("last", 18.0),
    ]  # fmt: skip
    assert none == []
    assert isinstance(one, TritonAnswer)
    assert one.parameters == {"triton_final_response": True}


@pytest.mark.parametrize("kind", ["grpc", "grpc.aio"])
def test_any_number_of_answers(server: ServerProcess, kind: str) -> None:
    # The asyncio client has an argument for it in newer versions only.
    wants_end = {"enable_empty_final_response": True}
    ends = [("no", "end")], [("one", "end")]
    if kind == "grpc.aio":
        wants_end, ends = {}, ([], [])
    with TritonClient(kind, server.grpc) as client:
        found = client.stream(
            ("count", x(0), {"request_id": "none"}),
            ("count", x(0), {"request_id": "no", **wants_end}),
            ("count", x(1), {"request_id": "one", **wants_end}),
            ("count", x(3), {"request_id": "many"}),
            ("count", x(-1), {"request_id": "wrong"}),
            ("count", x(60), {"request_id": "late"}),
        )
    late = [("late", float(n)) for n in range(50)]
    failed = found.pop()
    assert told(found) == [
        *ends[0], ("one", 0.0), *ends[1], ("many", 0.0), ("many", 1.0), ("many", 2.0),
        ("error", f"{DOES_NOT_TAKE}: the count is negative; send 0 or more"), *late,
    ]  # fmt: skip
    assert isinstance(failed, TritonError)
    assert "fifty" in failed.message


def test_more_requests_than_a_stream_has_in_flight(server: ServerProcess) -> None:
    with TritonClient("grpc", server.grpc) as client:
        found = client.stream(*[("double", x(n), {"request_id": str(n)}) for n in range(1000)])
    assert told(found) == [(str(n), 2.0 * n) for n in range(1000)]


def test_large_messages(stub: Any) -> None:
    """They are more than the window of a stream, and than what it has in flight."""
    texts = [bytes([n]) * 3_000_000 for n in range(16)]
    requests = [said(text, 1, id=str(n)) for n, text in enumerate(texts)]
    found = [one.infer_response for one in stub.ModelStreamInfer(iter(requests))]
    assert [one.raw_output_contents[0][4:] for one in found] == texts


def test_strict_stream_ends_with_the_first_error(stub: Any) -> None:
    requests = iter([asked("double", 1, "a"), asked("nowhere", 1, "b"), asked("double", 2, "c")])
    call = stub.ModelStreamInfer(requests, metadata=[("triton_grpc_error", "true")])
    assert next(call).infer_response.id == "a"
    with pytest.raises(grpc.RpcError) as caught:
        list(call)
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


def test_cancel_ends_the_model_s_work(folder: Path, stub: Any) -> None:
    ended = folder / "ended"
    held = threading.Event()

    def requests() -> Iterator[Any]:
        yield asked("endless", 1, "e")
        held.wait(TIMEOUT_S)

    call = stub.ModelStreamInfer(requests())
    assert [one.infer_response.id for one in islice(call, 100)] == ["e"] * 100
    assert not ended.exists()
    call.cancel()
    held.set()
    until_true(ended.exists)


def test_unary_call_of_a_decoupled_model_is_refused(stub: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(asked("count", 2))
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert "takes exactly one answer" in str(caught.value.details())


def test_shutdown_answers_what_was_accepted_and_ends_streams(tmp_path: Path) -> None:
    """Also of a stream whose caller says no more, and goes on listening."""
    (tmp_path / "store").mkdir()
    held = threading.Event()

    def requests(*first: Any) -> Iterator[Any]:
        yield from first
        held.wait(TIMEOUT_S)

    with stream_server(running_server, tmp_path / "store") as server:
        with grpc.insecure_channel(server.grpc) as channel:
            stub = GRPCInferenceServiceStub(channel)
            idle = stub.ModelStreamInfer(requests(asked("double", 1, "a")))
            busy = stub.ModelStreamInfer(requests(asked("count", 40, "c")))
            assert next(idle).infer_response.id == "a"
            assert next(busy).infer_response.id == "c"
            server.ask_to_stop()
            assert [next(busy).infer_response.id for _ in range(39)] == ["c"] * 39
            for call in (busy, idle):
                with pytest.raises(grpc.RpcError) as ended:
                    next(call)
                assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            held.set()
        assert server.wait() == 0
