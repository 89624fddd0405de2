"""Results files, a description of the machine they were measured on, and the measured store."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench.figures.performance_page import write_block
from bench.figures.verdicts import Verdict, markdown_table
from bench.measured.golden_model import BENCH_STORE
from bench.measured.models import ensure_bench_models
from bench.servers.pinning import cores_apart, where
from model_store.store import ModelStore

RESULTS = Path(__file__).parents[1] / "results"


def bench_store(url: str) -> ModelStore:
    """Returns the store to measure; fills the bench store with its models if any are missing."""
    if Path(url).resolve() == BENCH_STORE:
        ensure_bench_models(url)
    return ModelStore(url)


def write_results(name: str, figures: Mapping[str, Any], verdicts: Sequence[Verdict]) -> None:
    """Prints the verdicts, and writes all figures to `bench/results/NAME.json` and to the page."""
    print("\n" + "\n".join(verdict.line() for verdict in verdicts))
    document = {
        "measured": {
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
            "cores": os.cpu_count(),
            "python": platform.python_version(),
            "cores_of_server_and_client": where(),
        },
        "verdicts": [verdict.as_record() for verdict in verdicts],
        **figures,
    }
    name += "-pinned" if cores_apart() else ""  # a second table
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps(_without_nan(document), indent=2) + "\n")
    print(f"wrote {path}")
    when = datetime.now(UTC).date().isoformat()
    write_block(name, f"{when}, {machine()}.\n\n{markdown_table(verdicts)}")


def machine() -> str:
    """Describes the machine that ran the benchmark."""
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {where()}"


def _without_nan(value: Any) -> Any:
    """Replaces NaN, which JSON lacks, by null: there is no figure."""
    if isinstance(value, dict):
        return {key: _without_nan(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_without_nan(inner) for inner in value]
    return None if value != value else value
