"""`make bench-train`: our training loop against a plain PyTorch loop and Lightning Fabric's.

In: nothing; the data is made from a seed. Out: CPU and wall time of a step in each loop, the ratio
of ours to the others, peak memory of a process for each loop, and the share of time between two
steps, printed and written to `bench/results/train.json` and `docs/reference/performance.md`.

Each loop has a process of its own, in the environment with Fabric installed. All loops run the
same steps on one core, one turn at a time, so that a slow machine slows all. A ratio is the median
over pairs of turns, and then over rounds, which have processes of their own. The bare loop runs
twice, which shows the measurement error.
"""

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from bench.figures.results_file import write_results
from bench.figures.verdicts import MISSING, Verdict
from bench.peers.environment import Environment
from bench.peers.servers.flambeau_peer import ROOT
from bench.servers.pinning import CLIENT_CORE, pinned_to
from bench.training.training_loops import CLIPS, TASKS

FABRIC = "lightning-fabric==2.6.6"
"""2.6.2 and 2.6.3 of Lightning were not released by its authors: never use those."""
OUR_NEEDS = ("pydantic", "pyyaml", "rich", "obstore")
LOOPS = {"ours": "ours", "bare": "bare", "bare again": "bare", "fabric": "fabric"}
"""Loop of `bench.training.training_loops` for each name."""
TARGETS = {"tiny-mlp": 1.10, "cnn": 1.03}
SHARE_TARGETS = {"cnn": 0.05}
"""Target share of the time between the end of a step and the next forward pass, by network."""
NO_MORE = 1.01
"""No slower and no higher: two runs of the same loop differ by a hundredth."""
KEEPS_MEMORY = {
    "GLIBC_TUNABLES": ":".join(
        f"glibc.malloc.{limit}_threshold={2**32}" for limit in ("mmap", "trim")
    )
}
"""Without it the C library returns large tensors to the system at every step of the CNN and
requests them again, a tenth of the time in one process and a fifth in another of the same loop. Our
loop sets it itself (`training.process.kept_memory`); here all have it, to compare only loops."""
WARM_UP = 1
"""Turns of a process that do not count."""
CLIPPING = {"clip": "gradients clipped", "no-clip": "not clipped"}
assert CLIPPING.keys() == CLIPS.keys()


@dataclass(slots=True)
class Measured:
    """Figures of one loop, over all rounds."""

    cpu_us: list[list[float]] = field(default_factory=list)
    """CPU time of a step, by round and turn."""
    wall_us: list[list[float]] = field(default_factory=list)
    peak_mebibytes: list[float] = field(default_factory=list)
    """Peak memory, by process."""
    weights_sha256: str = ""
    between_steps: float = MISSING
    """Share of the time between a step's end and the next forward pass."""

    def as_record(self) -> dict[str, Any]:
        """Returns the record for the results file: the median of a round's turns."""
        middle = {name: [median(r) for r in getattr(self, name)] for name in ("cpu_us", "wall_us")}
        return asdict(self) | middle


def main() -> None:
    """Installs, measures and prints."""
    given = _arguments()
    environment = Environment("lightning-fabric", (FABRIC, *OUR_NEEDS))
    figures: dict[str, Any] = {"versions": {"lightning-fabric": environment.install()}}
    verdicts: list[Verdict] = []
    for name in given.models:
        peaks: dict[str, list[float]] = {loop: [] for loop in LOOPS}
        for clip, words in CLIPPING.items():
            found = {loop: Measured() for loop in LOOPS}
            for number in range(given.rounds):
                _round(environment.python, name, clip, found, listens=number == 0)
            # Fabric's gradient clipping rounds the last bit in another way.
            if len({found[loop].weights_sha256 for loop in LOOPS if loop != "fabric"}) > 1:
                raise SystemExit(f"{name}, {words}: ours and the bare loop learned differently")
            told = _verdicts(name, words, found)
            print("\n".join(verdict.line() for verdict in told), flush=True)
            sure = (_ratio(found, "bare again", "bare", clock) for clock in ("cpu_us", "wall_us"))
            print("the bare loop over itself: CPU {:.3f}, wall clock {:.3f}".format(*sure))
            verdicts += told
            figures[f"{name}, {clip}"] = {loop: each.as_record() for loop, each in found.items()}
            for loop, each in found.items():
                peaks[loop] += each.peak_mebibytes
        peak = median(peaks["ours"]) / median(peaks["bare"])
        what = f"{name}: ours ÷ bare, peak memory of a process"
        verdicts.append(Verdict(what=what, value=peak, bound="at most", target=NO_MORE))
    write_results("train", figures, verdicts)


