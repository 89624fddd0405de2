"""`make bench-train`: our training loop beside the same loop written bare, and Lightning Fabric's.

In: nothing; the data is made from a seed. Out: CPU and wall time of a step by each loop, ours over
the others', peak memory of a process for each loop, and what lies between two steps, printed and
written to `bench/results/train.json` and `docs/performance.md`.

All loops of a network run in one process in turns, in the environment that Fabric is installed
into, so that one interpreter and one torch are behind each ratio. CPU times are compared turn by
turn, and the median counts; by the wall clock, the least disturbed steps of the least disturbed
turns.
"""

import argparse
import json
import subprocess
from statistics import median
from typing import Any

from bench.peers.environment import Environment
from bench.peers.flambeau_peer import ROOT
from bench.results_file import write_results
from bench.training_loops import TASKS
from bench.verdicts import Verdict

FABRIC = "lightning-fabric==2.6.6"
"""2.6.2 and 2.6.3 of Lightning were not made by its authors: never take those."""
OUR_NEEDS = ("pydantic", "pyyaml", "rich", "obstore")
LOOPS = ("ours", "bare", "fabric")
EPOCHS = {"tiny-mlp": 2, "cnn": 1}
TARGETS = {"tiny-mlp": 1.10, "cnn": 1.03}
MEMORY_TARGET = 1.01
"""No higher: two processes that do the same differ by a hundredth."""
PROCESSES = 5
"""Whose median peak memory counts."""
CLIPS = {"clip": "gradients clipped", "no-clip": "not clipped"}
TIMEOUT_S = 1800


def main() -> None:
    """Installs, measures and prints."""
    given = _arguments()
    environment = Environment("lightning-fabric", (FABRIC, *OUR_NEEDS))
    version = environment.install()
    figures: dict[str, Any] = {}
    verdicts: list[Verdict] = []
    for name in given.models:
        for clip, words in CLIPS.items():
            asked = (name, clip, str(EPOCHS[name]))
            found = _run(environment.python, "times", *asked, str(given.rounds), *LOOPS)
            if not found["same_weights"]:
                raise SystemExit(f"{name}: the loops ended with different weights")
            figures[f"{name}, {clip}"] = found["loops"]
            verdicts += _of_times(f"{name}, {words}", TARGETS[name], found["loops"])
            print("\n".join(verdict.line() for verdict in verdicts[-5:]), flush=True)
        peaks = {loop: _peak_mebibytes(environment.python, name, loop) for loop in LOOPS}
        figures[f"{name}, memory"] = peaks
        what = f"{name}: ours ÷ bare, peak memory of a process"
        verdicts.append(_at_most(what, peaks["ours"] / peaks["bare"], MEMORY_TARGET))
    figures["versions"] = {"lightning-fabric": version}
    write_results("train", figures, verdicts)


def _of_times(what: str, target: float, loops: dict[str, Any]) -> list[Verdict]:
    def over(other: str, clock: str) -> float:
        if clock == "wall_us":  # the turn that was least disturbed
            return float(min(loops["ours"][clock]) / min(loops[other][clock]))
        pairs = zip(loops["ours"][clock], loops[other][clock], strict=True)
        return float(median(ours / theirs for ours, theirs in pairs))

    return [
        _at_most(f"{what}: ours ÷ bare, CPU of a step", over("bare", "cpu_us"), target),
        _at_most(f"{what}: ours ÷ bare, wall clock", over("bare", "wall_us"), target),
        _at_most(f"{what}: ours ÷ Fabric, CPU of a step", over("fabric", "cpu_us"), 1.0),
        _at_most(f"{what}: ours ÷ Fabric, wall clock", over("fabric", "wall_us"), 1.0),
        _at_most(
            f"{what}: share of time between a step and the next forward pass, data and all",
            loops["ours"]["between_steps"],
            max(0.05, loops["bare"]["between_steps"]),
        ),
    ]


def _peak_mebibytes(python: str, name: str, loop: str) -> float:
    asked = ("memory", name, "clip", "1", "1", loop)
    return float(median(_run(python, *asked)["peak_mebibytes"] for _ in range(PROCESSES)))


def _at_most(what: str, value: float, target: float) -> Verdict:
    return Verdict(what=what, value=value, bound="at most", target=target)


def _run(python: str, *asked: str) -> dict[str, Any]:
    """What `bench.training_loops` prints, in a process of its own."""
    argv = (python, "-m", "bench.training_loops", *asked)
    done = subprocess.run(
        argv, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(argv)} failed:\n{done.stderr}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.train", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=7, help="turns of each loop")
    return parser.parse_args()


if __name__ == "__main__":
    main()
