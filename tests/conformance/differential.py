"""Sends the same generated requests to Triton and to ours, and explains each difference.

In: a live Triton, and our server with `compat: triton`. Out: the number of equal answers, and of
differences by their explanation. A difference without one is a fault.

Compared: the status, and the body: outputs by name, datatype, shape and value, or the message.
"""

import http.client
import json
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np

from flambeau.protocol.tensors import DATATYPES, decode_raw
from protos import open_inference_pb2 as pb
from tests.conformance.generated import HEADER, Asked, spoiled, valid

TIMEOUT_S = 20.0
SPOILED = 0.5
"""Part of the requests that have a fault."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in a form that does not depend on the protocol."""

    code: str
    """HTTP status, or name of the gRPC status."""
    message: str = ""
    id: str = ""
    outputs: tuple[tuple[str, str, tuple[int, ...], tuple[Any, ...]], ...] = ()

    @property
    def is_error(self) -> bool:
        """True for a refusal."""
        return self.code not in ("200", "OK")


@dataclass(slots=True)
class Compared:
    """The result of a run."""

    equal: int = 0
    explained: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)


Explains = Callable[[Asked, Answer, Answer], bool]
"""True if it explains the difference of Triton's answer and of ours."""


def _is_read_exactly_here(asked: Asked, theirs: Answer, ours: Answer) -> bool:
    """True if ours are the numbers that were sent as text, and theirs nearly so."""
    if not (asked.over_rest and theirs.code == ours.code == "200"):
        return False
    sent = asked.inputs[0][2].ravel()
    for (_, datatype, _, first), (*_, second) in zip(theirs.outputs, ours.outputs, strict=True):
        if first != second and (
            datatype != "FP64"
            or not np.array_equal(np.array(second, np.float64), sent)
            or not np.allclose(np.array(first, np.float64), sent, rtol=1e-15, atol=0)
        ):
            return False
    return True


EXPLANATIONS: dict[str, Explains] = {
    "Triton's JSON parser may miss the last digit of FP64": _is_read_exactly_here,
    "what the client did wrong is 400 here, also where Triton says 500": (
        lambda asked, theirs, ours: theirs.code == "500" and ours.code == "400"
    ),
    "the words for elements that do not fit the shape are ours": (
        lambda asked, theirs, ours: (
            asked.fault == "too few elements" and theirs.is_error and theirs.code == ours.code
        )
    ),
    "data that is nested unlike its shape is refused; Triton ignores how it is nested": (
        lambda asked, theirs, ours: (
            asked.form == "nested" and asked.fault == "shape of more" and theirs.code == ours.code
        )
    ),
    "an unordered set in Triton: the names it got come in any order": (
        lambda asked, theirs, ours: (
            "inputs but got" in theirs.message and "inputs but got" in ours.message
        )
    ),
    "messages repeat only ids that are printable ASCII": (
        lambda asked, theirs, ours: (
            not asked.id.isascii()
            and theirs.message == ours.message.replace("<id_unknown>", asked.id)
        )
    ),
}  # fmt: skip
"""Differences on purpose, each with its reason; docs/reference/protocols.md tells clients."""


PATHS: dict[str, str] = {
    "/v2/health/live": "", "/v2/health/ready": "",
    "/v2": "the version is ours, and the extensions are those that work",
    "/v2/": "Triton does not know the path that the protocol's OpenAPI has",
    "/v2/models/linear": "the platform is the artifact's, and there are properties",
    "/v2/models/linear/versions/1": "the platform is the artifact's, and there are properties",
    "/v2/models/nope": "", "/v2/models/linear/versions/9": "", "/v2/models/nope/versions/9": "",
    "/v2/models/nope/ready": "an unknown model is 404 in every call; Triton says 400 here",
    "/v2/models/linear/infer": "the words of a wrong method are ours",
    "/v2/nowhere": "the words of an unknown path are ours",
}  # fmt: skip
"""Paths of GET, with the reason for which the answers differ; empty where they do not."""
_BODILESS = ("/v2/health/", "/ready")
"""Paths whose success has no body in Triton; clients look at the status."""


