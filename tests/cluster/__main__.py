"""`make e2e-cluster`. Prints its seed first; `--seed` repeats the choices."""

import argparse
import random
import signal
import sys

from tests.cluster.rollout import run_cluster, why_no_cluster
from tests.fixtures.redis_servers import FLAVOURS

SHOWN = 20
SKIPPED = 77
"""Exit code of a skipped run, as in automake's tests."""


def main() -> int:
    """Runs the cluster, and prints the verdict. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--flavour", choices=FLAVOURS, default="redis")
    given = parser.parse_args()
    if reason := why_no_cluster():
        print(f"skipped, and nothing is proven: no cluster can be made here: {reason}")
        return SKIPPED
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends all it started
    print(f"seed {given.seed}, {given.flavour}", flush=True)
    verdict = run_cluster(given.seed, given.flavour)
    print(verdict.ledger.table())
    print(f"jobs: {dict(verdict.jobs)}\ntraining job: {verdict.training}")
    for line in verdict.complaints[:SHOWN]:
        print(f"BROKEN {line}")
    if verdict.complaints:
        print(f"{len(verdict.complaints)} promises broken")
        return 1
    print("no call failed, every answer was right, every job was done once")
    return 0


if __name__ == "__main__":
    sys.exit(main())
