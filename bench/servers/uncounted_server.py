"""`python -m bench.servers.uncounted_server serve ...`: our server without live metrics.

No setting turns metrics off, because they cost little. `bench/operate.py` measures that cost
against this server, which discards what a request, a batch and the event loop would add to counters
and histograms. The cost of computing the values remains.
"""

import contextlib
from collections.abc import Iterator
from types import ModuleType
from typing import Any

from flambeau.cli import main
from services.gateway import front
from services.gateway.request_accounting import RequestAccounting
from services.inference import server
from services.telemetry.loop_metrics import CounterChild, HistogramChild


def _nothing(*_: object) -> None:
    """Replaces a method that counts."""


@contextlib.contextmanager
def _no_samples(*_: object) -> Iterator[None]:
    """Replaces the thread that samples the event loop."""
    yield


INSTEAD: dict[type | ModuleType, dict[str, Any]] = {
    RequestAccounting: {"count": _nothing},
    CounterChild: {"inc": _nothing},
    HistogramChild: {"observe": _nothing, "observe_all": _nothing},
    front: {"sampling_lag": _no_samples},
    server: {"sampling_lag": _no_samples},
}

if __name__ == "__main__":
    for owner, names in INSTEAD.items():
        for name, instead in names.items():
            setattr(owner, name, instead)
    main()
