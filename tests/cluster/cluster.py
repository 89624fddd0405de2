"""All pods of one cluster, on nodes that may die, and their DNS names."""

import sys
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from services.settings import command_line
from tests.chaos.network import Network
from tests.cluster.envoy import (
    ADMIN_PORT,
    GATEWAY,
    PORT,
    READY_LINE,
    REGISTRY,
    TRAINER,
    bootstrap,
    envoy_program,
)
from tests.cluster.names import Names
from tests.cluster.pods import Host, Pod
from tests.cluster.pushed_versions import PushedVersions
from tests.fixtures.redis_servers import RedisProcess
from tests.fixtures.training_jobs import KEYS

REDIS = "redis.flambeau.test"
NAMES = {"gateway": GATEWAY, "registry_server": REGISTRY, "trainer": TRAINER}
"""Kinds of pods with a headless Service, and its name; workers are not called."""
PRESTOP_S = 3.0
"""Time for Envoy and clients to notice a leaving pod."""
GRACE_S = 30.0
MAX_CONNECTION_AGE_S = 4.0
"""Some minutes in k8s/, longer than a run."""
BATCH_WAIT_MS = 100.0
"""Keeps requests within each worker at all times, at little CPU cost."""
LEASE_S = 10.0
"""Longer than the absence of Redis; otherwise live trainers count as dead."""
INFRASTRUCTURE = "infrastructure"
"""Node of Redis and Envoy, which no run kills."""


