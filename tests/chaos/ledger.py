"""The ledger: requests, responses, and a check that each response came once and was correct.

Pure. In: every request as it is sent, every response. Out: violations.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

NAMED = {
    500: ("dead letters",),
    503: ("unreachable", "at present", "not ready", "shutting down", "limit", "no memory left",
          "would need", "estimated time", "not served"),
    504: ("reached its deadline",),
}  # fmt: skip
"""Errors allowed after a death: by HTTP status, required parts of the message."""


@dataclass(slots=True)
class Asked:
    """One request.

    Attributes:
        expected: correct value; None if an error is correct.
        values: values of the success responses.
        errors: error responses: status and message.
        cut_off: lost connections before the response, and whether a gateway had been killed then.
    """

    expected: float | None
    values: list[float] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)
    cut_off: list[bool] = field(default_factory=list)


class Ledger:
    """All requests of one run, by their ids.

    Args:
        named: errors that are allowed; see `NAMED`.
    """

    def __init__(self, named: Mapping[int, Sequence[str]] = NAMED) -> None:
        self._named = named
        self._asked: dict[str, Asked] = {}
        self._unknown: list[str] = []

    def asked(self, request_id: str, expected: float | None) -> None:
        """Records a request before it is sent."""
        assert request_id not in self._asked
        self._asked[request_id] = Asked(expected)

    def answered(self, request_id: str, value: float) -> None:
        """Records a success response."""
        self._of(request_id).values.append(value)

    def refused(self, request_id: str, status: int, message: str) -> None:
        """Records an error response."""
        self._of(request_id).errors.append((status, message))

    def cut_off(self, request_id: str, gateway_killed: bool) -> None:
        """Records a connection that ended before the response."""
        self._of(request_id).cut_off.append(gateway_killed)

    def counts(self) -> Counter[str]:
        """Counts requests by outcome."""
        found: Counter[str] = Counter()
        for asked in list(self._asked.values()):  # other threads send meanwhile
            if asked.values:
                found["answered"] += 1
            elif asked.errors:
                found[f"{asked.errors[0][0]}"] += 1
            else:
                found["cut off" if asked.cut_off else "open"] += 1
        return found

    def broken(self) -> list[str]:
        """Returns every violated guarantee, one line each."""
        found = [f"'{request_id}': an answer nobody asked for" for request_id in self._unknown]
        for request_id, asked in self._asked.items():
            found += [f"'{request_id}': {fault}" for fault in self._faults(asked)]
        return found

    def _of(self, request_id: str) -> Asked:
        if request_id not in self._asked:
            self._unknown.append(request_id)
            return Asked(None)
        return self._asked[request_id]

    def _faults(self, asked: Asked) -> list[str]:
        outcomes = len(asked.values) + len(asked.errors) + len(asked.cut_off)
        faults = []
        if not outcomes:
            faults.append("lost: nothing came back")
        if outcomes > 1:
            faults.append(f"answered {outcomes} times")
        faults += [
            f"wrong: {value:g} instead of {asked.expected}"
            for value in asked.values
            if value != asked.expected
        ]
        faults += [
            f"an error without a name: {status} {message[:120]}"
            for status, message in asked.errors
            if not any(said in message for said in self._named.get(status, ()))
        ]
        faults += [
            "cut off by a gateway nobody had killed" for killed in asked.cut_off if not killed
        ]
        return faults