def compare_paths(theirs: "Clients", ours: "Clients", found: Compared) -> None:
    """Compares the answers to GET; a difference that is expected and does not come is a fault."""
    for path, reason in PATHS.items():
        first, second = theirs.get(path), ours.get(path)
        if first[0] == second[0] == 200 and any(part in path for part in _BODILESS):
            first = second
        if (first == second) == bool(reason):
            found.unexplained.append(f"GET {path}: Triton {first}, ours {second}; {reason}")
        elif reason:
            found.explained[f"GET {path}: {reason}"] += 1
        else:
            found.equal += 1


def compare(theirs: "Clients", ours: "Clients", seed: int, count: int) -> Compared:
    """Compares the answers to generated requests, and to GET."""
    chance, found = random.Random(seed), Compared()
    compare_paths(theirs, ours, found)
    for number in range(count):
        asked = valid(chance)
        if chance.random() < SPOILED:
            asked = spoiled(chance, asked)
        first, second = theirs.ask(asked), ours.ask(asked)
        if first == second:
            found.equal += 1
            continue
        reasons = (why for why, explains in EXPLANATIONS.items() if explains(asked, first, second))
        if why := next(reasons, ""):
            found.explained[why] += 1
        else:
            found.unexplained.append(
                f"seed {seed}, request {number}, {asked.model} {asked.form} {asked.fault}: "
                f"Triton {str(first)[:400]}, ours {str(second)[:400]}"
            )
    return found


class Clients:
    """Asks one server over both protocols.

    Args:
        address_http: host:port.
        address: host:port of gRPC.
    """

    def __init__(self, address_http: str, address: str) -> None:
        self._http = address_http
        self._channel = grpc.insecure_channel(address)
        self._infer = self._channel.unary_unary(
            "/inference.GRPCInferenceService/ModelInfer", None, None
        )

    def close(self) -> None:
        """Closes the channel."""
        self._channel.close()

    def ask(self, asked: Asked) -> Answer:
        """Returns the answer to a request."""
        return self._rest(asked) if asked.over_rest else self._grpc(asked)

    def get(self, path: str) -> tuple[int, Any]:
        """Returns the status of GET, and its document."""
        status, _, told = self._exchange("GET", path, b"", {})
        return status, json.loads(told or b"null")

    def _exchange(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, int, bytes]:
        """Returns the status, the length of the JSON, and the body of an answer."""
        connection = http.client.HTTPConnection(self._http, timeout=TIMEOUT_S)
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            told = reply.read()
            return reply.status, int(reply.headers.get(HEADER) or len(told)), told
        finally:
            connection.close()

    def _rest(self, asked: Asked) -> Answer:
        status, length, told = self._exchange("POST", asked.path, *asked.body())
        document = json.loads(told[:length])
        if status != 200:
            return Answer(str(status), document["error"])
        outputs, position = [], length
        for output in document["outputs"]:
            shape, datatype = output["shape"], output["datatype"]
            if "data" in output:
                flat = output["data"]
            else:
                end = position + output["parameters"]["binary_data_size"]
                flat = _plain(decode_raw(datatype, shape, told[position:end]))
                position = end
            outputs.append(_output(output["name"], datatype, shape, flat))
        return Answer("200", "", document.get("id", ""), tuple(outputs))

    def _grpc(self, asked: Asked) -> Answer:
        try:
            told = self._infer(asked.message().SerializeToString(), timeout=TIMEOUT_S)
        except grpc.RpcError as error:
            return Answer(error.code().name, error.details() or "")
        answer = pb.ModelInferResponse.FromString(told)
        outputs = [
            _output(o.name, o.datatype, list(o.shape), _plain(decode_raw(o.datatype, o.shape, raw)))
            for o, raw in zip(answer.outputs, answer.raw_output_contents, strict=True)
        ]
        return Answer("OK", "", answer.id, tuple(outputs))


def _plain(array: Any) -> list[Any]:
    found = array.ravel().tolist()
    return [x.decode() for x in found] if array.dtype.hasobject else found


def _output(
    name: str, datatype: str, shape: list[int], flat: list[Any]
) -> tuple[str, str, tuple[int, ...], tuple[Any, ...]]:
    """Returns an output whose numbers are those of its datatype, whatever text they came from."""
    if DATATYPES[datatype].kind == "f":
        flat = [repr(x) for x in np.array(flat, DATATYPES[datatype]).tolist()]
    return name, datatype, tuple(shape), tuple(flat)
