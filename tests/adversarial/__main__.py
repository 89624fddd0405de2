"""`make adversarial`: every attack in turn. Prints its seed first; `--seed` repeats the choices."""

import argparse
import random
import signal
import sys
import tempfile
from pathlib import Path

from tests.adversarial.attack import VICTIMS, all_attacks, attacks_on
from tests.adversarial.campaign import Campaign
from tests.adversarial.verdict import HEAD, Row
from tests.adversarial.victim import MIB, budget_bytes


def main() -> int:
    """Runs the attacks, and prints the table. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.adversarial", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each attack")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--only", default="", help="attacks whose names contain this")
    parser.add_argument("--list", action="store_true", help="names the attacks, and runs none")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends all it started
    attacks = [attack for attack in all_attacks() if given.only in attack.name]
    if given.list or not attacks:
        print("\n".join(attack.name for attack in attacks) or f"no attack has {given.only!r}")
        return 0 if attacks else 2
    budget = budget_bytes("open")
    print(f"seed {given.seed}, budget {budget / MIB:.0f} MiB\n{HEAD}", flush=True)
    rows: list[Row] = []
    complaints: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in VICTIMS:
            chosen = attacks_on(name, attacks, given.seed)
            campaign = Campaign(
                name, Path(folder), given.seed, given.seconds,
                lambda row: print(row.line(), flush=True),
            )  # fmt: skip
            found = campaign.run(chosen)
            rows += found
            complaints += [words for row in found for words in row.complaints(budget_bytes(name))]
    for words in complaints:
        print(f"BROKEN {words}")
    if complaints:
        return 1
    print(f"{len(rows)} attacks: every limit was kept")
    return 0


if __name__ == "__main__":
    sys.exit(main())
