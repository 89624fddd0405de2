"""The records that move: a request, an answer, what differs between two answers, a result."""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Literal

from flambeau.protocol.strict import StrictModel

Headers = tuple[tuple[str, str], ...]
"""Names in lower case, and values, in order; a name may be repeated."""

Kind = Literal["status", "header", "body", "no answer"]
Outcome = Literal["equal", "equal by the rules", "different", "not compared"]

PREDICTING = "PUT of predictions"
_PREDICTION = re.compile(
    r"/(predictions|explanations)/[^/]+|/v1/models/[^/:]+:(predict|explain)$"
    r"|/v2/models/[^/]+(/versions/[^/]+)?/(infer|explain)$"
)
STATUSES = range(100, 1000)
"""Status codes of answers that are captured and compared."""
MAX_BODY_BYTES = 64 * 2**20
"""Largest body of a request that is captured or replayed."""


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer of a server, read whole.

    Attributes:
        status: status code.
        headers: all of its headers.
        body: body, without the framing of chunks, but with its content-encoding.
        seconds: from the first byte of the request that was written to the last that was read.
    """

    status: int
    headers: Headers
    body: bytes
    seconds: float

    def header(self, name: str) -> str:
        """Returns the values of a header, joined by commas; empty if there is none."""
        return ", ".join(value for found, value in self.headers if found == name)


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """A request to send.

    Attributes:
        number: its place among the requests, from 1.
        name: its name in the report.
        method: method, in upper case.
        path: path with the query, as it is sent.
        headers: its headers, without those of one connection.
        body: body.
        answer: the answer that was recorded with it, or None.
    """

    number: int
    name: str
    method: str
    path: str
    headers: Headers
    body: bytes
    answer: Answer | None

    @property
    def act(self) -> str:
        """Its method; `PREDICTING` for a PUT that changes nothing: a prediction of TorchServe."""
        is_prediction = self.method == "PUT" and _PREDICTION.match(self.path.partition("?")[0])
        return PREDICTING if is_prediction else self.method


class Difference(StrictModel):
    """One difference between two answers."""

    kind: Kind
    place: str
    """Name of a header, path within a JSON body, or place in another one."""
    old: str
    new: str


class Result(StrictModel):
    """The result of one request; a line of the journal."""

    number: int
    name: str
    outcome: Outcome
    old_status: int = 0
    """Status of the old server's answer; 0 without one."""
    new_status: int = 0
    old_ms: float = 0.0
    new_ms: float = 0.0
    differences: tuple[Difference, ...] = ()
    """The first ones."""
    count: int = 0
    """Number of all differences."""
    largest: float = 0.0
    """Largest absolute difference of two finite numbers, within the tolerance or not."""
    by_rules: tuple[str, ...] = ()
    """Rules without which the answers would differ: `tolerance`, `ids and times`."""

    @property
    def kinds(self) -> Counter[str]:
        """Kinds of its differences, each counted once."""
        return Counter({difference.kind for difference in self.differences})
