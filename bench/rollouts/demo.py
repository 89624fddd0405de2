"""`make demo-rollout`: a good and a subtly bad version are rolled out under load, by themselves.

Trains three versions of digits: the live one; a good one, with another learning rate; and a bad
one, with the labels of two classes swapped in 3 % of the training rows (`mislabelled_digits`). A
server serves them while clients send test rows. Without further commands, the good version must
reach all requests and the bad one must be rolled back, and no request may fail.
"""

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from flambeau.client import Client
from flambeau.errors import ClientError
from flambeau.protocol.tensors import Array
from flambeau.server_process import server_process
from model_store.pointers import Pointers
from model_store.rollouts.finding_text import finding_text
from model_store.rollouts.status import rollout_status
from model_store.store import ModelStore
from training.datasets import digits

MODEL = "digits"
RECIPE = "training/recipes/digits_cnn.yaml"
LIVE, GOOD, BAD = 1, 2, 3
VERSIONS: Mapping[int, tuple[str, list[str]]] = {
    LIVE: ("the recipe as it is", []),
    GOOD: ("a smaller learning rate", ["optim.adamw.lr=2e-3"]),
    BAD: (
        "labels of 1 and 7 swapped in 3 % of the training rows",
        ["data.target=bench.rollouts.mislabelled_digits:mislabelled"],
    ),
}
START = (
    "--steps=10%,50%,100%", "--every=10s", "--mirror=50%", "--why=demo",
    "--guard=disagreement.limit=1%", "--guard=errors.rate=0.5%", "--guard=nan.rate=0.5%",
    "--guard=latency.quantiles=0.5,0.9", "--guard=latency.ratio=1.5",
    "--guard=outputs.difference=10%",
)  # fmt: skip
"""Wider limits than the default ones but for the disagreement, so that a few thousand requests are
enough."""
CLIENTS = 4
PAUSE_S = 0.004
"""Pause of a client after an answer: the server shares its cores with the clients."""
LONGEST_S = 300.0
TOLD_EVERY_S = 10.0
"""Seconds between two lines about what it waits for."""


