"""The ledger: what was asked, what was answered, and whether each answer came once and was right.

Pure. In: every request as it is sent, everything that comes back. Out: what was broken.
"""

from collections import Counter
from dataclasses import dataclass, field

NAMED = {
    500: ("dead letters",),
    503: ("out of reach", "at present", "not ready", "shutting down", "limit", "no memory left",
          "by what was measured", "not served"),
    504: ("ran out of time",),
}  # fmt: skip
"""Errors a caller may get when something dies: by HTTP status, what one of them must say."""


@dataclass(slots=True)
class Asked:
    """One request.

    Attributes:
        expected: the value that is right; None if an error is.
        values: what came back as an answer.
        errors: what came back as an error: status and message.
        cut_off: whether the connection ended first, and whether a gateway had been killed then.
    """

    expected: float | None
    values: list[float] = field(default_factory=list)
    errors: list[tuple[int, str]] = field(default_factory=list)
    cut_off: list[bool] = field(default_factory=list)


class Ledger:
    """All requests of one run, by their ids."""

    def __init__(self) -> None:
        self._asked: dict[str, Asked] = {}
        self._unknown: list[str] = []

    def asked(self, request_id: str, expected: float | None) -> None:
        """A request is about to be sent."""
        assert request_id not in self._asked
        self._asked[request_id] = Asked(expected)

    def answered(self, request_id: str, value: float) -> None:
        """An answer has come."""
        self._of(request_id).values.append(value)

    def refused(self, request_id: str, status: int, message: str) -> None:
        """An error has come."""
        self._of(request_id).errors.append((status, message))

    def cut_off(self, request_id: str, gateway_killed: bool) -> None:
        """The connection ended before anything came."""
        self._of(request_id).cut_off.append(gateway_killed)

    def counts(self) -> Counter[str]:
        """How many requests ended how."""
        found: Counter[str] = Counter()
        for asked in list(self._asked.values()):  # others are being asked meanwhile
            if asked.values:
                found["answered"] += 1
            elif asked.errors:
                found[f"{asked.errors[0][0]}"] += 1
            else:
                found["cut off" if asked.cut_off else "open"] += 1
        return found

    def broken(self) -> list[str]:
        """Every promise that was not kept, a line each."""
        found = [f"'{request_id}': an answer nobody asked for" for request_id in self._unknown]
        for request_id, asked in self._asked.items():
            found += [f"'{request_id}': {fault}" for fault in _faults(asked)]
        return found

    def _of(self, request_id: str) -> Asked:
        if request_id not in self._asked:
            self._unknown.append(request_id)
            return Asked(None)
        return self._asked[request_id]


def _faults(asked: Asked) -> list[str]:
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
        if not any(said in message for said in NAMED.get(status, ()))
    ]
    faults += ["cut off by a gateway nobody had killed" for killed in asked.cut_off if not killed]
    return faults
