"""Calls of each protocol, and their checks against a running server.

Rule: a new call is a line of one of the lists of `inference_calls.py` and `further_calls.py`, with
a function that raises on a wrong answer.
"""

import http.client
import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import grpc
import pytest

from tests.fixtures.servers import ServerProcess
from tests.fixtures.triton_messages import GRPCInferenceServiceStub, pb

TIMEOUT_S = 30.0

REST, GRPC = "REST", "gRPC"
_FAULTS = (
    AssertionError, pytest.fail.Exception, OSError, ValueError, grpc.RpcError,
    http.client.HTTPException,
)  # fmt: skip


class Row(NamedTuple):
    """One line of the table."""

    call: str
    protocol: str
    fault: str
    """Empty for a pass."""


Check = Callable[[ServerProcess], None]


class Call(NamedTuple):
    """One call over one protocol."""

    name: str
    protocol: str
    check: Check


def rest(
    server: ServerProcess, method: str, path: str, body: bytes = b"", headers: Any = None
) -> tuple[int, bytes]:
    """Returns the status and the body of an answer."""
    connection = http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, headers or {})
        reply = connection.getresponse()
        return reply.status, reply.read()
    finally:
        connection.close()


def getting(path: str, *keys: str) -> Check:
    """Returns a check of GET: success, and a document with these keys."""

    def check(server: ServerProcess) -> None:
        status, body = rest(server, "GET", path)
        assert status == 200, (status, body[:300])
        document = json.loads(body)
        missing = [key for key in keys if key not in document]
        assert not missing, f"{body[:300]!r} lacks {missing}"

    return check


def stub_call(server: ServerProcess, name: str, request: Any) -> Any:
    """Returns the response of a unary call."""
    with grpc.insecure_channel(server.grpc) as channel:
        return getattr(GRPCInferenceServiceStub(channel), name)(request, timeout=TIMEOUT_S)


def calling(call: str, field: str = "", **values: Any) -> Check:
    """Returns a check of a unary call with these values: success, and a field that is not empty."""

    def check(server: ServerProcess) -> None:
        answer = stub_call(server, call, getattr(pb, f"{call}Request")(**values))
        assert not field or getattr(answer, field), answer

    return check


def check_all(server: ServerProcess, calls: Iterable[Call]) -> list[Row]:
    """Checks each call; a fault is the message of what its check raised."""
    rows = []
    for call in calls:
        try:
            call.check(server)
        except _FAULTS as error:
            rows.append(Row(call.name, call.protocol, f"{type(error).__name__}: {error}"[:300]))
        else:
            rows.append(Row(call.name, call.protocol, ""))
    return rows
