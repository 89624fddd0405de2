"""`make conformance`: every call, both fuzzers, schemathesis, and a comparison with a live Triton.

Prints its seed first; `--seed` repeats the choices. Ends with call x protocol x pass.
"""

import argparse
import contextlib
import random
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.conformance import schemas
from tests.conformance.both_servers import Both, Reasons, Script, compare_scripts
from tests.conformance.calls import GRPC, REST, Row, check_all
from tests.conformance.differential import Clients, Compared, compare
from tests.conformance.further_calls import EVERY
from tests.conformance.fuzzer import Found, fuzz_grpc, fuzz_rest
from tests.conformance.live_triton import installed, running_triton
from tests.conformance.region_scripts import OBJECTS, OF_REGIONS, REGIONS
from tests.conformance.scripts import REASONS, SCRIPTS
from tests.conformance.server import MODELS, running
from tests.fixtures.servers import ServerProcess

FUZZERS: dict[str, Callable[[ServerProcess, int, float], Found]] = {
    REST: fuzz_rest,
    GRPC: fuzz_grpc,
}
AS_TRITON: dict[str, object] = {
    "compat": "triton", "model_control": "explicit", "models": list(MODELS),
    "shared_memory_objects": f"{OBJECTS}*",
}  # fmt: skip
"""Settings of the server beside Triton."""


def main() -> int:
    """Runs all of it, and prints the table. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="for each fuzzer")
    parser.add_argument("--requests", type=int, default=2000, help="sent to Triton and to ours")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--without-triton", action="store_true", help="does not compare")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends all it started
    print(f"seed {given.seed}", flush=True)
    rows: list[Row] = []
    with _served() as server:
        rows += check_all(server, EVERY)
        for protocol, fuzz in FUZZERS.items():
            found = fuzz(server, given.seed, given.seconds)
            print(f"{protocol}: {found.requests} mutated requests: {found.codes}", flush=True)
            rows.append(Row("mutated requests", protocol, "\n".join(found.faults)))
        told = schemas.run(server, given.seed, given.seconds)
        rows.append(Row("schemathesis", REST, told))
    if not given.without_triton:
        rows += _compared(given.seed, given.requests)
    print(f"\n{'call':44} {'protocol':10} pass")
    for row in rows:
        print(f"{row.call:44} {row.protocol:10} {'no' if row.fault else 'yes'}")
    faults = [row for row in rows if row.fault]
    for row in faults:
        print(f"BROKEN {row.call} over {row.protocol}: {row.fault}")
    return 1 if faults else 0


@contextlib.contextmanager
def _served(**settings: object) -> Iterator[ServerProcess]:
    with tempfile.TemporaryDirectory() as folder, running(Path(folder), **settings) as server:
        yield server


def _compared(seed: int, count: int) -> list[Row]:
    """Sends the same requests to both servers; prints how many differ, by reason."""
    environment = installed()
    if environment is None:
        return [Row("as Triton", "both", "Triton is not installed; make bench-peers does that")]
    with (
        running_triton(environment) as triton,
        _served(**AS_TRITON) as server,
    ):
        theirs, ours = Clients(triton.http, triton.grpc), Clients(server.http, server.grpc)
        with contextlib.closing(theirs), contextlib.closing(ours):
            found: Compared = compare(theirs, ours, seed, count)
        both = Both(triton.http, triton.grpc), Both(server.http, server.grpc)
        with contextlib.closing(both[0]), contextlib.closing(both[1]):
            rows = compare_scripts(*both, *_scripts())
    total = found.equal + found.explained.total() + len(found.unexplained)
    print(f"{found.equal} of {total} requests: the same answer as Triton's")
    for why, times in found.explained.most_common():
        print(f"{times:6} differ: {why}")
    return [*rows, Row("as Triton: generated", "both", "\n".join(found.unexplained[:20]))]


def _scripts() -> tuple[list[Script], Reasons]:
    """Returns the calls to compare, and why their answers differ."""
    return [*SCRIPTS, *REGIONS], {**REASONS, **OF_REGIONS}


if __name__ == "__main__":
    sys.exit(main())
