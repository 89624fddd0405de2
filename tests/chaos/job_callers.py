"""Steady jobs: threads that submit one, wait until it is finished, and read it again later."""

import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

import redis
from redis.exceptions import RedisError

from services.queueing.redis_streams.keys import FINISHED_CHANNELS
from tests.chaos.callers import MODEL, SCALE
from tests.chaos.job_ledger import OVER, JobLedger
from tests.fixtures.redis_servers import RedisProcess

PATIENCE_S = 60.0
"""Timeout of a job after the end of the faults."""
AGAIN_S = 0.2
PAUSE_S = 0.05
WAIT_S = 2
NOT_OURS = (502, 503, 504)
SUBMITTED_AGAIN = 0.3
"""Share of jobs that are submitted twice, as by a client that lost the response."""


class Asked(Protocol):
    """The target of the jobs."""

    @property
    def https(self) -> Sequence[str]:
        """Addresses of REST."""

    @property
    def redis(self) -> RedisProcess:
        """Redis server that stores the jobs."""

    @property
    def lost_memory(self) -> int:
        """Number of times that it lost all data."""


class JobCallers:
    """All clients, and a listener for Redis' events about jobs.

    Args:
        fleet: target of the jobs.
        ledger: record of the jobs.
        count: number of threads.
        seed: seed of their choices.
    """

    def __init__(self, fleet: Asked, ledger: JobLedger, count: int, seed: int) -> None:
        self._fleet = fleet
        self._ledger = ledger
        self._seed = seed
        self._numbers = itertools.count()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._heard_all = threading.Event()
        self._callers = [
            threading.Thread(target=self._hand_in, args=(random.Random(seed - n),))
            for n in range(count)
        ]
        self._listener = threading.Thread(target=self._listen)
        self._finished: list[tuple[int, str, str]] = []

    def __enter__(self) -> "JobCallers":
        for thread in (self._listener, *self._callers):
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._callers:
            thread.join()
        self._heard_all.set()
        self._listener.join()

    def read_again(self) -> None:
        """Reads every finished job that is still stored once more; called after the block."""
        chance = random.Random(self._seed)
        for known, key, job_id in self._finished:
            if known != self._fleet.lost_memory:
                continue
            document = self._read(job_id, chance, time.monotonic() + PATIENCE_S)
            if document is not None:
                self._ledger.ended(key, document)

    def _hand_in(self, chance: random.Random) -> None:
        while not self._over.wait(PAUSE_S):
            key, value = f"key-{next(self._numbers)}", float(chance.randrange(1000))
            known = self._fleet.lost_memory
            with self._lock:
                self._ledger.submitted(key, SCALE * value)
            job_id = self._submit(key, value, chance)
            if job_id is not None and chance.random() < SUBMITTED_AGAIN:
                job_id = self._submit(key, value, chance) or job_id
            document = job_id and self._follow(job_id, chance, known)
            with self._lock:
                if self._fleet.lost_memory != known:
                    self._ledger.forgotten(key)
                elif job_id and document:
                    self._ledger.ended(key, document)
                    self._finished.append((known, key, job_id))

    def _submit(self, key: str, value: float, chance: random.Random) -> str | None:
        """Submits a job until it is accepted, or the run is over. Returns its id."""
        row = {"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}
        headers = {"idempotency-key": key}
        path = f"/v2/models/{MODEL}/jobs"
        while True:
            status, document = self._call(chance, "POST", path, {"inputs": [row]}, headers)
            if status in (200, 202):
                with self._lock:
                    self._ledger.accepted(key, document["id"])
                return str(document["id"])
            if self._over.wait(AGAIN_S):
                return None

    def _follow(self, job_id: str, chance: random.Random, known: int) -> Mapping[str, Any] | None:
        """Waits until a job is finished. Returns it, or None after the timeout."""
        give_up_at = float("inf")
        while self._fleet.lost_memory == known and time.monotonic() < give_up_at:
            document = self._read(job_id, chance, time.monotonic())
            if document is not None:
                return document
            if self._over.wait(AGAIN_S) and give_up_at == float("inf"):
                give_up_at = time.monotonic() + PATIENCE_S
        return None

    def _read(
        self, job_id: str, chance: random.Random, give_up_at: float
    ) -> Mapping[str, Any] | None:
        """Reads a finished job, with retries until then."""
        while True:
            path = f"/v2/jobs/{job_id}?wait={WAIT_S}s"
            status, document = self._call(chance, "GET", path)
            if status == 200 and document["state"] in OVER:
                return document
            if time.monotonic() >= give_up_at:
                return None
            time.sleep(AGAIN_S)

    def _call(
        self, chance: random.Random, method: str, path: str, body: object = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Mapping[str, Any]]:  # fmt: skip
        """Sends a request to one of the gateways. Returns status and body; status 0 on failure."""
        connection = http.client.HTTPConnection(chance.choice(self._fleet.https), timeout=30)
        try:
            text = None if body is None else json.dumps(body)
            connection.request(method, path, text, dict(headers or {}))
            reply = connection.getresponse()
            said = reply.read()
            if reply.status in NOT_OURS and not said.startswith(b"{"):
                return 0, {}  # a response of a proxy: the request reached no gateway
            return reply.status, json.loads(said)
        except (OSError, http.client.HTTPException):
            return 0, {}
        finally:
            connection.close()

    def _listen(self) -> None:
        """Records Redis' events about jobs. Events during a disconnection are missed."""
        while not self._heard_all.is_set():
            with (
                suppress(RedisError),
                redis.Redis.from_url(self._fleet.redis.url) as client,
                client.pubsub(ignore_subscribe_messages=True) as channel,
            ):
                channel.psubscribe(FINISHED_CHANNELS)
                while not self._heard_all.is_set():
                    said = channel.get_message(timeout=AGAIN_S)
                    if said is not None:
                        with self._lock:
                            self._ledger.announced(f"{MODEL}.{said['data'].decode()}")
            self._heard_all.wait(AGAIN_S)
