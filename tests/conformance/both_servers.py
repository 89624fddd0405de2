"""The same calls of both servers, in the same order; answers in a form that can be compared.

In: scripts, each of one or more calls. Out: a row of the table for each. Where answers are expected
to differ, a reason says why; if they do not, that is a fault, too.
"""

import base64
import http.client
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import grpc
from google.protobuf.json_format import MessageToDict

from tests.conformance.calls import Row
from tests.fixtures.triton_messages import GRPCInferenceServiceStub, pb

TIMEOUT_S = 60.0
SHOWN = 600


class Both:
    """Clients of one of the servers.

    Args:
        address_http: host:port.
        address: host:port of gRPC.
    """

    def __init__(self, address_http: str, address: str) -> None:
        self._http = address_http
        self._channel = grpc.insecure_channel(address)
        self._stub = GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def rest(self, method: str, path: str, document: Any = None) -> tuple[int, Any]:
        """Returns the status of a call, and its document; None for an empty body."""
        status, told = self._exchange(method, path, document)
        return status, json.loads(told or b"null")

    def events(self, path: str, document: Any) -> tuple[int, Any]:
        """Returns the status of a stream of events, and each; or the document of an error."""
        status, told = self._exchange("POST", path, document)
        if not told.startswith(b"data: "):
            return status, json.loads(told or b"null")
        events = [one for one in told.split(b"\n\n") if one]
        return status, [json.loads(one.removeprefix(b"data: ")) for one in events]

    def _exchange(self, method: str, path: str, document: Any) -> tuple[int, bytes]:
        body = b"" if document is None else json.dumps(document).encode()
        connection = http.client.HTTPConnection(self._http, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def grpc(self, call: str, message: Any = None, **values: Any) -> tuple[str, Any]:
        """Returns the status of a unary call, and its message as a document, or its details."""
        asked = getattr(pb, f"{call}Request")(**values) if message is None else message
        try:
            answer = getattr(self._stub, call)(asked, timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return error.code().name, error.details()
        return "OK", document_of(answer)

    def stream(self, *messages: Any, metadata: Sequence[tuple[str, str]] = ()) -> list[Any]:
        """Returns what came on one stream: messages as documents, and the status at its end."""
        found: list[Any] = []
        try:
            for answer in self._stub.ModelStreamInfer(
                iter(messages), timeout=TIMEOUT_S, metadata=metadata
            ):
                found.append(document_of(answer))
        except grpc.RpcError as error:
            return [*found, (error.code().name, error.details())]
        return [*found, "OK"]


def document_of(message: Any) -> Any:
    """Returns a message as a document, with bytes in base64."""
    return MessageToDict(message, preserving_proto_field_name=True)


def raw_of(document: Any, place: int = 0) -> bytes:
    """Returns a raw output of an answer's document."""
    return base64.b64decode(document["raw_output_contents"][place])


class Script(NamedTuple):
    """Calls whose answers are compared."""

    call: str
    protocol: str
    ask: Callable[[Both], Any]


Reasons = Mapping[str, Sequence[str]]
"""By reason, the names of the scripts whose answers differ."""


def compare_scripts(
    theirs: Both, ours: Both, scripts: Sequence[Script], reasons: Reasons
) -> list[Row]:
    """Runs each script on both servers; prints why answers differ."""
    rows = []
    reason_of = {call: reason for reason, calls in reasons.items() for call in calls}
    for script in scripts:
        first, second = (outcome(script, server) for server in (theirs, ours))
        reason, fault = reason_of.get(script.call, ""), ""
        if (first == second) == bool(reason):
            said = f"Triton {str(first)[:SHOWN]}, ours {str(second)[:SHOWN]}"
            fault = f"{said}; expected to differ: {reason or 'not'}"
        rows.append(Row(f"as Triton: {script.call}", script.protocol, fault))
    for reason, calls in reasons.items():
        print(f"{len(calls):6} calls differ: {reason}: {', '.join(calls)}")
    return rows


def outcome(script: Script, server: Both) -> Any:
    """Returns the answers; of calls that broke, what broke them, which equals no answer."""
    try:
        return script.ask(server)
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException) as error:
        return f"{type(error).__name__}: {error}"
