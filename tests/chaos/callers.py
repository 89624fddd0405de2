"""Steady load: threads that send one request after the other, and record all in the ledger."""

import http.client
import itertools
import json
import random
import threading
from dataclasses import dataclass

from tests.chaos.fleet import Fleet, Member
from tests.chaos.ledger import Ledger
from tests.chaos.processes_server import ProcessesServer

MODEL, SCALE = "linear", 2.0
PAUSE_S = 0.01
"""Seconds between the requests of one client."""
PATIENCE_S = 30.0
"""Timeout of each request; outages are shorter."""
AFTER_FAILURE_S = 0.1


@dataclass(frozen=True, slots=True)
class _Line:
    """A connection, and a mark of its gateway's endings from before it was made."""

    connection: http.client.HTTPConnection
    gateway: Member | ProcessesServer
    mark: int


@dataclass
class Callers:
    """All clients of one run.

    Attributes:
        fleet: target of the requests.
        ledger: record of the requests.
        count: number of threads.
        seed: seed of their choices.
    """

    fleet: Fleet | ProcessesServer
    ledger: Ledger
    count: int
    seed: int

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._lock = threading.Lock()
        self._numbers = itertools.count()
        self._threads = [
            threading.Thread(target=self._ask_on, args=(random.Random(self.seed + n),))
            for n in range(self.count)
        ]

    def __enter__(self) -> "Callers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _ask_on(self, chance: random.Random) -> None:
        lines: dict[int, _Line] = {}
        while not self._over.is_set():
            gateway = chance.randrange(len(self.fleet.gateways))
            if gateway not in lines:
                try:
                    lines[gateway] = self._connect(gateway)
                except OSError:  # it is restarting
                    self._over.wait(AFTER_FAILURE_S)
                    continue
            answered = self._ask(lines[gateway], chance)
            if answered is None:
                lines.pop(gateway).connection.close()
            self._over.wait(PAUSE_S if answered else AFTER_FAILURE_S)
        for line in lines.values():
            line.connection.close()

    def _connect(self, number: int) -> "_Line":
        gateway = self.fleet.gateways[number]
        mark = gateway.endings.now()
        connection = http.client.HTTPConnection(self.fleet.https[number], timeout=2 * PATIENCE_S)
        connection.connect()
        return _Line(connection, gateway, mark)

    def _ask(self, line: "_Line", chance: random.Random) -> bool | None:
        """Sends one request. Returns True on a response; None if the connection has ended."""
        request_id, value = f"r{next(self._numbers)}", float(chance.randrange(1000))
        body = {
            "id": request_id,
            "inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [value] * 4}],
        }
        headers = {"x-request-timeout-ms": str(int(PATIENCE_S * 1000))}
        with self._lock:
            self.ledger.asked(request_id, SCALE * value)
        try:
            line.connection.request("POST", f"/v2/models/{MODEL}/infer", json.dumps(body), headers)
            reply = line.connection.getresponse()
            document = json.loads(reply.read())
        except (OSError, http.client.HTTPException):
            with self._lock:
                self.ledger.cut_off(request_id, line.gateway.endings.since(line.mark))
            return None
        with self._lock:
            if reply.status == 200:
                self.ledger.answered(document["id"], document["outputs"][0]["data"][0])
            else:
                self.ledger.refused(request_id, reply.status, document["error"])
        return reply.status == 200