def _verdicts(name: str, words: str, found: dict[str, Measured]) -> list[Verdict]:
    """Returns the verdicts on one network."""

    def at_most(what: str, value: float, target: float) -> Verdict:
        return Verdict(what=f"{name}, {words}: {what}", value=value, bound="at most", target=target)

    told = [
        at_most(f"ours ÷ {said}, {clock}", _ratio(found, "ours", other, key), target)
        for other, said, target in (
            ("bare", "bare", TARGETS[name]),
            ("fabric", "Fabric", NO_MORE),
        )
        for key, clock in (("cpu_us", "CPU of a step"), ("wall_us", "wall clock"))
    ]
    if name in SHARE_TARGETS:
        what = "share of time between a step and the next forward pass, data and all"
        told.append(at_most(what, found["ours"].between_steps, SHARE_TARGETS[name]))
    return told


def _ratio(found: dict[str, Measured], one: str, other: str, clock: str) -> float:
    """Returns the median over rounds of the median ratio of adjacent turns."""
    rounds = zip(getattr(found[one], clock), getattr(found[other], clock), strict=True)
    return float(
        median(
            median(ours / theirs for ours, theirs in zip(*turns, strict=True)) for turns in rounds
        )
    )


def _round(python: str, name: str, clip: str, found: dict[str, Measured], *, listens: bool) -> None:
    """Runs a process for each loop, in turns; adds their figures to the earlier ones."""
    with contextlib.ExitStack() as stack:
        trainings = {
            loop: stack.enter_context(_training(python, called, name, clip))
            for loop, called in LOOPS.items()
        }
        order = list(trainings)
        told = {loop: [_line(trainings[loop])] for loop in order}
        while "weights_sha256" not in (told["ours"][-1] or {}):
            order = order[1:] + order[:1]
            for loop in order:
                told[loop].append(_go_on(trainings[loop]))
        for loop, lines in told.items():
            turns = [line for line in lines[:-1] if line is not None][WARM_UP:]
            found[loop].cpu_us.append([turn["cpu_us"] for turn in turns])
            found[loop].wall_us.append([turn["wall_us"] for turn in turns])
            found[loop].peak_mebibytes.append(lines[-1]["peak_mebibytes"])
            found[loop].weights_sha256 = lines[-1]["weights_sha256"]
            if listens:
                found[loop].between_steps = _go_on(trainings[loop])["between_steps"]


@contextlib.contextmanager
def _training(python: str, *asked: str) -> Iterator[subprocess.Popen[str]]:
    """Starts a process of `bench.training.training_loops`, and waits for its first turn.

    Shows the output of a process that failed.
    """
    argv = (python, "-m", "bench.training.training_loops", *asked)
    pipe = subprocess.PIPE
    with tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(
            argv,
            cwd=ROOT,
            stdin=pipe,
            stdout=pipe,
            stderr=errors,
            text=True,
            preexec_fn=pinned_to(CLIENT_CORE),
            env=os.environ | KEEPS_MEMORY,
        )
        try:
            yield process
        finally:
            process.kill()
            process.communicate()
            if process.returncode > 0:
                errors.seek(0)
                print(f"{' '.join(argv)} failed:\n{errors.read()}", file=sys.stderr)


def _go_on(process: subprocess.Popen[str]) -> Any:
    """Lets the process run its turn; returns its report."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()
    return _line(process)


def _line(process: subprocess.Popen[str]) -> Any:
    """Returns the next report of the process.

    Raises:
        SystemExit: the process ended instead.
    """
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait()
        raise SystemExit("a training ended before its time")
    return json.loads(line)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.train", description=__doc__)
    parser.add_argument("--models", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=7, help="processes of each loop")
    return parser.parse_args()


if __name__ == "__main__":
    main()
