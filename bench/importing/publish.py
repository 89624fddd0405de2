"""`make bench-publish`: from a module in memory to the first verified answer.

The digits' network with random weights, 64 rows of examples. A child process, as a user's program
would, publishes it into an empty store and asks the loaded version; each step is timed by the
events of the importer. Prints a table of the steps and verdicts, and writes
`bench/results/publish.json`.

Conversion is what torch and ONNX Runtime do to make an artifact; all else is ours.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.figures.results_file import write_results
from bench.figures.verdicts import Verdict, table

ROOT = Path(__file__).parents[2]
MAX_READY_S, MAX_OURS_S, MAX_GROWTH_MB = 15.0, 2.0, 50.0
"""Targets: the whole, the longest step that is not conversion, the caller's memory."""
CONVERSION = ("making ", "capturing ")
"""Steps that torch or ONNX Runtime spends."""

_PROGRAM = """
import json, sys, time
import numpy as np, torch
import flambeau
from training.networks import SmallCnn

def resident_mb():
    return int(open("/proc/self/statm").read().split()[1]) * 4096 / 1e6

torch.manual_seed(0)
net = SmallCnn(width=32).eval()
rows = torch.randn(64, 1, 8, 8)
net(rows)
steps, before = [], resident_mb()
began = time.monotonic()
flambeau.publish(
    net, {"image": rows}, name="digits", to=sys.argv[1],
    progress=lambda text: steps.append((text, time.monotonic() - began)),
)
published, grown = time.monotonic() - began, resident_mb() - before
with flambeau.load("digits", store=sys.argv[1]) as digits:
    found = digits(image=rows.numpy()[:1])
answered = time.monotonic() - began
gap = float(np.abs(found - net(rows[:1]).detach().numpy()).max())
print(json.dumps({"steps": steps, "published_s": published, "answered_s": answered,
                  "grown_mb": grown, "gap": gap}))
"""


def main() -> None:
    """Measures, prints, and writes."""
    parser = argparse.ArgumentParser(prog="python -m bench.importing.publish", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = [_publish() for _ in range(parser.parse_args().rounds)]
    seconds = list(map(_seconds, rounds))
    steps = {
        name: statistics.median(found[name] for found in seconds if name in found)
        for name in seconds[0]
    }
    print(table(["step", "seconds"], [[name, f"{s:.2f}"] for name, s in steps.items()]))
    answered, grown = (
        statistics.median(one[key] for one in rounds) for key in ("answered_s", "grown_mb")
    )
    ours = max(s for name, s in steps.items() if not name.startswith(CONVERSION))
    verdicts = [
        Verdict(what="module in memory to the first answer", value=answered, bound="at most",
                target=MAX_READY_S, unit="s"),
        Verdict(what="longest step but conversion", value=ours, bound="at most",
                target=MAX_OURS_S, unit="s"),
        Verdict(what="growth of the caller's process", value=grown, bound="at most",
                target=MAX_GROWTH_MB, unit="MB"),
    ]  # fmt: skip
    write_results("publish", {"steps_s": steps, "rounds": rounds}, verdicts)


def _publish() -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="flambeau-bench-") as store:
        found = subprocess.run(
            [sys.executable, "-c", _PROGRAM, store],
            capture_output=True,
            text=True,
            check=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
    figures: dict[str, Any] = json.loads(found.stdout.splitlines()[-1])
    return figures


def _seconds(found: Mapping[str, Any]) -> dict[str, float]:
    """Returns the seconds of each step, and of starting the version that answers."""
    marks = [*found["steps"], ("loading and the first answer", found["published_s"])]
    ends = [began for _, began in marks[1:]] + [found["answered_s"]]
    seconds: dict[str, float] = {}
    for (name, began), end in zip(marks, ends, strict=True):
        seconds[name] = seconds.get(name, 0.0) + end - began
    return seconds


if __name__ == "__main__":
    main()
