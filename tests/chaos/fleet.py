"""Redis, workers and gateways that may be killed at any moment and are restarted."""

import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from services.settings import command_line
from tests.chaos.endings import Endings
from tests.chaos.network import Network
from tests.fixtures.redis_servers import RedisProcess
from tests.fixtures.servers import ROOT

START_TIMEOUT_S = 60.0
FIRST_PORT = 18_000
REDIS = "redis"


class Member:
    """One process of the fleet, which keeps its ports across restarts."""

    def __init__(
        self, kind: str, log: Path, settings: dict[str, object], within: Sequence[str] = ()
    ) -> None:
        self._command = [*within, sys.executable, "-m", f"services.{kind}", *command_line(settings)]
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self.endings = Endings()
        """Kills."""

    def start(self) -> None:
        """Starts it."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )

    def kill(self) -> None:
        """Kills it as a crash would."""
        with self.endings.one():
            if self._process is not None:
                self._process.kill()
                self._process.wait()

    def revive_if_dead(self) -> bool:
        """Restarts it if it has ended by itself. Returns True if it had."""
        assert self._process is not None
        if self._process.poll() is None:
            return False
        self.start()
        return True

    def stop(self) -> int:
        """Sends SIGTERM, and waits. Returns its exit code."""
        assert self._process is not None
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(60)
        finally:
            self._process.kill()


class Fleet:
    """A split server; with a network, Redis and every worker have a host of their own.

    Attributes:
        redis: the Redis server; its socket stays reachable whatever the network does.
        network: network of the hosts; None if none can be made.
        lost_memory: grows before Redis loses all data, and again after it.

    Args:
        store: folder of the model store.
        folder: folder for logs and files.
        flavour: flavour of Redis.
        network: network with the hosts of `hosts`.
        workers: number of workers.
        gateways: number of gateways.
    """

    def __init__(
        self,
        store: Path,
        folder: Path,
        flavour: str,
        network: Network | None,
        workers: int,
        gateways: int,
    ) -> None:
        self.network = network
        self.lost_memory = 0
        if network is None:
            self.redis = RedisProcess(flavour, folder)
            url = self.redis.url
        else:
            address = network.address(REDIS)
            listening = ("--bind", address, "--port", "6379", "--protected-mode", "no")
            self.redis = RedisProcess(flavour, folder, *listening, within=network.within(REDIS))
            url = f"redis://{address}:6379"
        queue = {"queue": url, "metrics_port": 0}
        self.workers = [
            Member(
                "inference",
                folder / f"{host}.log",
                {**queue, "store": str(store)},
                network.within(host) if network else (),
            )
            for host in hosts(workers)[1:]
        ]
        self.https = [f"127.0.0.1:{FIRST_PORT + n}" for n in range(gateways)]
        self.gateways = [
            Member(
                "gateway",
                folder / f"gateway-{n}.log",
                {**queue, "http_port": FIRST_PORT + n, "grpc_port": 0},
            )
            for n in range(gateways)
        ]

    def start(self, models: Sequence[str]) -> None:
        """Starts all, and waits until every gateway serves the models."""
        self.redis.start()
        for member in (*self.workers, *self.gateways):
            member.start()
        give_up_at = time.monotonic() + START_TIMEOUT_S
        for http in self.https:
            for model in models:
                while not _is_ready(f"http://{http}/v2/models/{model}/ready"):
                    assert time.monotonic() < give_up_at, f"{http} does not serve {model}"
                    time.sleep(0.05)

    def kill(self) -> None:
        """Kills all processes that still run."""
        for member in (*self.gateways, *self.workers):
            member.kill()
        self.redis.kill()

    def stop(self) -> list[int]:
        """Stops all processes. Returns the exit codes, gateways first."""
        return [member.stop() for member in (*self.gateways, *self.workers)]


def hosts(workers: int) -> list[str]:
    """Returns the hosts of a fleet: one for Redis, and one for each worker."""
    return [REDIS, *(f"worker-{n}" for n in range(workers))]


def _is_ready(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
