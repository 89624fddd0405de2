"""Authorisation over REST and gRPC alike: both edges before a queue that echoes."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from protos import open_inference_pb2 as pb
from services.access.authenticator import UNKNOWN, Authenticator
from services.access.config import AccessSettings
from services.access.tenants import Tenants
from services.errors import DeviceError
from services.gateway.admission import Admission
from services.gateway.edges.grpc_edge import GrpcEdge
from services.gateway.edges.rest_edge import RestEdge
from services.gateway.request_accounting import RequestAccounting
from services.gateway.server_facts import ServerFacts
from services.queueing.memory_queue import Entry, MemoryQueue
from services.queueing.records import Lane
from services.readiness import Look, Readiness
from services.telemetry.metrics import Metrics
from services.wire.http1.port import HttpPort
from tests.fixtures.credentials import (
    KEY,
    keys_text,
    token,
    token_without_signature,
    write_credentials,
)
from tests.fixtures.queue_ends import echo_of
from tests.fixtures.served_directory import serving
from tests.fixtures.signatures import one_to_one
from tests.unit.wire.http_wire import Answer, Wire, make_budget, make_limits, request

SERVICE = "inference.GRPCInferenceService"
BODY = b'{"inputs":[{"name":"x","shape":[1],"datatype":"INT64","data":[1]}]}'
CODES = {200: "OK", 400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 403: "PERMISSION_DENIED",
         404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED", 503: "UNAVAILABLE"}  # fmt: skip
NOW = int(time.time())


class Echo:
    """Answers with the inputs."""

    waiting = 0

    def __init__(self) -> None:
        self.held: list[Entry] | None = None

    def accept(self, entry: Entry) -> None:
        if self.held is not None:
            self.held.append(entry)
            return
        entry.finish(echo_of(entry))

    def discard(self, entry: Entry, reason: str) -> None:
        """Forgets."""


class TellingWire(Wire):
    """Signals a response."""

    def __init__(self, port: HttpPort) -> None:
        self.told = asyncio.Event()
        super().__init__(port)

    def writelines(self, parts: Iterable[bytes]) -> None:
        super().writelines(parts)
        self.told.set()


class Place:
    """Both edges of a gateway that serves `digits` and `secret`."""

    def __init__(self, folder: Path, *grants: str, **fields: Any) -> None:
        self.folder = folder
        self.metrics = Metrics("0")
        lanes = Lane("digits", 1), Lane("secret", 1)
        directory = serving(one_to_one((), datatype="INT64"), *lanes)
        self.queue = MemoryQueue(8)
        admission = Admission(
            directory, self.queue, self.metrics, max_in_flight_requests=8, request_timeout_s=60
        )
        settings = AccessSettings(**write_credentials(folder, *grants, **fields))
        self.authenticator = Authenticator(
            settings, self.metrics.access, Tenants(self.metrics.access)
        )
        directory.is_discreet = True
        facts = ServerFacts("0", directory, admission, Readiness())
        facts.readiness.see(Look())
        edges = (admission, facts, RequestAccounting(self.metrics, directory, access_log=False))
        budget = make_budget()
        self.grpc = GrpcEdge(
            *edges,
            limits=make_limits(),
            budget=budget,
            authenticator=self.authenticator,
        )
        route = RestEdge(*edges, None, self.authenticator).route
        self.http_port = HttpPort(
            route, make_limits(max_request_bytes=10_000), self.metrics, budget
        )
        self.http_port.tick()
        self.worker = Echo()
        for lane in lanes:
            self.queue.open(lane, self.worker)
        self._socket: socket.socket | None = None

    async def rest(self, path: str, body: bytes = b"", **headers: str) -> Answer:
        """Sends a REST request on a new connection."""
        wire = TellingWire(self.http_port)
        wire.send(request(path, body, method="POST" if body else "GET", **headers))
        async with asyncio.timeout(10):
            await wire.told.wait()
        (answer,) = wire.answers()
        return answer

    async def grpc_address(self) -> str:
        """Starts the gRPC port, the first time, and returns its address."""
        if self._socket is None:
            self._socket = socket.create_server(("127.0.0.1", 0))
            await self.grpc.start(self._socket)
        return f"127.0.0.1:{self._socket.getsockname()[1]}"

    async def call(
        self, method: str, message: Any, *, service: str = SERVICE, **metadata: str
    ) -> tuple[str, str, dict[str, str]]:
        """Returns the status, the details and the trailing metadata of a call over gRPC."""
        async with grpc.aio.insecure_channel(await self.grpc_address()) as channel:
            call = channel.unary_unary(
                f"/{service}/{method}", type(message).SerializeToString, lambda data: data
            )
            items = [(name.replace("_", "-"), value) for name, value in metadata.items()]
            asked = call(message, metadata=items, timeout=10)
            code, details = await asked.code(), await asked.details()
            last = dict(await asked.trailing_metadata())
            return code.name, details, {str(name): str(value) for name, value in last.items()}

    async def infer_both_ways(self, model: str, **headers: str) -> int:
        """Returns the HTTP status; checks that gRPC gives the equivalent status and message."""
        answer = await self.rest(f"/v2/models/{model}/infer", BODY, **headers)
        code, details, _ = await self.call("ModelInfer", message_for(model), **headers)
        assert code == CODES[answer.status]
        if answer.status != 200:
            assert json.loads(answer.body)["error"] == details
        if answer.status == 401:
            assert details == UNKNOWN
            assert answer.header("www-authenticate") == "Bearer"
        return answer.status

    def refused(self, reason: str) -> float:
        """Returns the number of refusals."""
        name = "flambeau_access_refusals_total"
        return self.metrics.registry.get_sample_value(name, {"reason": reason}) or 0.0


def message_for(model: str) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="x", datatype="INT64", shape=[1])
    message.raw_input_contents.append(np.array([1], np.int64).tobytes())
    return message


@pytest.fixture
async def make_place(tmp_path: Path) -> AsyncIterator[Callable[..., Place]]:
    places = []

    def make(*grants: str, **fields: Any) -> Place:
        places.append(Place(tmp_path, *grants, **fields))
        return places[-1]

    yield make
    for place in places:
        await place.grpc.stop(0)


Make = Callable[..., Place]


async def test_right_credentials_open_what_they_are_for(make_place: Make) -> None:
    place = make_place("infer:digits*")
    for credential in (
        {"authorization": f"Bearer {KEY}"},
        {"x_api_key": KEY},
        {"authorization": f"bearer {token('infer:digits')}"},
    ):
        assert await place.infer_both_ways("digits", **credential) == 200
        assert await place.infer_both_ways("digits", **credential) == 200, "known by now"
    assert place.refused("unauthenticated") == 0


@pytest.mark.parametrize(
    "credential",
    [
        {},
        {"authorization": "Bearer flb_wrong"},
        {"authorization": "Basic Y2k6Y2k="},
        {"x_api_key": "flb_wrong"},
        {"authorization": f"Bearer {token_without_signature()}"},
        {"authorization": f"Bearer {token(aud='another')}"},
        {"authorization": f"Bearer {token(nbf=NOW + 3600)}"},
        {"authorization": f"Bearer {token(iat=NOW + 3600)}"},
        {"authorization": f"Bearer {token(exp=NOW - 3600)}"},
        {"authorization": f"Bearer {token(kid='unknown')}"},
    ],
    ids=["missing", "wrong", "basic", "wrong x-api-key", "alg none", "wrong audience",
         "not yet", "from the future", "expired", "unknown kid"],
)  # fmt: skip
async def test_wrong_credentials_are_refused_alike(
    make_place: Make, credential: dict[str, Any]
) -> None:
    place = make_place()
    assert await place.infer_both_ways("digits", **credential) == 401
    assert place.refused("unauthenticated") == 2
    for path in ("/v2", "/v2/models/digits", "/v2/models/digits/ready", "/v2/nothing"):
        assert (await place.rest(path, **credential)).status == 401
    for method, message in (
        ("ModelReady", pb.ModelReadyRequest(name="digits")),
        ("ModelMetadata", pb.ModelMetadataRequest(name="digits")),
        ("ServerMetadata", pb.ServerMetadataRequest()),
    ):
        assert (await place.call(method, message, **credential))[0] == "UNAUTHENTICATED"


async def test_two_credentials_are_refused_whichever_is_known(make_place: Make) -> None:
    place = make_place()
    wrong_bearer = {"x_api_key": KEY, "authorization": "Bearer x"}
    wrong_key = {"x_api_key": "x", "authorization": f"Bearer {KEY}"}
    for credentials in (wrong_bearer, wrong_key, wrong_key | {"x_api_key": KEY}):
        assert await place.infer_both_ways("digits", **credentials) == 400
        assert (await place.rest("/v2", b"", **credentials)).status == 400
        call = place.call("ServerMetadata", pb.ServerMetadataRequest(), **credentials)
        code, details, _ = await call
        assert code == "INVALID_ARGUMENT"
        assert "two credentials, authorization and x-api-key" in details


async def test_an_expired_key_is_refused_and_one_revoked_while_its_connection_is_known(
    make_place: Make,
) -> None:
    place = make_place()
    assert await place.infer_both_ways("digits", x_api_key=KEY) == 200
    keys = place.folder / "keys.yaml"
    keys.write_text(keys_text(expires="2020-01-01T00:00:00Z"))
    await place.authenticator.look()
    assert await place.infer_both_ways("digits", x_api_key=KEY) == 401
    keys.write_text("keys: []\n")
    await place.authenticator.look()
    assert await place.infer_both_ways("digits", x_api_key=KEY) == 401
    keys.write_text(keys_text())
    await place.authenticator.look()
    assert await place.infer_both_ways("digits", x_api_key=KEY) == 200


async def test_a_strangers_body_is_not_waited_for(make_place: Make) -> None:
    place = make_place()
    wire = Wire(place.http_port)
    wire.send(request("/v2/models/digits/infer", b"x" * 9000)[:-9000])
    (answer,) = wire.answers()
    assert (answer.status, wire.ended) == (401, True)


async def test_health_is_for_everybody(make_place: Make) -> None:
    place = make_place()
    for path in ("/v2/health/live", "/v2/health/ready", "/docs", "/openapi.json"):
        assert (await place.rest(path)).status == 200
    for method, message in (
        ("ServerLive", pb.ServerLiveRequest()),
        ("ServerReady", pb.ServerReadyRequest()),
    ):
        assert (await place.call(method, message))[0] == "OK"


async def test_a_stranger_reads_the_calls_and_a_caller_the_models_it_sees(
    make_place: Make,
) -> None:
    place = make_place("infer:digits")
    found = await place.rest("/openapi.json")
    assert b"/v2/models/{model}/infer" in found.body
    assert b"digits" not in found.body
    assert (await place.rest("/openapi.json", x_api_key="wrong")).status == 401
    assert (await place.rest("/openapi.json", authorization="Basic x")).status == 401
    found = await place.rest("/openapi.json", x_api_key=KEY)
    assert b"/v2/models/digits/infer" in found.body
    assert b"secret" not in found.body


async def test_a_model_of_others_is_as_one_that_does_not_exist(make_place: Make) -> None:
    place = make_place("infer:digits*", "manage:digits-staging")
    key: dict[str, Any] = {"x_api_key": KEY}
    answers = []
    for model in ("secret", "nothing", "digits-nothing"):
        assert await place.infer_both_ways(model, **key) == 404
        found = [
            (await place.rest(f"/v2/models/{model}{end}", **key)).body for end in ("", "/ready")
        ]
        metadata = await place.call("ModelMetadata", pb.ModelMetadataRequest(name=model), **key)
        assert metadata[0] == "NOT_FOUND"
        ready = await place.call("ModelReady", pb.ModelReadyRequest(name=model), **key)
        assert ready[0] == "OK"
        answers.append(b" ".join(found).replace(model.encode(), b"M"))
    assert answers[0] == answers[1] == answers[2]
    assert (await place.rest("/v2/models/digits", **key)).status == 200
    assert await place.infer_both_ways("digits-staging", **key) == 404
    keys = keys_text("manage:digits")
    (place.folder / "keys.yaml").write_text(keys)
    await place.authenticator.look()
    assert await place.infer_both_ways("digits", **key) == 403
    assert (await place.rest("/v2/models/digits", **key)).status == 200


async def test_who_sends_too_much_is_told_when_to_come_again(make_place: Make) -> None:
    place = make_place("infer", requests_per_s=0.1)
    key: dict[str, Any] = {"authorization": f"Bearer {KEY}"}
    path = "/v2/models/digits/infer"
    assert (await place.rest(path, BODY, **key)).status == 200
    answer = await place.rest(path, BODY, **key)
    assert answer.status == 429
    assert 8 <= int(str(answer.header("retry-after"))) <= 10
    code, details, trailing = await place.call("ModelInfer", message_for("digits"), **key)
    assert code == "RESOURCE_EXHAUSTED"
    assert "0.1 requests a second" in details
    assert 8 <= int(trailing["retry-after"]) <= 10
    assert place.refused("rate_limited") == 2
    charged = place.metrics.registry.get_sample_value(
        "flambeau_requests_total",
        {"model": "digits", "version": "1", "protocol": "grpc", "code": "RESOURCE_EXHAUSTED"},
    )
    assert not charged, "it is the caller's fault, and not the model's"
    assert (await place.rest("/v2/models/digits", **key)).status == 429


@pytest.mark.parametrize(("model", "status"), [("digits", 400), ("digits/versions/9", 404)])
async def test_what_is_wrong_counts_against_the_rate_too(
    model: str, status: int, make_place: Make
) -> None:
    place = make_place("infer", requests_per_s=0.1)
    path, wrong = f"/v2/models/{model}/infer", BODY.replace(b'"INT64"', b'"FP64"', 1)
    assert (await place.rest(path, wrong, x_api_key=KEY)).status == status
    assert (await place.rest(path, wrong, x_api_key=KEY)).status == 429


async def test_rows_are_limited_too(make_place: Make) -> None:
    place = make_place("infer", rows_per_s=2)
    body = BODY.replace(b"[1]", b"[5]", 1).replace(b'"data":[1]', b'"data":[1,2,3,4,5]')
    assert (await place.rest("/v2/models/digits/infer", body, x_api_key=KEY)).status == 200
    assert (await place.rest("/v2/models/digits/infer", body, x_api_key=KEY)).status == 429


async def test_rows_of_what_is_refused_are_not_counted(make_place: Make) -> None:
    place = make_place("infer", rows_per_s=0.1)
    path, wrong = "/v2/models/digits/infer", BODY.replace(b'"INT64"', b'"FP64"', 1)
    for _ in range(3):
        assert (await place.rest(path, wrong, x_api_key=KEY)).status == 400
    assert (await place.rest(path, BODY, x_api_key=KEY)).status == 200


@pytest.mark.parametrize(
    "method",
    [f"{SERVICE}/ModelInfer", f"{SERVICE}/ModelMetadata", "flambeau.v1.JobService/SubmitJob"],
)
async def test_unknown_caller_is_refused_before_its_message(method: str, make_place: Make) -> None:
    place = make_place("infer")
    sent = asyncio.Event()

    async def messages() -> AsyncIterator[bytes]:
        await sent.wait()
        yield b""

    async with grpc.aio.insecure_channel(await place.grpc_address()) as channel:
        call = channel.stream_unary(f"/{method}", bytes, bytes)(messages(), timeout=10)
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        sent.set()


async def test_what_is_in_flight_is_shared(make_place: Make) -> None:
    """One caller has filled the server; another comes, and it is the first that is refused."""
    place = make_place()
    place.worker.held = []
    waiting = [Wire(place.http_port) for _ in range(6)]
    for wire in waiting:
        wire.send(request("/v2/models/digits/infer", BODY, x_api_key=KEY))
    other: dict[str, Any] = {"authorization": f"Bearer {token()}"}
    wires = [Wire(place.http_port) for _ in range(2)]
    wires[0].send(request("/v2/models/digits/infer", BODY, **other))
    assert len(place.worker.held) == 7
    wires[1].send(request("/v2/models/digits/infer", BODY, x_api_key=KEY))
    (answer,) = wires[1].answers()
    assert (answer.status, b"your share of 8" in answer.body) == (503, True)
    for entry in place.worker.held[:-1]:
        entry.finish(DeviceError("lost"))
    for wire in waiting[:4]:
        wire.send(request("/v2/models/digits/infer", BODY, x_api_key=KEY))
    assert len(place.worker.held) == 11, "what is answered is not in flight any more"
    assert place.queue.unanswered == 5
