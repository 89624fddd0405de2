"""Runs attacks one after the other, each beside a healthy client."""

import asyncio
import contextlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random

from tests.adversarial.attack import Attack, Target, VictimName
from tests.adversarial.neighbour import Neighbour, Seen, neighbour
from tests.adversarial.verdict import Row
from tests.adversarial.victim import Victim, make_store, running_victim

ROUND_TIMEOUT_S = 60.0
GENTLE = 5
"""How far the attacker steps back: attackers have machines of their own."""


class Campaign:
    """Attacks on one kind of server, which is started anew if one of them ends it.

    Args:
        victim: which kind.
        folder: for its store.
        seed: of all choices.
        seconds: for each attack.
        report: told of each row.
    """

    def __init__(
        self,
        victim: VictimName,
        folder: Path,
        seed: int,
        seconds: float,
        report: Callable[[Row], None],
    ) -> None:
        self._name, self._folder = victim, folder
        self._seed, self._seconds, self._report = seed, seconds, report
        self._store = folder / f"store-{victim}"
        make_store(self._store)

    def run(self, attacks: Sequence[Attack]) -> list[Row]:
        """Runs them in their order, each family on a server that no other has attacked.

        Memory that an allocator keeps of small objects would be charged to attacks that make none.
        """
        left, rows = list(attacks), []
        while left:
            family = left[0].family
            with running_victim(self._name, self._store, self._folder) as victim:
                server = victim.server
                with neighbour(
                    server.http_port, server.grpc_port, victim.key, victim.certificate
                ) as beside:
                    while left and left[0].family == family and not victim.has_ended:
                        row = self._attack(left.pop(0), victim, beside)
                        self._report(row)
                        rows.append(row)
        return rows

    def _attack(self, attack: Attack, victim: Victim, beside: Neighbour) -> Row:
        target = Target(victim.server, victim.store, victim.key, time.monotonic() + self._seconds)
        victim.forget_peak()
        beside.begin()
        with ThreadPoolExecutor(1, initializer=_step_back) as thread:
            work = _rounds(attack, target, f"{self._seed} {attack.name}")
            rounds = thread.submit(asyncio.run, work).result()
        seen = beside.end() if not victim.has_ended else Seen({}, 0.0, 0, [], [])
        return Row(
            attack.name,
            rounds,
            seen,
            victim.grown_bytes(),
            target.outcomes,
            (*seen.wrong, *target.wrong_answers),
            victim.has_ended,
        )


def _step_back() -> None:
    os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), GENTLE)


async def _rounds(attack: Attack, target: Target, seed: str) -> int:
    """Repeats an attack until its time is over; returns how often."""
    rounds = 0
    while not rounds or not target.over:
        with contextlib.suppress(OSError):  # of time, too; or there is no connection
            async with asyncio.timeout(ROUND_TIMEOUT_S):
                await attack.run(target, Random(f"{seed} {rounds}"))
        rounds += 1
        if target.server.process.poll() is not None:
            break
    return rounds
