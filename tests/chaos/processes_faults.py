"""Faults of a server of several processes; each begins, lasts, and ends.

Each is called with the server and a random generator, and returns when all its processes run again.
"""

import random
import signal
import time
from collections.abc import Callable

from bench.servers.process_figures import EDGE, RUNS_MODELS
from model_store.store import ModelStore
from tests.chaos.callers import MODEL
from tests.chaos.processes_server import ProcessesServer
from tests.fixtures.redis_servers import until_true

Fault = Callable[[ProcessesServer, random.Random], None]

STOPPED_S = (0.1, 3.0)
"""Shortest and longest time of a stopped process."""
KILL, STOP, CONTINUE = signal.SIGKILL, signal.SIGSTOP, signal.SIGCONT


def kill_edge(server: ProcessesServer, chance: random.Random) -> None:
    """Kills an edge."""
    server.send(KILL, chance.choice(server.pids(EDGE)))
    server.wait_until_whole()


def kill_model_process(server: ProcessesServer, chance: random.Random) -> None:
    """Kills the model process; no connection may end."""
    (pid,) = server.pids(RUNS_MODELS)
    server.send(KILL, pid, has_connections=False)
    server.wait_until_whole()


def kill_all_but_supervisor(server: ProcessesServer, chance: random.Random) -> None:
    """Kills the model process and all edges, in any order."""
    pids = [*server.pids(EDGE), *server.pids(RUNS_MODELS)]
    chance.shuffle(pids)
    for pid in pids:
        server.send(KILL, pid)
        time.sleep(chance.choice((0.0, 0.1)))
    server.wait_until_whole()


def kill_young(server: ProcessesServer, chance: random.Random) -> None:
    """Kills an edge or the model process, and the next one as it starts, twice."""
    kind = chance.choice((EDGE, RUNS_MODELS))
    for _ in range(3):
        found: list[int] = []
        until_true(lambda found=found: found.extend(server.pids(kind)) or found)  # type: ignore[misc]
        server.send(KILL, chance.choice(found))
        time.sleep(chance.uniform(0, 0.5))
    server.wait_until_whole()


def kill_supervisor(server: ProcessesServer, chance: random.Random) -> None:
    """Kills the supervisor: the others must drain and end by themselves. Starts the next one."""
    server.kill_supervisor()
    server.start()


def stop_process(server: ProcessesServer, chance: random.Random) -> None:
    """Suspends one of the processes for a while; sometimes kills it meanwhile."""
    kind = chance.choice((EDGE, RUNS_MODELS))
    pid = chance.choice(server.pids(kind))
    server.send(STOP, pid)
    time.sleep(chance.uniform(*STOPPED_S))
    server.send(chance.choice((CONTINUE, CONTINUE, KILL)), pid)
    server.wait_until_whole()


def stop_supervisor(server: ProcessesServer, chance: random.Random) -> None:
    """Suspends the supervisor for a while; a process that is killed meanwhile waits for it."""
    victim = chance.choice([*server.pids(EDGE), *server.pids(RUNS_MODELS)])
    server.send(STOP, server.pid)
    time.sleep(chance.uniform(0, 1))
    if chance.random() < 0.5:
        server.send(KILL, victim)
    time.sleep(chance.uniform(*STOPPED_S))
    server.send(CONTINUE, server.pid)
    server.wait_until_whole()


def swap(server: ProcessesServer, chance: random.Random) -> None:
    """Moves the pointer to the other version, a few times."""
    store = ModelStore(str(server.store))
    for _ in range(chance.randrange(1, 5)):
        store.promote(MODEL, chance.choice((1, 2)))
        time.sleep(chance.uniform(0, 1))


def drain(server: ProcessesServer, chance: random.Random) -> None:
    """Stops the server with SIGTERM, and starts it again."""
    code = server.drain()
    assert code == 0, f"a server that was asked to stop exited with {code}"
    server.start()


FAULTS: tuple[Fault, ...] = (
    kill_edge,
    kill_model_process,
    kill_all_but_supervisor,
    kill_young,
    kill_supervisor,
    stop_process,
    stop_supervisor,
    swap,
    drain,
)
