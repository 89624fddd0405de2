"""Faults; each begins, lasts, and ends.

Each is called with the fleet and a random generator, and returns when all processes run again.
"""

import json
import random
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress

import redis
from redis.exceptions import RedisError

from tests.chaos.fleet import Fleet

Fault = Callable[[Fleet, random.Random], None]

POISONED = "crashing"
"""A model that crashes on one input."""
POISON = 13.0


def kill_worker(fleet: Fleet, chance: random.Random) -> None:
    """Kills a worker and restarts it, as Kubernetes would."""
    worker = chance.choice(fleet.workers)
    worker.kill()
    time.sleep(chance.uniform(0, 3))
    worker.start()


def kill_gateway(fleet: Fleet, chance: random.Random) -> None:
    """Kills a gateway and restarts it."""
    gateway = chance.choice(fleet.gateways)
    gateway.kill()
    time.sleep(chance.uniform(0, 1))
    gateway.start()


def restart_worker(fleet: Fleet, chance: random.Random) -> None:
    """Stops a worker with SIGTERM, and starts another in its place."""
    worker = chance.choice(fleet.workers)
    code = worker.stop()
    assert code == 0, f"a worker that was asked to stop exited with {code}"
    worker.start()


def stop_redis(fleet: Fleet, chance: random.Random) -> None:
    """Suspends Redis for a while."""
    fleet.redis.signal(signal.SIGSTOP)
    time.sleep(chance.uniform(0.1, 7))
    fleet.redis.signal(signal.SIGCONT)


def restart_redis(fleet: Fleet, chance: random.Random) -> None:
    """Kills Redis, and restarts it with its file."""
    fleet.redis.kill()
    time.sleep(chance.uniform(0, 3))
    fleet.redis.start()


def lose_redis(fleet: Fleet, chance: random.Random) -> None:
    """Deletes all data in Redis."""
    fleet.lost_memory += 1
    _command(fleet, "FLUSHALL")
    fleet.lost_memory += 1  # a job that began in between is one of those that were lost


def cut_connections(fleet: Fleet, chance: random.Random) -> None:
    """Closes every connection to Redis."""
    for kind in ("normal", "pubsub"):
        _command(fleet, "CLIENT", "KILL", "TYPE", kind)


def pause_redis(fleet: Fleet, chance: random.Random) -> None:
    """Delays the responses of Redis."""
    milliseconds = chance.randrange(100, 3000)
    _command(fleet, "CLIENT", "PAUSE", milliseconds, "ALL")
    time.sleep(milliseconds / 1000)


def fill_redis(fleet: Fleet, chance: random.Random) -> None:
    """Leaves Redis without memory for a while."""
    _command(fleet, "CONFIG", "SET", "maxmemory", "1mb")
    time.sleep(chance.uniform(0.5, 3))
    _command(fleet, "CONFIG", "SET", "maxmemory", "0")


def poison(fleet: Fleet, chance: random.Random) -> None:
    """Sends a request that crashes every worker that runs it. Restarts the dead ones."""
    body = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [POISON] * 4}]}
    url = f"http://{chance.choice(fleet.https)}/v2/models/{POISONED}/infer"
    request = urllib.request.Request(url, json.dumps(body).encode())
    give_up_at = time.monotonic() + 1
    with suppress(urllib.error.URLError, OSError):
        urllib.request.urlopen(request, timeout=1)
    while time.monotonic() < give_up_at + 15:
        for worker in fleet.workers:
            worker.revive_if_dead()
        time.sleep(0.2)


def cut_network(fleet: Fleet, chance: random.Random) -> None:
    """Cuts one worker from Redis without closing its connections, or all workers."""
    assert fleet.network is not None
    host = chance.choice(fleet.network.hosts)
    fleet.network.cut(host)
    time.sleep(chance.uniform(0.5, 8))
    fleet.network.join(host)


def slow_network(fleet: Fleet, chance: random.Random) -> None:
    """Delays the traffic of a worker or of Redis in both directions."""
    assert fleet.network is not None
    host = chance.choice(fleet.network.hosts)
    fleet.network.slow(host)
    time.sleep(chance.uniform(2, 8))
    fleet.network.hasten(host)


FAULTS: tuple[Fault, ...] = (
    kill_worker,
    kill_gateway,
    restart_worker,
    stop_redis,
    restart_redis,
    lose_redis,
    cut_connections,
    pause_redis,
    fill_redis,
    poison,
)
NETWORK_FAULTS: tuple[Fault, ...] = (cut_network, slow_network)
"""Faults that need a network."""


def _command(fleet: Fleet, *words: object) -> None:
    with suppress(RedisError), redis.Redis.from_url(fleet.redis.url) as client:
        client.execute_command(*words)
