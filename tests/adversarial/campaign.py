"""Runs attacks one after the other, each beside a healthy client."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from services.low_priority_thread import NICENESS, lower_priority
from tests.adversarial.attack import Attack, Target, VictimName
from tests.adversarial.neighbour import APIS, Neighbour, Seen, neighbour
from tests.adversarial.verdict import MAX_ATTACKED_STALL_S, MAX_STALL_S, Row, combined
from tests.adversarial.victim import Victim, make_store, running_victim

ROUND_TIMEOUT_S = 60.0
REPETITIONS = 2
"""Repetitions of an attack with a stall over the limit. A fault of the server recurs; a pause of
the machine, which may affect one core and not the other, does not."""


class Campaign:
    """Attacks on one kind of server, which is restarted if one of them ends it.

    Args:
        victim: kind of the server.
        folder: folder for its store.
        seed: seed of all random choices.
        seconds: duration of each attack.
        report: callback for each measurement.
        max_stall_s: an attack with a longer stall is repeated; the median counts.
        one_server: runs all families on one server. Their memory is then measured less exactly:
            what an allocator keeps from one family may serve the next.
    """

    def __init__(
        self,
        victim: VictimName,
        folder: Path,
        seed: int,
        seconds: float,
        report: Callable[[Row], None],
        max_stall_s: float = MAX_STALL_S,
        *,
        one_server: bool = False,
    ) -> None:
        self._name, self._folder = victim, folder
        self._seed, self._seconds, self._report = seed, seconds, report
        self._max_stall_s, self._one_server = max_stall_s, one_server
        self._store = folder / f"store-{victim}"
        make_store(self._store)

    def run(self, attacks: Sequence[Attack]) -> list[Row]:
        """Runs the attacks in order, each family on a fresh server unless `one_server`."""
        left, rows = list(attacks), []
        while left:
            family = left[0].family
            with running_victim(self._name, self._store, self._folder) as victim:
                server = victim.server
                grpc_port = 0 if self._name == "trainer" else server.grpc_port
                with neighbour(
                    server.http_port,
                    grpc_port,
                    victim.key,
                    victim.certificate,
                    self._name if self._name in APIS else "",
                ) as beside:
                    while left and not victim.has_ended:
                        if left[0].family != family:
                            if not self._one_server:
                                break
                            family = left[0].family
                            victim.rebase_memory()
                        rows.append(self._judge(left.pop(0), victim, beside))
        return rows

    def _judge(self, attack: Attack, victim: Victim, beside: Neighbour) -> Row:
        """Measures an attack, and repeats one whose stall is over the limit."""
        rows = [self._attack(attack, victim, beside)]
        seen = rows[0].seen
        if seen.worst_stall_s > self._max_stall_s or seen.attacked_stall_s > MAX_ATTACKED_STALL_S:
            for _ in range(REPETITIONS):
                if not victim.has_ended:
                    rows.append(self._attack(attack, victim, beside))
        return combined(rows)

    def _attack(self, attack: Attack, victim: Victim, beside: Neighbour) -> Row:
        ends_at = time.monotonic() + self._seconds
        target = Target(victim.server, victim.store, victim.key, ends_at, victim.persons)
        victim.forget_peak()
        faults = victim.major_faults()
        beside.begin()
        # At the lowest priority: real attackers have machines of their own.
        with ThreadPoolExecutor(1, "attacker", lower_priority, (NICENESS,)) as thread:
            work = _rounds(attack, target, f"{self._seed} {attack.name}")
            rounds = thread.submit(asyncio.run, work).result()
        seen = beside.end() if not victim.has_ended else Seen({}, 0.0, 0, [], [])
        row = Row(
            attack.name,
            rounds,
            seen,
            victim.grown_bytes(),
            max(0, victim.major_faults() - faults),
            target.outcomes,
            (*seen.wrong, *target.wrong_answers),
            victim.has_ended,
        )
        self._report(row)
        return row


async def _rounds(attack: Attack, target: Target, seed: str) -> int:
    """Repeats an attack until its time is over; returns the number of rounds."""
    rounds = 0
    while not rounds or not target.over:
        with contextlib.suppress(OSError):  # includes timeouts and failed connections
            async with asyncio.timeout(ROUND_TIMEOUT_S):
                await attack.run(target, Random(f"{seed} {rounds}"))
        rounds += 1
        if target.server.process.poll() is not None:
            break
    return rounds
