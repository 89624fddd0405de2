"""`make simulate-rollouts`: how often the judge of rollouts is wrong, and how soon it is right.

Simulates rollouts of each scenario with the code that judges real ones, and all default guards.
Prints each scenario's figures and the lines they must meet, and writes them into
`docs/reference/rollouts-evidence.md` and `bench/results/rollouts.json`.
"""

import argparse
import json
import platform
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime

import numpy as np
from rich.console import Console

from bench.figures.performance_page import write_block
from bench.figures.results_file import RESULTS
from bench.figures.verdicts import (
    MISSING,
    Verdict,
    at_most,
    markdown_table,
    short,
    table,
)
from bench.rollouts.scenarios import (
    AT_ITS_LIMITS,
    FIVE_PERCENT,
    GOOD,
    GUARDS,
    SCENARIOS,
    TWENTY_TIMES,
    Scenario,
)
from bench.rollouts.shown_progress import scenario_progress
from bench.rollouts.simulation import Outcomes, simulate
from services.rollouts.evidence.e_processes import Array

KEYS = (
    "name", "rolled_back", "rolled_back_median", "rolled_back_90th_percentile", "promoted",
    "promoted_median", "unit",
)  # fmt: skip
HEAD = ("candidate", "rolled back", "median", "90th percentile", "promoted", "median", "unit")


def main() -> None:
    """Simulates all scenarios, prints their figures and writes them."""
    given = _arguments()
    found: dict[str, Outcomes] = {}
    console = Console()
    for place, scenario in enumerate(SCENARIOS):
        seed = given.seed + place
        with scenario_progress(console, f"{place + 1}/{len(SCENARIOS)}", scenario.name) as show:
            found[scenario.name] = simulate(scenario, GUARDS, given.rollouts, seed, show)
        console.print(" · ".join(scenario_row(scenario, found[scenario.name])), highlight=False)
    verdicts = lines(found)
    rows = [scenario_row(scenario, found[scenario.name]) for scenario in SCENARIOS]
    print("\n" + table(HEAD, rows) + "\n")
    print("\n".join(verdict.line() for verdict in verdicts))
    _write(verdicts, rows, given)


def lines(found: Mapping[str, Outcomes]) -> list[Verdict]:
    """Returns every figure that has a line to meet, of scenarios by name."""
    percent = 100
    twenty, five = found[TWENTY_TIMES.name].rolled_back, found[FIVE_PERCENT.name].rolled_back
    return [
        at_most(f"{GOOD.name}: rolled back", found[GOOD.name].rolled_back_share * percent, 1, "%"),
        at_most(
            f"{AT_ITS_LIMITS.name}: rolled back",
            found[AT_ITS_LIMITS.name].rolled_back_share * percent,
            1,
            "%",
        ),
        at_most(
            f"{AT_ITS_LIMITS.name}: promoted",
            found[AT_ITS_LIMITS.name].promoted_share * percent,
            1,
            "%",
        ),
        at_most(f"{FIVE_PERCENT.name}: 90th percentile", quantile(five, 0.9), 300, "pairs"),
        at_most(f"{TWENTY_TIMES.name}: median", quantile(twenty, 0.5), 2500, "requests"),
    ]


def scenario_row(scenario: Scenario, outcomes: Outcomes) -> list[str]:
    """Returns a scenario's figures as text."""
    return [
        scenario.name,
        f"{outcomes.rolled_back_share:.2%}",
        short(quantile(outcomes.rolled_back, 0.5)),
        short(quantile(outcomes.rolled_back, 0.9)),
        f"{outcomes.promoted_share:.2%}",
        short(quantile(outcomes.promoted, 0.5)),
        scenario.unit,
    ]


def quantile(ends: Array, part: float) -> float:
    """Returns a quantile of when rollouts ended; NaN if too few did."""
    found = float(np.quantile(ends, part, method="inverted_cdf"))
    return found if np.isfinite(found) else MISSING


def _write(verdicts: Sequence[Verdict], rows: list[list[str]], given: argparse.Namespace) -> None:
    now = datetime.now(UTC)
    told = f"{now.date().isoformat()}, {given.rollouts:,} rollouts a candidate, seed {given.seed}"
    head = f"| {' | '.join(HEAD)} |\n|{'---|' * len(HEAD)}"
    body = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    write_block("rollouts", f"{told}.\n\n{markdown_table(verdicts)}\n\n{head}\n{body}")
    path = RESULTS / "rollouts.json"
    document = {
        "measured": {
            "at": now.isoformat(timespec="seconds"),
            "python": platform.python_version(),
            "numpy": np.__version__,
            "rollouts": given.rollouts,
            "seed": given.seed,
        },
        "guards": GUARDS.model_dump(),
        "verdicts": [verdict.as_record() for verdict in verdicts],
        "scenarios": [
            asdict(scenario) | {"figures": dict(zip(KEYS, row, strict=True))}
            for scenario, row in zip(SCENARIOS, rows, strict=True)
        ],
    }
    path.write_text(json.dumps(document, indent=2) + "\n")
    print(f"wrote {path}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.rollouts", description=__doc__)
    parser.add_argument("--rollouts", type=int, default=10_000, help="of each scenario")
    parser.add_argument("--seed", type=int, default=7, help="of the random numbers")
    return parser.parse_args()


if __name__ == "__main__":
    main()
