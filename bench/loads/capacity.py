"""Finds the load that a server answers in time when requests arrive independently of responses.

The result is below a closed loop of a few clients: requests arrive at random times over as many
connections as needed, so that more of them are handled one by one.
"""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from bench.loads.open_loop import OpenLoop, Shots, poisson_arrivals
from bench.loads.shooter import Shooter
from bench.loads.shooters import open_shooter
from bench.peers.peer import Ask, Form
from flambeau.server_process import ServerProcess

SEARCHED = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Loads tried, as parts of the highest rates."""
TRIAL_S = 6.0
FAILING = 0.8
"""Share answered in time; the first load below it is the last one tried."""
SEED = 41


@dataclass(frozen=True, slots=True)
class Stream:
    """One kind of request, and its highest possible rate."""

    form: Form
    ask: Ask
    per_second: float


async def find_capacity(
    server: ServerProcess, streams: Sequence[Stream], searched: Sequence[float] = SEARCHED
) -> float:
    """Returns the largest part of these rates that every stream answers in time; logs progress.

    Args:
        server: server under load.
        streams: streams that run together.
        searched: loads tried, as parts of the highest rates, ascending.
    """
    capacity = 0.0
    for part in searched:
        answered = await _try(server, streams, part)
        each = ", ".join(f"{share:.0%}" for share in answered)
        print(f"  {part:.0%} of that, at random moments: answered in time {each}", flush=True)
        capacity = max(capacity, part * min(answered))
        if min(answered) < FAILING:
            break
    return capacity


async def _try(server: ServerProcess, streams: Sequence[Stream], part: float) -> list[float]:
    """Returns the share of a load that is answered before it ends, for each stream."""
    shooters: list[Shooter] = []
    trials: list[tuple[int, Shots]] = []
    end = time.monotonic() + TRIAL_S
    try:
        async with asyncio.TaskGroup() as tasks:
            for number, stream in enumerate(streams):
                shots = Shots()
                shooters.append(open_shooter(stream.form, server.http, server.grpc, [stream.ask]))
                arrivals = poisson_arrivals(part * stream.per_second, TRIAL_S, SEED + number)
                tasks.create_task(OpenLoop(shooters[-1], arrivals, shots, spins=False).run())
                trials.append((len(arrivals), shots))
    finally:
        for shooter in shooters:
            await shooter.close()
    return [shots.answered_by(end) / offered for offered, shots in trials]
