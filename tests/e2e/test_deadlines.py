"""Client-side limits: timeouts, priorities, and disconnection.

The models run in worker processes that the tests suspend, so that queued requests stay queued.
"""

import http.client
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.grpc_calls import error_of as grpc_error_of
from tests.e2e.grpc_calls import raw_request
from tests.e2e.held_workers import held_worker
from tests.e2e.rest_calls import infer, infer_path, linear_input, tensor
from tests.fixtures.onnx_models import linear, lookup, publish
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.triton_client import Inputs, TritonClient, TritonError
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

LIMIT_MS = 100
LIMIT_US = LIMIT_MS * 1000
FAR_MS = 14_000
ROW = [1.0, 2.0, 3.0, 4.0]
HEADER = "x-request-timeout-ms"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs `lookup`, which answers at once, `single`, a row at a time, and `slow`, in some ms."""
    store = str(tmp_path_factory.mktemp("store"))
    publish(store, "lookup", lookup())
    publish(store, "single", lookup(), max_batch_size=1)
    publish(store, "slow", linear(layers=100))
    with running_server(Path(store), isolate=True, access_log=True, request_timeout_s=15) as server:
        yield server


@pytest.fixture(scope="module")
def rest(server: ServerProcess) -> Iterator[TritonClient]:
    with TritonClient("http", server.http) as client:
        yield client


@pytest.fixture(scope="module")
def over_grpc(server: ServerProcess) -> Iterator[TritonClient]:
    with TritonClient("grpc", server.grpc) as client:
        yield client


def index(value: int) -> dict[str, Any]:
    """Returns the input of a lookup, for REST without a library."""
    return tensor("index", "INT64", [1], [value])


def given(value: int) -> Inputs:
    """Returns the same for tritonclient."""
    return {"index": np.array([value])}


class Watch:
    """Rows that a model ran, and dropped requests, since its creation."""

    def __init__(self, server: ServerProcess, model: str = "lookup") -> None:
        self._server, self._model = server, model
        self._rows, self._dropped = self._read()

    def _read(self) -> tuple[float, dict[str, float]]:
        rows = self._server.metric("flambeau_batch_size_sum", model=self._model)
        dropped = {
            reason: self._server.metric(
                "flambeau_dropped_requests_total", model=self._model, reason=reason
            )
            for reason in ("cancelled", "expired", "infeasible", "failed")
        }
        return rows, dropped

    def rows(self) -> float:
        return self._read()[0] - self._rows

    def dropped(self) -> dict[str, float]:
        """Dropped requests by reason, without zeros."""
        now = self._read()[1]
        grown = {reason: now[reason] - before for reason, before in self._dropped.items()}
        return {reason: count for reason, count in grown.items() if count}


class Caller:
    """Requests one lookup, with a timeout given in one of many ways."""

    def __init__(self, server: ServerProcess, rest: TritonClient, over_grpc: TritonClient) -> None:
        self._server, self._rest, self._grpc = server, rest, over_grpc

    def over_rest(self, headers: dict[str, str], **parameters: int) -> tuple[str, str]:
        """Returns status and message of the expected error, without a client library."""
        reply = infer(self._server, "lookup", index(3), headers=headers, parameters=parameters)
        return str(reply.status), reply.error()

    def by_tritonclient_over_rest(self, **how: Any) -> tuple[str, str]:
        """Does the same with tritonclient."""
        return self._error(self._rest, how)

    def over_grpc(self, **how: Any) -> tuple[str, str]:
        """Does the same over gRPC."""
        return self._error(self._grpc, how)

    @staticmethod
    def _error(client: TritonClient, how: dict[str, Any]) -> tuple[str, str]:
        with pytest.raises(TritonError) as caught:
            client.infer("lookup", given(3), **how)
        return caught.value.status.removeprefix("StatusCode."), caught.value.message


@pytest.fixture(scope="module")
def caller(server: ServerProcess, rest: TritonClient, over_grpc: TritonClient) -> Caller:
    return Caller(server, rest, over_grpc)


LIMITS: dict[str, Callable[[Caller], tuple[str, str]]] = {
    "REST parameter": lambda c: c.by_tritonclient_over_rest(timeout=LIMIT_US),
    "REST header": lambda c: c.over_rest({HEADER: str(LIMIT_MS)}),
    "REST header with a fraction": lambda c: c.over_rest({HEADER: f"{LIMIT_MS}.25"}),
    "REST parameter below header": lambda c: c.over_rest(
        {HEADER: str(FAR_MS)}, timeout=LIMIT_US
    ),
    "REST header below parameter": lambda c: c.over_rest(
        {HEADER: str(LIMIT_MS)}, timeout=FAR_MS * 1000
    ),
    "gRPC parameter": lambda c: c.over_grpc(timeout=LIMIT_US),
    "gRPC parameter below deadline": lambda c: c.over_grpc(
        timeout=LIMIT_US, client_timeout=FAR_MS / 1000
    ),
    "gRPC deadline": lambda c: c.over_grpc(client_timeout=LIMIT_MS / 1000),
    "gRPC deadline below parameter": lambda c: c.over_grpc(
        timeout=FAR_MS * 1000, client_timeout=LIMIT_MS / 1000
    ),
}  # fmt: skip
"""Ways to set a timeout of `LIMIT_MS`."""


@pytest.mark.parametrize("way", LIMITS)
def test_what_is_out_of_time_never_reaches_the_model(
    server: ServerProcess, caller: Caller, way: str
) -> None:
    watch = Watch(server)
    with held_worker(server, "lookup", index(1)):
        status, message = LIMITS[way](caller)
        server.wait_for_metric(0, "flambeau_queue_depth", model="lookup")
    assert status == ("504" if way.startswith("REST") else "DEADLINE_EXCEEDED")
    assert "deadline" in message.lower()  # grpcio's own message for its own deadline
    assert infer(server, "lookup", index(2)).outputs() == {"value": [2]}
    assert watch.rows() == 2, "the late request ran"
    # A gRPC deadline passes on both sides at once: the faster side reports it.
    assert watch.dropped() in (
        [{"expired": 1}, {"cancelled": 1}] if way.startswith("gRPC deadline") else [{"expired": 1}]
    )


def test_time_enough_is_no_limit(caller: Caller, server: ServerProcess) -> None:
    """0 is none; and a limit is counted from when the request came, not from the last one."""
    for timeout_us in (0, FAR_MS * 1000, 2**63 - 1):
        reply = infer(server, "lookup", index(4), parameters={"timeout": timeout_us})
        assert reply.outputs() == {"value": [4]}
    for milliseconds in (str(FAR_MS), "0014000.0", "9999999999"):
        reply = infer(server, "lookup", index(4), headers={HEADER: milliseconds})
        assert reply.outputs() == {"value": [4]}


@pytest.mark.parametrize("protocol", ["REST", "gRPC"])
def test_what_cannot_make_it_is_refused_at_once(
    server: ServerProcess, over_grpc: TritonClient, protocol: str
) -> None:
    """The estimate is the measured latency; nothing waits and nothing runs."""
    watch = Watch(server, "slow")
    refusals = server.metric("flambeau_refusals_total", reason="WouldMissDeadlineError")
    if protocol == "REST":
        reply = infer(server, "slow", linear_input(ROW), parameters={"timeout": 1000})
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        message = reply.error()
    else:
        with pytest.raises(TritonError) as caught:
            over_grpc.infer("slow", {"x": np.array([ROW], np.float32)}, timeout=1000)
        assert caught.value.status == "StatusCode.RESOURCE_EXHAUSTED"
        message = caught.value.message
    found = re.search(
        r"would need an estimated ([\d.]+) ms .* its deadline leaves (?:([\d.]+) ms|no time)",
        message,
    )
    assert found, message
    assert float(found[1]) > 1.0 >= float(found[2] or 0)
    assert infer(server, "slow", linear_input(ROW)).outputs() == {"y": ROW}
    assert (watch.rows(), watch.dropped()) == (1, {})
    after = server.metric("flambeau_refusals_total", reason="WouldMissDeadlineError")
    assert after == refusals + 1


def test_closed_http_connection_is_dropped_and_counted(server: ServerProcess) -> None:
    watch = Watch(server)
    with held_worker(server, "lookup", index(1)):
        gone = http.client.HTTPConnection(server.http)
        gone.request("POST", infer_path("lookup"), json.dumps({"inputs": [index(3)]}))
        server.wait_for_metric(1, "flambeau_queue_depth", model="lookup")
        gone.close()
        server.wait_for_metric(0, "flambeau_queue_depth", model="lookup")
        assert watch.dropped() == {"cancelled": 1}
    assert infer(server, "lookup", index(2)).outputs() == {"value": [2]}
    assert watch.rows() == 2, "the abandoned request ran"


def test_cancelled_grpc_call_is_dropped_and_counted(server: ServerProcess) -> None:
    watch = Watch(server)
    with grpc.insecure_channel(server.grpc) as channel, held_worker(server, "lookup", index(1)):
        request = raw_request("lookup", {"index": ("INT64", np.array([3]))})
        running = GRPCInferenceServiceStub(channel).ModelInfer.future(request)
        server.wait_for_metric(1, "flambeau_queue_depth", model="lookup")
        running.cancel()
        server.wait_for_metric(0, "flambeau_queue_depth", model="lookup")
        assert watch.dropped() == {"cancelled": 1}
    assert running.code() is grpc.StatusCode.CANCELLED
    assert infer(server, "lookup", index(2)).outputs() == {"value": [2]}
    assert watch.rows() == 2, "the cancelled request ran"


def test_higher_priority_overtakes(server: ServerProcess) -> None:
    """A row at a time, so that the log tells in which order they were answered."""

    def by_tritonclient(kind: str, value: int, id: str, priority: int) -> None:
        address = server.http if kind == "http" else server.grpc
        with TritonClient(kind, address) as own:
            own.infer("single", given(value), request_id=id, priority=priority)

    waiting: list[tuple[str, Callable[[], Any]]] = [
        ("last", lambda: by_tritonclient("http", 1, "last", 10)),
        ("late", lambda: by_tritonclient("grpc", 2, "late", 6)),
        ("usual", lambda: infer(server, "single", index(3), id="usual")),
        ("same", lambda: infer(server, "single", index(4), id="same", parameters={"priority": 5})),
        ("early", lambda: infer(
            server, "single", index(5), id="early", parameters={"priority": 4})),
        ("first", lambda: by_tritonclient("grpc", 6, "first", 1)),
    ]  # fmt: skip
    answered = order_of_answers(server, waiting)
    assert answered == ["first", "early", "usual", "same", "late", "last"]


def test_earlier_deadline_goes_first(server: ServerProcess) -> None:
    """Within a priority; which weighs more than any deadline within its step."""

    def asking(id: str, timeout_ms: int, priority: int = 0) -> tuple[str, Callable[[], Any]]:
        parameters = {"timeout": timeout_ms * 1000, "priority": priority}
        return id, lambda: infer(server, "single", index(1), id=id, parameters=parameters)

    answered = order_of_answers(
        server,
        [
            asking("least patient, low priority", 5000, 7),
            asking("most patient", 9500),
            asking("least patient", 8000),
            asking("patient", 9000),
        ],
    )
    assert answered == ["least patient", "patient", "most patient", "least patient, low priority"]


def order_of_answers(
    server: ServerProcess, requests: list[tuple[str, Callable[[], Any]]]
) -> list[str]:
    """Sends them one after the other to a held worker; returns the ids in order of response."""
    sent: list[Future[Any]] = []
    with ThreadPoolExecutor(len(requests)) as threads:
        with held_worker(server, "single", index(0)):
            for count, (_, send) in enumerate(requests, start=1):
                sent.append(threads.submit(send))
                server.wait_for_metric(count, "flambeau_queue_depth", model="single")
        for future in sent:
            future.result()
    ids = [id for id, _ in requests]
    for id in ids:
        server.wait_for_log(message="request", request_id=id)
    logged = [log.get("request_id") for log in server.logs() if log["message"] == "request"]
    return [id for id in logged if id in ids]


BAD_TIMEOUTS = (-1, 1.5, "50", True, 2**63)
BAD_PRIORITIES = (-1, 1.5, "1", True, 11)


@pytest.mark.parametrize(
    ("name", "value"),
    [("timeout", value) for value in BAD_TIMEOUTS]
    + [("priority", value) for value in BAD_PRIORITIES],
)
def test_bad_parameter_is_named_over_both(server: ServerProcess, name: str, value: Any) -> None:
    reply = infer(server, "lookup", index(1), parameters={name: value})
    assert reply.status == 400
    assert f"parameter '{name}' must be a whole number" in reply.error()
    assert f"and is {value!r}" in reply.error()
    request = raw_request("lookup", {"index": ("INT64", np.array([1]))})
    kinds = {bool: "bool_param", str: "string_param", float: "double_param"}
    default = "uint64_param" if value == 2**63 else "int64_param"
    setattr(request.parameters[name], kinds.get(type(value), default), value)
    with grpc.insecure_channel(server.grpc) as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        assert grpc_error_of(lambda: stub.ModelInfer(request)) == (
            grpc.StatusCode.INVALID_ARGUMENT,
            reply.error(),
        )


@pytest.mark.parametrize(
    "value", ["0", "0.0", "-1", "+5", "1e3", "5 s", "0x10", "nan", "1" * 11, ""]
)
def test_bad_header_is_named(server: ServerProcess, value: str) -> None:
    reply = infer(server, "lookup", index(1), headers={HEADER: value})
    assert reply.status == 400
    assert f"{HEADER} must be a number of milliseconds above 0" in reply.error()
    assert f"and is '{value}'" in reply.error()
