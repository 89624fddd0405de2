"""`make conformance-torchserve`: the same calls of TorchServe 0.12 and of ours.

Prints its seed first; `--seed` repeats the orders of management. Ends with the differences.
"""

import argparse
import contextlib
import random
import signal
import sys
import tempfile
from collections import Counter
from pathlib import Path

from bench.peers.environment import Environment
from tests.conformance_torchserve.archives import NAMES, write_archives
from tests.conformance_torchserve.clients import Clients
from tests.conformance_torchserve.descriptors import differences
from tests.conformance_torchserve.differences import named, reason_of, rule_of
from tests.conformance_torchserve.exported import EXPORTED, NEEDED, write_exported
from tests.conformance_torchserve.exported import NAMES as EXPORTED_NAMES
from tests.conformance_torchserve.inference_scripts import INFERENCE, Script
from tests.conformance_torchserve.management_scripts import SINGLE, walk
from tests.conformance_torchserve.servers import (
    NO_WORKERS,
    installed,
    register_all,
    running_ours,
    running_real,
)
from tests.conformance_torchserve.token_scripts import TOKENS

STEPS = 25
"""Steps of one order of management."""
TRIES = 3
FIRST = ("tell",)
"""The model that both have from the start: calls without a model are of it."""


class NoWorkersError(Exception):
    """Workers of TorchServe alone did not start, as happens on a busy machine."""


class Comparison:
    """The outcome so far."""

    def __init__(self) -> None:
        self.equal = 0
        self.explained: Counter[str] = Counter()
        self.faults: list[str] = []

    def compare(self, script: Script, theirs: Clients, ours: Clients) -> bool:
        """Asks both; returns True unless the answers differ without a reason.

        Answers that should differ and do not are a fault, too.

        Raises:
            NoWorkersError: the servers are not comparable from here.
        """
        first, second = (outcome(script, server) for server in (theirs, ours))
        if NO_WORKERS in first and NO_WORKERS not in second:
            raise NoWorkersError
        reason = reason_of(script)
        if first != second:
            reason = reason or rule_of(script, first, second)
        if (first == second) == bool(reason):
            self.faults.append(
                f"{named(script)}: expected to differ: {reason or 'not'}\n"
                f"    TorchServe {first}\n    ours       {second}"
            )
            print(f"BROKEN {self.faults[-1]}", flush=True)
            return bool(reason)
        if reason:
            self.explained[reason] += 1
        else:
            self.equal += 1
        return True

    def compare_alone(self, script: Script, theirs: Clients, ours: Clients) -> None:
        """Compares the answers to calls that no others build on."""
        try:
            self.compare(script, theirs, ours)
        except NoWorkersError:
            self.faults.append(f"{named(script)}: workers of TorchServe did not start")


def outcome(script: Script, server: Clients) -> str:
    """Returns the answers as text; of calls that broke, what broke them."""
    try:
        found = script.ask(server)
    except (OSError, ValueError, LookupError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return str(found) if not isinstance(found, list) else "\n".join(map(str, found))


def main() -> int:
    """Runs all of it, and prints the outcome. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance_torchserve")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32))
    parser.add_argument("--orders", type=int, default=8, help="orders of management")
    parser.add_argument("--only", default="", help="scripts whose names have these words")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends all it started
    environment = installed()
    if environment is None:
        print("TorchServe is not installed; make bench-peers does that")
        return 1
    print(f"seed {given.seed}", flush=True)
    found = Comparison()
    found.faults += differences(environment)
    print("\n".join(found.faults) or "the .proto files of TorchServe are those of our tests")
    with contextlib.ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="torchserve-")))
        for name in ("store", "theirs", "ours"):
            (home / name).mkdir()
        write_archives(home / "store")
        write_exported(home / "store")
        real = running_real(environment, home / "store", home / "theirs", FIRST, packages=NEEDED)
        servers = (
            stack.enter_context(real),
            stack.enter_context(running_ours(home / "store", home / "ours", FIRST)),
        )
        for server in servers:
            register_all(server, [name for name in (*NAMES, *EXPORTED_NAMES) if name not in FIRST])
        theirs, ours = (
            stack.enter_context(contextlib.closing(Clients(server))) for server in servers
        )
        _compare_tokens(found, environment, home, given.only)
        for script in (*SINGLE, *INFERENCE, *EXPORTED):
            if given.only in script.name:
                found.compare_alone(script, theirs, ours)
        if not given.only:
            for number in range(given.orders):
                _order(found, given.seed + number, theirs, ours)
    for reason, times in found.explained.most_common():
        print(f"{times:6} differ: {reason}")
    total = found.equal + found.explained.total() + len(found.faults)
    print(f"{found.equal} of {total} calls: the same answer as TorchServe's")
    print(f"{len(found.faults)} differ without a reason")
    return 1 if found.faults else 0


def _compare_tokens(found: Comparison, environment: Environment, home: Path, only: str) -> None:
    """Compares calls without the right token, of servers without models that ask for one."""
    scripts = [script for script in TOKENS if only in script.name]
    if not scripts:
        return
    asks = {"disable_token_authorization": "false"}
    for name in ("their tokens", "our tokens"):
        (home / name).mkdir()
    with contextlib.ExitStack() as stack:
        real = running_real(environment, home / "store", home / "their tokens", **asks)
        ours = running_ours(home / "store", home / "our tokens", **asks)
        first, second = (
            stack.enter_context(contextlib.closing(Clients(stack.enter_context(server))))
            for server in (real, ours)
        )
        for script in scripts:
            found.compare_alone(script, first, second)


def _order(found: Comparison, seed: int, theirs: Clients, ours: Clients) -> None:
    """Makes the calls of one order, again if workers of TorchServe did not start."""
    for _ in range(TRIES):
        if _walked(found, random.Random(seed), theirs, ours):
            return
        print(f"order {seed}: workers of TorchServe did not start", flush=True)
    found.faults.append(f"order {seed} was not finished")


def _walked(found: Comparison, chance: random.Random, theirs: Clients, ours: Clients) -> bool:
    """Makes the calls of one order; behind a fault, only those that undo it.

    Returns:
        False if workers of TorchServe did not start.
    """
    said: list[str] = []
    is_over, has_workers = False, True
    for name, protocol, call in walk(chance, STEPS):
        script = Script(name, protocol, call)
        if is_over:
            if name == "undo":
                _ = outcome(script, theirs), outcome(script, ours)
            continue
        try:
            is_over = not found.compare(script, theirs, ours)
        except NoWorkersError:
            is_over, has_workers = True, False
        if is_over and has_workers:
            print(f"    behind: {'; '.join(said)}", flush=True)
        said.append(name)
    return has_workers


if __name__ == "__main__":
    sys.exit(main())
