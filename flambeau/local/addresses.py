"""Addresses that a server prints once it is ready, each host:port."""

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class Addresses:
    """Addresses of a server, and what it does not serve."""

    http: str
    grpc: str
    metrics: str
    served: tuple[str, ...] = ()
    """Lines about the versions that it serves: `digits 1 (onnx)`."""
    not_served: tuple[str, ...] = field(default=())
    """Lines about models that it does not serve, with the reasons."""


def read_addresses(lines: Iterable[str]) -> Addresses | None:
    """Reads lines up to the last address; None if they end before.

    Args:
        lines: standard output of `flambeau serve`.
    """
    found: dict[str, str] = {}
    served: list[str] = []
    refused: list[str] = []
    for line in lines:
        match line.split():
            case [("REST" | "gRPC" | "metrics") as name, address]:
                address = address.removeprefix("http://").removeprefix("https://")
                found[name] = address.partition("/")[0]
            case ["serving", *words]:
                served.append(" ".join(words))
            case ["NOT", *_]:
                refused.append(line.strip())
        if len(found) == 3:
            return Addresses(
                http=found["REST"],
                grpc=found["gRPC"],
                metrics=found["metrics"],
                served=tuple(served),
                not_served=tuple(refused),
            )
    return None
