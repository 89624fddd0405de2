"""Calls without the right token, of servers that ask for tokens."""

from collections.abc import Iterator, Sequence
from typing import Any

from tests.conformance_torchserve.inference_scripts import Script, grpc, rest

_WITHOUT: Sequence[tuple[str, Sequence[tuple[str, str]]]] = (
    ("no token", ()),
    ("no token, protocol named", (("protocol", "gRPC"),)),
    ("wrong token", (("authorization", "Bearer x"), ("protocol", "gRPC"))),
    ("no bearer", (("authorization", "x"),)),
)
_CALLS: Sequence[tuple[str, str, dict[str, Any]]] = (
    ("inference", "Ping", {}),
    ("inference", "Predictions", {"model_name": "m", "input": {"data": b"x"}}),
    ("inference", "StreamPredictions", {"model_name": "m", "input": {"data": b"x"}}),
    ("management", "RegisterModel", {"url": "m.mar"}),
    ("management", "ScaleWorker", {"model_name": "m", "min_worker": 1}),
    ("management", "ListModels", {}),
    ("management", "DescribeModel", {"model_name": "m"}),
    ("management", "SetDefault", {"model_name": "m", "model_version": "1.0"}),
    ("management", "UnregisterModel", {"model_name": "m"}),
)
_PATHS = (
    ("inference", "GET", "/ping"),
    ("inference", "POST", "/predictions/m"),
    ("management", "GET", "/models"),
    ("management", "GET", "/token"),
    ("management", "GET", "/token?type=inference"),
)


def _tokens() -> Iterator[Script]:
    for name, metadata in _WITHOUT:
        for service, call, fields in _CALLS:
            yield grpc(f"{name}, {call}", service, call, metadata=metadata, **fields)
        headers = {key: value for key, value in metadata if key == "authorization"}
        for port, method, path in _PATHS:
            yield rest(f"{name}, {path}", method, path, headers=headers, port=port)
    yield Script(
        "no token, StreamPredictions2",
        "gRPC",
        lambda server: server.sequence({"model_name": "m", "sequence_id": "s"}),
    )


TOKENS: Sequence[Script] = tuple(_tokens())
