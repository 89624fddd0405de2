"""`make chaos`: ten minutes of faults. Prints its seed first; `--seed` repeats the choices."""

import argparse
import random
import signal
import sys

from tests.chaos.chaos import run_chaos
from tests.fixtures.redis_servers import FLAVOURS

SHOWN = 20


def main() -> int:
    """Runs chaos, and prints the verdict. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--flavour", choices=FLAVOURS, default="valkey")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends all it started
    print(f"seed {given.seed}, {given.flavour}", flush=True)
    verdict = run_chaos(given.minutes * 60, given.seed, given.flavour)
    print(f"faults: {dict(verdict.faults)}")
    print(f"requests: {dict(verdict.requests)}\njobs: {dict(verdict.jobs)}")
    print(f"answered after the last fault: {verdict.answered_at_the_end}")
    complaints = verdict.complaints()
    for line in complaints[:SHOWN]:
        print(f"BROKEN {line}")
    if complaints:
        print(f"{len(complaints)} promises broken")
        return 1
    print("every request was answered once and rightly, or with a named error; no job was lost")
    return 0


if __name__ == "__main__":
    sys.exit(main())
