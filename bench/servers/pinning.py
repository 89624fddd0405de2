"""Cores of servers and clients: free by default, as users run them, or one core each (`--pinned`).

Free, the system places every thread, and a server shares the machine with its load. Pinned, neither
disturbs the other, which shows smaller differences between commits, but no user runs a server so.
"""

import argparse
import functools
import gc
import os
from collections.abc import Callable

SERVER_CORE = 0
CLIENT_CORE = 1

_chosen = {"pinned": False}


def add_cores_option(parser: argparse.ArgumentParser) -> None:
    """Adds `--pinned`; `become_client` applies it."""
    parser.add_argument(
        "--pinned",
        action="store_true",
        help="give server and client a core each, instead of letting both use all cores",
    )


def become_client(*, pinned: bool) -> None:
    """Chooses the cores of this process and of all that it starts.

    Also freezes imported objects for the garbage collector: scanning torch's modules causes pauses
    of tens of milliseconds.

    Args:
        pinned: True to give server and client a core each.
    """
    _chosen["pinned"] = pinned
    cores_apart.cache_clear()
    pinned_to(CLIENT_CORE)()
    gc.collect()
    gc.freeze()


@functools.cache
def cores_apart() -> bool:
    """Returns True if server and client have a core each, as of the first call.

    The result is cached: a process that has pinned itself to one core still pins its children to
    the other.
    """
    return _chosen["pinned"] and {SERVER_CORE, CLIENT_CORE} <= os.sched_getaffinity(0)


def pinned_to(core: int) -> Callable[[], None]:
    """Returns a `preexec_fn` that pins a child process, if cores are apart."""
    apart = cores_apart()

    def pin() -> None:
        if apart:
            os.sched_setaffinity(0, {core})

    return pin


def where() -> str:
    """Describes the cores for a report."""
    if cores_apart():
        return "the server on one core and the client on another"
    return f"server and client on {len(os.sched_getaffinity(0))} free cores"
