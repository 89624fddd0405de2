"""HTTP at wire level: no client library between a test and the server."""

import http.client
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.message import Message
from typing import Any

from tests.fixtures.servers import ServerProcess

TIMEOUT_S = 60.0
Headers = Mapping[str, str]
Body = bytes | Iterable[bytes]


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP response."""

    status: int
    headers: Message
    body: bytes

    def json(self) -> Any:
        """Returns the body as JSON; checks its Content-Type."""
        assert self.headers["content-type"] == "application/json"
        return json.loads(self.body, parse_constant=_refuse)

    def error(self) -> str:
        """Returns the message of an error body, which must hold nothing else."""
        document = self.json()
        assert list(document) == ["error"]
        return str(document["error"])

    def outputs(self) -> dict[str, Any]:
        """Returns `data` of every output, by name."""
        assert self.status == 200, self.body
        return {output["name"]: output["data"] for output in self.json()["outputs"]}


def call(
    server: ServerProcess, method: str, path: str, body: Body = b"", headers: Headers | None = None
) -> Reply:
    """Sends one request on a new connection; an iterable body is sent chunked."""
    connection = http.client.HTTPConnection(server.http, timeout=TIMEOUT_S)
    try:
        return call_on(connection, method, path, body, headers)
    finally:
        connection.close()


def call_on(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: Body = b"",
    headers: Headers | None = None,
) -> Reply:
    """Sends one request on a reusable connection."""
    connection.request(method, path, body, dict(headers or {}))
    reply = connection.getresponse()
    return Reply(reply.status, reply.headers, reply.read())


def infer(
    server: ServerProcess,
    model: str,
    *inputs: Mapping[str, Any],
    version: str = "",
    headers: Headers | None = None,
    **fields: Any,
) -> Reply:
    """Sends an inference request in JSON; `fields` are additional keys of the document."""
    document = {"inputs": inputs, **fields}
    return post(server, infer_path(model, version), document, headers)


def post(
    server: ServerProcess, path: str, document: object, headers: Headers | None = None
) -> Reply:
    """Posts a JSON document."""
    return call(server, "POST", path, json.dumps(document).encode(), headers)


def infer_path(model: str, version: str = "") -> str:
    """Returns the URL's path of an inference."""
    return f"/v2/models/{model}{f'/versions/{version}' if version else ''}/infer"


def tensor(name: str, datatype: str, shape: Sequence[int], data: Any) -> dict[str, Any]:
    """Returns an input in JSON."""
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": data}


def linear_input(*rows: Sequence[float]) -> dict[str, Any]:
    """Returns input `x` of the linear models: rows of four."""
    return tensor("x", "FP32", [len(rows), 4], [list(row) for row in rows])


def lookup_inputs(index: int, work: int = 0) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns inputs of a `slow_lookup` model, one row."""
    return tensor("work", "INT64", [1], [work]), tensor("index", "INT64", [1], [index])


def _refuse(constant: str) -> object:
    raise AssertionError(f"{constant} is not JSON")
