"""Inputs of different lengths: batches padded within buckets against one request at a time.

Both ways run the same artifact on the same random lengths (8 to 128 tokens, all equally likely):
raw, as the artifact in a loop; and served. "One by one" is served by a copy of the version with a
largest batch of 1, on a server of its own with the same clients and settings. The two ways take
turns in every round.

    python -m bench.lengths
"""

import argparse
import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

import numpy as np
import numpy.typing as npt

from bench.figures.results_file import bench_store, write_results
from bench.figures.verdicts import Verdict, ratio
from bench.loads.closed_loop import different_load
from bench.measured.datasets import LONGEST, SHORTEST
from bench.measured.golden_model import (
    BENCH_STORE,
    ask_for,
    check_answers,
    golden_model,
    newest_manifest,
    served_artifact,
)
from bench.measured.networks import VOCABULARY
from bench.measured.raw_model import open_artifact, runs_per_second
from bench.measured.version_copy import copy_changed
from bench.peers.load import NothingAnsweredError
from bench.peers.peer import Ask, Form
from bench.servers.measured_server import end_with_exception, measured_server
from bench.servers.metrics_page import read_metrics
from bench.servers.pinning import SERVER_CORE, add_cores_option, become_client, pinned_to
from flambeau.protocol.signature import Padding
from flambeau.protocol.tensors import Array
from flambeau.server_process import ServerProcess
from model_store.manifest import Manifest
from model_store.store import ModelStore

MODEL = "text"
REQUESTS = 512
"""Number of different requests; clients cycle through them."""
CLIENTS = 64
SEED = 5
WARM_UP_S = 1
CHECKED_ROWS = 8
RAW = "raw"
RAW_SIZES = (16, 32, 64)
TARGET = 2.5
FORMS = (Form.BINARY, Form.GRPC)

Tokens = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthFigures:
    """Throughput of both ways, medians over the rounds."""

    where: str
    """`RAW`, or the protocol of the requests."""
    bucketed_per_second: float
    one_by_one_per_second: float
    gain: float
    """Median of the ratios of single rounds."""
    batch_rows: float
    """Mean rows of the bucketed batches."""
    failures: int


def random_texts(count: int, seed: int) -> list[Tokens]:
    """Returns requests of one row each, [1, 8..128] tokens."""
    random = np.random.default_rng(seed)
    lengths = random.integers(SHORTEST, LONGEST, count, endpoint=True)
    return [random.integers(0, VOCABULARY, (1, int(length))) for length in lengths]


def bucketed(texts: Sequence[Tokens], padding: Padding, size: int) -> list[dict[str, Array]]:
    """Forms batches of at most `size` rows of one bucket, padded to the longest of the batch.

    Args:
        texts: token rows, each [1, length].
        padding: buckets, the one padded input, and its mask.
        size: largest number of rows in a batch.
    """
    (name,) = padding.inputs
    by_bucket: dict[int, list[Tokens]] = {}
    for text in texts:
        by_bucket.setdefault(padding.bucket_of(text.shape[1]), []).append(text)
    batches = []
    for _, found in sorted(by_bucket.items()):
        for start in range(0, len(found), size):
            rows = found[start : start + size]
            longest = max(row.shape[1] for row in rows)
            tokens = np.zeros((len(rows), longest), np.int64)
            mask = np.zeros((len(rows), longest), np.bool_)
            for number, row in enumerate(rows):
                tokens[number, : row.shape[1]] = row[0]
                mask[number, : row.shape[1]] = True
            batches.append({name: tokens, padding.mask or "": mask})
    return batches


def measure_lengths(
    store: ModelStore, artifact: str, rounds: int, seconds: int
) -> list[LengthFigures]:
    """Measures raw and served throughput; prints as it goes.

    Args:
        store: model store with the model `text`.
        artifact: name of the artifact to run; empty for the fastest.
        rounds: number of rounds; the figures are their medians.
        seconds: duration of the load of each way in each round.
    """
    manifest = newest_manifest(store, MODEL)
    artifact = served_artifact(manifest, artifact)
    texts, model = random_texts(REQUESTS, SEED), golden_model(store, manifest)
    print(f"{MODEL}, {artifact}: {SHORTEST} to {LONGEST} tokens", flush=True)
    figures = [_figures(RAW, [_raw(store, manifest, artifact, seconds) for _ in range(rounds)])]
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-lengths-"))
        single = ModelStore(folder)
        copy_changed(store, manifest, single, max_batch_size=1)
        together = stack.enter_context(measured_server(store.url, [MODEL], artifact))
        alone = stack.enter_context(measured_server(single.url, [MODEL], artifact))
        for server in (together, alone):
            for row in range(CHECKED_ROWS):
                check_answers(server, golden_model(store, manifest, row), artifact)
        for form in FORMS:
            asks = [ask_for(model, form, text) for text in texts]
            served = [
                _Round(_load(together, form, asks, seconds), _load(alone, form, asks, seconds))
                for _ in range(rounds)
            ]
            figures.append(_figures(f"{form}, {CLIENTS} clients", served))
    return figures