class Load:
    """Clients that send test rows, one by one, and count answers.

    Args:
        target: `host:port` of gRPC.
    """

    def __init__(self, target: str) -> None:
        inputs, labels = digits(seed=7)["test"]
        self._images, self._labels = inputs["image"], labels
        self._client = Client(target)
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.answers: Counter[str] = Counter()
        """Number of answers by whether they are `right`, `wrong` or `failed`."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Sends requests until the end of the block."""
        threads = [threading.Thread(target=self._send, args=[seed]) for seed in range(CLIENTS)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in threads:
                thread.join()
            self._client.close()

    def _send(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        while not self._stop.is_set():
            row = int(random.integers(len(self._labels)))
            kind = self._ask(self._images[row : row + 1], int(self._labels[row]))
            with self._lock:
                self.answers[kind] += 1
            self._stop.wait(PAUSE_S)

    def _ask(self, image: Array, label: int) -> str:
        try:
            logits = self._client.infer(MODEL, {"image": image})["logits"]
        except ClientError as error:
            print(f"    a request failed: {error}", file=sys.stderr)
            return "failed"
        return "right" if int(logits.argmax()) == label else "wrong"


def main() -> int:
    """Runs the demonstration. Returns 0 if all went as it must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--store", default="", help="folder of a store; empty for a temporary one")
    given = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="flambeau-rollout-") as folder:
        store = ModelStore(given.store or folder)
        _train(store)
        print("\nstarting a server and its clients", flush=True)
        with server_process(["--store", store.url, "--set", "log_level=error"]) as server:
            load = Load(server.grpc)
            with load.running():
                good = _roll_out(store, GOOD, load)
                bad = _roll_out(store, BAD, load)
    failed = load.answers["failed"]
    print(f"\n{sum(load.answers.values()):,} requests, {failed} failed", end="")
    print(f"; {time.monotonic() - began:.0f} s in all")
    as_it_must = good.aliases == bad.aliases == {"production": GOOD} and not failed
    print("demo ok" if as_it_must else "demo FAILED")
    return 0 if as_it_must else 1


def _flambeau(*arguments: str) -> str:
    """Runs a command of flambeau, and returns what it prints; a long one is told to run."""
    command = [sys.executable, "-m", "flambeau", *arguments]
    began = time.monotonic()
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        while True:
            try:
                output, _ = process.communicate(timeout=TOLD_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                after_s = time.monotonic() - began
                print(f"  {after_s:5.1f} s  flambeau {arguments[0]} runs", flush=True)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)}\n{output}")
    return output


def _train(store: ModelStore) -> None:
    """Trains and publishes the three versions; production names the first."""
    for version, (what, changes) in VERSIONS.items():
        print(f"training version {version}: {what}", flush=True)
        alias = "production" if version == LIVE else "null"
        settings = [
            *changes, f"publish.alias={alias}", "publish.if=null", "track=[]",
            "export=[{kind: onnx}]",
        ]  # fmt: skip
        _flambeau("train", RECIPE, "--store", store.url, *(f"--set={one}" for one in settings))


def _roll_out(store: ModelStore, candidate: int, load: Load) -> Pointers:
    """Starts a rollout and waits for its end, printing each move.

    Raises:
        TimeoutError: it takes too long.
    """
    print(f"\nrolling out version {candidate}: {VERSIONS[candidate][0]}")
    print(f"$ flambeau rollout start {MODEL} {candidate} {' '.join(START)}", flush=True)
    _flambeau("rollout", "start", MODEL, str(candidate), "--store", store.url, *START)
    began, shown = time.monotonic(), Counter(load.answers)
    pointers = store.pointers(MODEL)
    assert pointers is not None
    while True:
        _tell(pointers, time.monotonic() - began, sum((load.answers - shown).values()))
        if pointers.traffic.rollout is None:
            print(f"$ flambeau rollout status {MODEL}")
            print(_flambeau("rollout", "status", MODEL, "--store", store.url), end="")
            _show(pointers.evidence or {})
            return pointers
        pointers = _next(store, pointers.generation, began, load, shown)


def _next(
    store: ModelStore, generation: int, began: float, load: Load, shown: Counter[str]
) -> Pointers:
    """Returns the generation after another, once there is one; tells what it waits for.

    Raises:
        TimeoutError: there is none in time; the message has the last verdict.
    """
    told = time.monotonic()
    while True:
        found = store.pointers(MODEL)
        assert found is not None
        if found.generation > generation:
            return found
        now = time.monotonic()
        if now - told >= TOLD_EVERY_S:
            told = now
            document = rollout_status(store, MODEL)
            verdict = document["verdict"]
            waits = document["note"] if verdict is None else verdict["next_why"]
            requests = sum((load.answers - shown).values())
            print(f"  {now - began:5.1f} s {requests:>8,} requests  waits: {waits}", flush=True)
        if now > began + LONGEST_S:
            print(_flambeau("rollout", "status", MODEL, "--store", store.url))
            raise TimeoutError(f"the rollout has not ended in {LONGEST_S:g} s")
        time.sleep(0.2)


def _tell(pointers: Pointers, after_s: float, requests: int) -> None:
    rollout = pointers.traffic.rollout
    if rollout is None:
        where = f"production is version {pointers.aliases['production']}"
    else:
        where = f"{rollout.share:.0%} of the requests"
    print(f"  {after_s:5.1f} s {requests:>8,} requests  {where}: {pointers.why}", flush=True)


def _show(evidence: Mapping[str, Any]) -> None:
    """Prints the evidence of a move: the counts, and a line a guard."""
    counts = evidence["counts"]
    for share, versions in counts["shares"].items():
        each = ", ".join(
            f"{version} {found['requests']:,} ({found.get('errors', 0)} failed)"
            for version, found in sorted(versions.items())
        )
        print(f"  at {float(share):.0%}: {each}")
    print(f"  mirrored pairs: {counts['pairs']:,}, of which {counts['differing_pairs']:,} differ")
    for finding in evidence["findings"]:
        print(f"  {finding['guard']:<13} {finding['state']:<7} {finding_text(finding)}")


if __name__ == "__main__":
    sys.exit(main())
