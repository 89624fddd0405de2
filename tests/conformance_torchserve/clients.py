"""Calls of one server over REST and gRPC; answers in a form that can be compared.

Rules: ids, times, processes and folders of a server are replaced by words; of the headers of an
answer, the content type and those that handlers set remain.
"""

import http.client
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import grpc

from tests.conformance_torchserve.servers import Server
from tests.fixtures.torchserve_messages import TorchServeStub, pb

TIMEOUT_S = 120.0
COMPARED_HEADERS = ("content-type", "x-own", "x-other")
_WORKER = ("id", "startTime", "pid", "memoryUsage", "gpu", "gpuUsage")
_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")


class Answer(NamedTuple):
    """One answer."""

    code: str
    """Status of HTTP, or name of the gRPC status."""
    body: Any = None
    """Document, text, or for gRPC the messages."""
    headers: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        return f"{self.code} {json.dumps(self.body, ensure_ascii=False)[:600]} {self.headers}"


class Clients:
    """Clients of one server.

    Args:
        server: its addresses.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._channels = [
            grpc.insecure_channel(at) for at in (server.grpc_inference, server.grpc_management)
        ]
        self._stubs = {
            "inference": TorchServeStub(self._channels[0], "inference"),
            "management": TorchServeStub(self._channels[1], "management"),
        }

    def close(self) -> None:
        """Closes the channels."""
        for channel in self._channels:
            channel.close()

    def rest(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        port: str = "inference",
    ) -> Answer:
        """Returns the answer to a request over HTTP."""
        connection = http.client.HTTPConnection(getattr(self._server, port), timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, dict(headers or {}))
            reply = connection.getresponse()
            told = reply.read()
        finally:
            connection.close()
        kept = {
            name.lower(): value
            for name, value in reply.getheaders()
            if name.lower() in COMPARED_HEADERS
        }
        return Answer(str(reply.status), _plain(told), tuple(sorted(kept.items())))

    def grpc(
        self, service: str, call: str, metadata: Sequence[tuple[str, str]] = (), **fields: Any
    ) -> Answer:
        """Returns the answer to a call with one message; several answers are a list."""
        name = {"Ping": "Empty"}.get(call, f"{call}Request")
        if "Predictions" in call:
            name = "PredictionsRequest"
        asked = getattr(pb, name)(**fields)
        found = []
        try:
            answer = getattr(self._stubs[service], call)(
                asked, timeout=TIMEOUT_S, metadata=metadata
            )
            if call == "StreamPredictions":
                found = [_document(one) for one in answer]
                return Answer("OK", found)
            return Answer("OK", _document(answer))
        except grpc.RpcError as error:
            return Answer(error.code().name, [*found, _plain((error.details() or "").encode())])

    def sequence(self, *asked: Mapping[str, Any]) -> Answer:
        """Returns what came on one call of StreamPredictions2."""
        messages = iter([pb.PredictionsRequest(**fields) for fields in asked])
        found: list[Any] = []
        try:
            stub = self._stubs["inference"]
            for answer in stub.StreamPredictions2(messages, timeout=TIMEOUT_S):
                found.append(_document(answer))
        except grpc.RpcError as error:
            return Answer(error.code().name, [*found, error.details()])
        return Answer("OK", found)


def _document(message: Any) -> Any:
    """Returns a message as a document: JSON in its texts is parsed."""
    found = {}
    for field, value in message.ListFields():
        if field.name == "status":
            found[field.name] = [value.code, value.message]
        elif isinstance(value, str | bytes):
            found[field.name] = _plain(value if isinstance(value, bytes) else value.encode())
        else:
            found[field.name] = value
    return found


def _plain(told: bytes) -> Any:
    """Returns bytes as a document or a text, without what differs from run to run."""
    try:
        document = json.loads(told)
    except ValueError:
        return _UUID.sub("ID", told.decode("latin-1"))
    return _same(document)


def _same(value: Any) -> Any:
    if isinstance(value, list):
        return [_same(one) for one in value]
    if isinstance(value, dict):
        return {
            name: [{k: v for k, v in one.items() if k not in _WORKER} for one in inner]
            if name == "workers" and isinstance(inner, list)
            else _same(inner)
            for name, inner in value.items()
        }
    return _UUID.sub("ID", value) if isinstance(value, str) else value
