"""`make chaos`: ten minutes of faults, half on each shape of a server.

Prints its seed first; `--seed` repeats the choices.
"""

import argparse
import random
import signal
import sys

from tests.chaos.chaos import Verdict, run_chaos
from tests.chaos.processes_chaos import run_processes_chaos
from tests.fixtures.redis_servers import FLAVOURS

SHOWN = 20
SPLIT, PROCESSES = "split", "processes"


def main() -> int:
    """Runs chaos, and prints the verdict. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--flavour", choices=FLAVOURS, default="valkey")
    parser.add_argument(
        "--shape", choices=(SPLIT, PROCESSES),
        help="split: gateways, Redis and workers; processes: `flambeau serve --processes`",
    )  # fmt: skip
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends all it started
    print(f"seed {given.seed}, {given.flavour}", flush=True)
    shapes = [given.shape] if given.shape else [SPLIT, PROCESSES]
    seconds = given.minutes * 60 / len(shapes)
    count = 0
    if SPLIT in shapes:
        count += _report(run_chaos(seconds, given.seed, given.flavour))
    if PROCESSES in shapes:
        count += _report(run_processes_chaos(seconds, given.seed))
    if count:
        print(f"{count} promises broken")
        return 1
    print("every request was answered once and rightly, or with a named error; no job was lost")
    return 0


def _report(verdict: Verdict) -> int:
    """Prints a verdict. Returns the number of its complaints."""
    print(f"faults: {dict(verdict.faults)}")
    print(f"requests: {dict(verdict.requests)}")
    if verdict.jobs is not None:
        print(f"jobs: {dict(verdict.jobs)}")
    print(f"answered after the last fault: {verdict.answered_at_the_end}")
    complaints = verdict.complaints()
    for line in complaints[:SHOWN]:
        print(f"BROKEN {line}")
    return len(complaints)


if __name__ == "__main__":
    sys.exit(main())
