"""Figures of the peers, and their medians over the rounds. Pure.

A *figure* belongs to one server, model, form and number of clients; a *start* to one server and
model. Each holds one value for each round.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from bench.peers.peer import Form


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One measurement under load, or the medians of several."""

    server: str
    model: str
    form: Form
    clients: int
    requests_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    """User and system time of all processes of the server for each answered request."""
    client_cpu_us: float
    """The same of the load generator."""
    errors: int
    """Failed requests; their sum for several measurements."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """One start of a server, or the medians of several."""

    server: str
    model: str
    cold_start_s: float
    """From the start of the process to the first right answer."""
    resident_mib: float
    """PSS of all processes of the server after the load."""


def median_figures(figures: Iterable[Figure]) -> list[Figure]:
    """Returns one figure for each (server, model, form, clients), in order of first appearance."""
    groups: dict[tuple[str, str, Form, int], list[Figure]] = defaultdict(list)
    for figure in figures:
        groups[figure.server, figure.model, figure.form, figure.clients].append(figure)
    return [
        Figure(
            server=server,
            model=model,
            form=form,
            clients=clients,
            requests_per_second=median(f.requests_per_second for f in group),
            p50_ms=median(f.p50_ms for f in group),
            p99_ms=median(f.p99_ms for f in group),
            cpu_us=median(f.cpu_us for f in group),
            client_cpu_us=median(f.client_cpu_us for f in group),
            errors=sum(f.errors for f in group),
        )
        for (server, model, form, clients), group in groups.items()
    ]


def median_starts(starts: Sequence[Start]) -> list[Start]:
    """Returns one start for each (server, model), in order of first appearance."""
    groups: dict[tuple[str, str], list[Start]] = defaultdict(list)
    for start in starts:
        groups[start.server, start.model].append(start)
    return [
        Start(
            server=server,
            model=model,
            cold_start_s=median(s.cold_start_s for s in group),
            resident_mib=median(s.resident_mib for s in group),
        )
        for (server, model), group in groups.items()
    ]