class Cluster:
    """Redis, Envoy, and pods of four kinds; all of it is removed after the block.

    Attributes:
        lost_memory: number of times that Redis lost all data: never.
        bad_ends: pods that did not exit cleanly when stopped, one line each.

    Args:
        network: network to which hosts are added.
        folder: folder for the store, jobs and files.
        flavour: flavour of Redis.
        delays_itself: True if gateways still accept requests for `drain_delay_s` after SIGTERM;
            otherwise a preStop hook sleeps for the same time before it.
    """

    def __init__(self, network: Network, folder: Path, flavour: str, delays_itself: bool) -> None:
        self._network, self._folder, self._flavour = network, folder, flavour
        self._gateways_prestop_s = 0.0 if delays_itself else PRESTOP_S
        self._stack = ExitStack()
        self._made = 0
        self._lock = threading.Lock()
        self.pods: dict[str, list[Pod]] = {
            "gateway": [], "inference": [], "registry_server": [], "trainer": [],
        }  # fmt: skip
        self.lost_memory = 0
        self.bad_ends: list[str] = []
        self.store = folder / "store"
        self._settings: dict[str, Mapping[str, object]] = {
            "gateway": {
                "host": "0.0.0.0",  # its own namespace
                "open_to_strangers": True,
                "queue": f"redis://{REDIS}:6379",
                "grpc_max_connection_age_s": MAX_CONNECTION_AGE_S,
                "drain_delay_s": PRESTOP_S if delays_itself else 0.0,
            },
            "inference": {
                "host": "0.0.0.0",  # its own namespace
                "queue": f"redis://{REDIS}:6379",
                "store": str(self.store),
                "choose_artifact_budget_s": 0,
                "newest_versions": 1,
                "batch_wait_ms": BATCH_WAIT_MS,
            },
            "registry_server": {
                "host": "0.0.0.0",  # its own namespace
                "queue": f"redis://{REDIS}:6379",
                "store": str(self.store),
                "api_keys_file": str(folder / "registry-keys.yaml"),
                "drain_delay_s": PRESTOP_S if delays_itself else 0.0,
            },
            "trainer": {
                "host": "0.0.0.0",  # its own namespace
                "jobs": f"redis://{REDIS}:6379",
                "store": str(self.store),
                "runs_dir": str(folder / "runs"),
                "api_keys_file": str(folder / "keys.yaml"),
                "lease_s": LEASE_S,
            },
        }

    def __enter__(self) -> "Cluster":
        with ExitStack() as stack:
            self._stack = stack
            (self._folder / "keys.yaml").write_text(KEYS)
            (self._folder / "registry-keys.yaml").write_text(PushedVersions.keys())
            self.names = stack.enter_context(Names(self._network.bridge_address))
            for name in (*NAMES.values(), REDIS):
                self.names.set(name, ())
            self._start_redis()
            stack.callback(lambda: self.redis.kill())
            self._envoy = self._start_envoy()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    @property
    def https(self) -> list[str]:
        """Address of REST, gRPC and training: Envoy's."""
        return [f"{self._envoy.host.address}:{PORT}"]

    @property
    def admin(self) -> str:
        """Address of Envoy's admin interface."""
        return f"http://{self._envoy.host.address}:{ADMIN_PORT}"

    @property
    def headless(self) -> str:
        """Target that resolves to the gateways' own addresses, for a gRPC client."""
        return f"dns://{self._network.bridge_address}:53/{GATEWAY}:8001"

    def start(self, kind: str, node: str) -> Pod:
        """Starts a pod, waits until it is ready, and adds it to its DNS name."""
        command = [sys.executable, "-m", f"services.{kind}", *command_line(self._settings[kind])]
        pod = self._pod(kind, node, command, '"ready"')
        self.pods[kind].append(pod)
        pod.await_ready()
        self._tell(kind)
        return pod

    def end(self, kind: str, pod: Pod) -> None:
        """Deletes a pod: its DNS name drops it while its preStop hook runs."""
        self.pods[kind].remove(pod)
        self._tell(kind)
        has_delay = kind in ("gateway", "registry_server")
        prestop_s = self._gateways_prestop_s if has_delay else PRESTOP_S
        code = pod.end(prestop_s, GRACE_S)
        if code:
            self.bad_ends.append(f"{pod.name} ended with {code}: {pod.log.all()[-3:]}")

    def roll(self, kind: str) -> None:
        """Makes a rolling update: each pod is replaced after its successor is ready."""
        for old in tuple(self.pods[kind]):
            self.start(kind, old.node)
            self.end(kind, old)

    def roll_all(self) -> None:
        """Updates all kinds at once, as when `kubectl apply` has changed every Deployment."""
        with ThreadPoolExecutor() as threads:
            for rolled in [threads.submit(self.roll, kind) for kind in self.pods]:
                rolled.result()

    def restart_redis(self, away_s: float) -> None:
        """Restarts Redis with its file on another address, as for a StatefulSet."""
        self.names.set(REDIS, ())
        self.redis.stop()
        time.sleep(away_s)  # its volume moves to the new node
        self._start_redis()

    def lose_node(self, node: str) -> list[str]:
        """Kills a node: all its pods at once, without closing any connection.

        Returns:
            The kinds of the dead pods. Their DNS names still include them.
        """
        lost = [(kind, pod) for kind, pods in self.pods.items() for pod in pods if pod.node == node]
        for _, pod in lost:
            pod.host.cut()
        for kind, pod in lost:
            pod.kill()
            self.pods[kind].remove(pod)
        return [kind for kind, _ in lost]

    def _tell(self, kind: str) -> None:
        if kind in NAMES:
            self.names.set(NAMES[kind], tuple(pod.host.address for pod in self.pods[kind]))

    def _host(self, kind: str) -> Host:
        with self._lock:
            self._made += 1
            return self._stack.enter_context(Host(self._network, f"{kind}-{self._made}"))

    def _pod(self, kind: str, node: str, command: list[str], ready_line: str) -> Pod:
        pod = Pod(self._host(kind), node, command, ready_line)
        self._stack.callback(pod.kill)
        return pod

    def _start_redis(self) -> None:
        host = self._host("redis")
        arguments = ("--bind", host.address, "--port", "6379", "--protected-mode", "no")
        self.redis = RedisProcess(self._flavour, self._folder, *arguments, within=host.within)
        self.redis.start()
        self.names.set(REDIS, (host.address,))

    def _start_envoy(self) -> Pod:
        program = envoy_program()
        assert program is not None
        file = self._folder / "envoy.json"
        file.write_text(bootstrap(self._network.bridge_address))
        command = [program, "-c", str(file), "--disable-hot-restart", "--concurrency", "1"]
        pod = self._pod("envoy", INFRASTRUCTURE, command, READY_LINE)
        pod.await_ready()
        return pod
