"""`make dashboards-check`, `make dashboard-pictures`: every panel's query, on a fleet under load.

Fails if one has no data. GPU panels are only parsed: there is no DCGM exporter here.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path

from flambeau.monitoring.dashboards import DASHBOARDS, GPU
from tests.dashboards.answers import ask, without_data
from tests.dashboards.fleet import Fleet, load, running_fleet
from tests.dashboards.picture import draw

RECIPE = """
name: tiny
model: {target: "training.networks:SmallCnn", args: {width: 4}}
data: {target: "training.datasets:digits"}
train: {epochs: 2, threads: 1}
export: [{kind: torchscript}]
publish: {model: tiny}
"""
WINDOW_S = 6.0
TRAINING_TIMEOUT_S = 180.0
BROKEN_RECIPE = RECIPE.replace("width: 4", "width: -4")
"""Accepted by the service, and impossible to train."""


def main() -> int:
    """Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.dashboards", description=__doc__)
    parser.add_argument("--seconds", type=float, default=75.0, help="how long to watch")
    parser.add_argument("--pictures", type=Path, help="folder that the pictures go to")
    given = parser.parse_args()
    complaints: list[str] = []
    with (
        tempfile.TemporaryDirectory(prefix="flambeau-") as folder,
        running_fleet(Path(folder), interval_ms=1000) as fleet,
        load(fleet.server),
    ):
        watch(fleet, given.seconds)
        for dashboard in DASHBOARDS:
            answers = ask(fleet.prometheus, dashboard, given.seconds, WINDOW_S)
            if dashboard is GPU:
                continue
            complaints += without_data(answers)
            if given.pictures:
                given.pictures.mkdir(parents=True, exist_ok=True)
                path = given.pictures / f"{dashboard.uid}.svg"
                path.write_text(draw(dashboard, answers, given.seconds), encoding="utf-8")
                print(path)
    for complaint in complaints:
        print(f"NO DATA {complaint}")
    print(f"{len(complaints)} queries without data")
    return 1 if complaints else 0


def watch(fleet: Fleet, seconds: float) -> None:
    """Lets the fleet work, and trains a little.

    Args:
        fleet: under load.
        seconds: how long.
    """
    until = time.monotonic() + seconds
    for recipe in (RECIPE, BROKEN_RECIPE, RECIPE):
        fleet.trainer.call("/v1/jobs", {"recipe": recipe})
    fleet.prometheus.wait_for(
        'sum(flambeau_training_finished_jobs_total{state="succeeded"})',
        lambda found: found >= 1,
        TRAINING_TIMEOUT_S,
    )
    time.sleep(max(until - time.monotonic(), 0))  # nothing is awaited: this is how long it lasts


if __name__ == "__main__":
    sys.exit(main())
