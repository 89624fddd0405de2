"""One run: a fleet under steady load, one fault after the other, and the ledger at the end."""

import random
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tests.chaos.callers import MODEL, SCALE, Callers
from tests.chaos.faults import FAULTS, NETWORK_FAULTS, POISONED, Fault
from tests.chaos.fleet import Fleet, hosts
from tests.chaos.job_callers import JobCallers
from tests.chaos.job_ledger import JobLedger
from tests.chaos.ledger import Ledger
from tests.chaos.network import Network, why_no_network
from tests.fixtures import misbehaving_models, onnx_models

WORKERS, GATEWAYS, CALLERS, JOB_CALLERS = 3, 2, 8, 2
QUIET_S = 2.0
"""Seconds between faults: most of the time all is well."""
HEALED_S = 30.0
"""Seconds after the last fault within which everything must be answered."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a run."""

    broken: list[str]
    requests: Counter[str]
    jobs: Counter[str] | None
    """None if there were none."""
    faults: Counter[str]
    answered_at_the_end: int
    """Requests answered after the last fault: all parts must run again."""
    exit_codes: list[int]

    def complaints(self) -> list[str]:
        """Returns every violation, one line each."""
        found = list(self.broken)
        if not self.answered_at_the_end:
            found.append("nothing was answered after the last fault")
        if any(self.exit_codes):
            found.append(f"exit codes of gateways and workers: {self.exit_codes}")
        if 2 * self.requests["answered"] < self.requests.total():
            found.append("fewer than half of the requests were answered")
        if self.jobs is not None and not self.jobs["done"]:
            found.append("no job was done")
        return found


def run_chaos(
    seconds: float, seed: int, flavour: str, faults: tuple[Fault, ...] | None = None
) -> Verdict:
    """Runs chaos.

    Args:
        seconds: duration of the faults.
        seed: seed of all choices.
        flavour: flavour of Redis.
        faults: faults to choose from; None for all that are possible here.
    """
    chance, requests, jobs = random.Random(seed), Ledger(), JobLedger()
    happened = Counter[str]()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        no_network = why_no_network()
        if no_network:
            print(f"no faults of the network: {no_network}", flush=True)
        network = None if no_network else stack.enter_context(Network(hosts(WORKERS)))
        if faults is None:
            faults = FAULTS if no_network else FAULTS + NETWORK_FAULTS
        store = folder / "store"
        onnx_models.publish(str(store), MODEL, onnx_models.linear(SCALE))
        misbehaving_models.publish(str(store), POISONED, misbehaving_models.crashing())
        fleet = Fleet(store, folder, flavour, network, WORKERS, GATEWAYS)
        stack.callback(fleet.kill)
        fleet.start([MODEL, POISONED])
        with (
            Callers(fleet, requests, CALLERS, seed),
            JobCallers(fleet, jobs, JOB_CALLERS, seed) as job_callers,
        ):
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                time.sleep(chance.uniform(0, 2 * QUIET_S))
                fault = chance.choice(faults)
                happened[fault.__name__] += 1
                began = time.monotonic()
                fault(fleet, chance)
                print(f"{fault.__name__}: {time.monotonic() - began:.1f} s, "
                      f"requests {dict(requests.counts())}, jobs {dict(jobs.counts())}",
                      flush=True)  # fmt: skip
            answered = wait_until_answered(requests, 100)
        job_callers.read_again()
        codes = fleet.stop()
        if network is not None and network.slowed_with:
            print(f"the network was slowed with {network.slowed_with}", flush=True)
    broken = requests.broken() + jobs.broken()
    return Verdict(broken, requests.counts(), jobs.counts(), happened, answered, codes)


def wait_until_answered(ledger: Ledger, more: int) -> int:
    """Waits for so many more answers. Returns how many came in time."""
    before = ledger.counts()["answered"]
    give_up_at = time.monotonic() + HEALED_S
    while (found := ledger.counts()["answered"] - before) < more and time.monotonic() < give_up_at:
        time.sleep(0.1)
    return found