def length_verdicts(figures: Sequence[LengthFigures]) -> list[Verdict]:
    """Returns the verdict for each protocol; the raw model has no target."""
    return [
        Verdict(
            what=f"{MODEL}, {SHORTEST} to {LONGEST} tokens, {figure.where}: bucketed ÷ one by one",
            value=figure.gain,
            bound="at least",
            target=TARGET,
        )
        for figure in figures
        if figure.where != RAW
    ]


def main() -> None:
    """Measures, prints, and writes `bench/results/lengths.json`."""
    end_with_exception()
    parser = argparse.ArgumentParser(prog="python -m bench.lengths", description=__doc__)
    parser.add_argument("--store", default=str(BENCH_STORE))
    parser.add_argument("--artifact", default="", help="empty for the fastest")
    parser.add_argument("--rounds", type=int, default=3, help="of which the median is taken")
    parser.add_argument("--seconds", type=int, default=4, help="of load, each way in each round")
    parser.add_argument("--raw", type=float, help=argparse.SUPPRESS)
    add_cores_option(parser)
    given = parser.parse_args()
    if given.raw:
        store = ModelStore(given.store)
        manifest = newest_manifest(store, MODEL)
        print(json.dumps(_raw_here(store, manifest, given.artifact, given.raw)))
        return
    store = bench_store(given.store)
    become_client(pinned=given.pinned)
    figures = measure_lengths(store, given.artifact, given.rounds, given.seconds)
    write_results("lengths", {"lengths": list(map(asdict, figures))}, length_verdicts(figures))


@dataclass(frozen=True, slots=True)
class _Load:
    per_second: float
    batch_rows: float
    failures: int


@dataclass(frozen=True, slots=True)
class _Round:
    """Throughput of both ways in one round."""

    together: _Load
    alone: _Load


def _figures(where: str, rounds: Sequence[_Round]) -> LengthFigures:
    figures = LengthFigures(
        where=where,
        bucketed_per_second=median(r.together.per_second for r in rounds),
        one_by_one_per_second=median(r.alone.per_second for r in rounds),
        gain=median(ratio(r.together.per_second, r.alone.per_second) for r in rounds),
        batch_rows=median(r.together.batch_rows for r in rounds),
        failures=sum(r.together.failures + r.alone.failures for r in rounds),
    )
    print(
        f"  {where}: bucketed {figures.bucketed_per_second:,.0f}/s "
        f"({figures.batch_rows:.1f} rows a batch), one by one "
        f"{figures.one_by_one_per_second:,.0f}/s: {figures.gain:.2f} times, "
        f"failures {figures.failures}",
        flush=True,
    )
    return figures


def _load(server: ServerProcess, form: Form, asks: Sequence[Ask], seconds: int) -> _Load:
    with contextlib.suppress(NothingAnsweredError):  # lasts as long as a slow batch takes
        different_load(server, form, asks, CLIENTS, WARM_UP_S)
    before = read_metrics(server.metrics)
    load = different_load(server, form, asks, CLIENTS, seconds)
    rows = read_metrics(server.metrics).since(before).mean_batch_rows(MODEL)
    return _Load(load.answered / load.duration_s, rows, load.failed)


def _raw(store: ModelStore, manifest: Manifest, artifact: str, seconds: float) -> _Round:
    """Measures both ways in a process on the server's cores."""
    command = [sys.executable, "-m", "bench.lengths", "--store", store.url]
    command += ["--artifact", artifact, "--raw", str(seconds / 2)]
    pin = pinned_to(SERVER_CORE)
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, preexec_fn=pin).stdout
    rates = json.loads(output)
    return _Round(_Load(rates["bucketed"], rates["rows"], 0), _Load(rates["one_by_one"], 1.0, 0))


def _raw_here(
    store: ModelStore, manifest: Manifest, artifact: str, seconds: float
) -> dict[str, float]:
    """Returns rows a second one by one, and at the best of a few batch sizes."""
    padding = manifest.signature.padding
    assert padding is not None, f"the model '{MODEL}' has a padding"
    backend = open_artifact(store, manifest, artifact)
    texts = random_texts(REQUESTS, SEED)
    rates = {}
    for size in (1, *RAW_SIZES):
        batches = bucketed(texts, padding, size)
        rates[size] = len(texts) / len(batches) * runs_per_second(backend, batches, seconds)
    best = max(RAW_SIZES, key=lambda size: rates[size])
    rows = len(texts) / len(bucketed(texts, padding, best))
    return {"one_by_one": rates[1], "bucketed": rates[best], "rows": rows}


if __name__ == "__main__":
    main()
