"""What every server process does at its beginning and at its end."""

import asyncio
import contextlib
import gc
import logging
import os
import secrets
import signal
import socket
import sys
import threading


def process_name(kind: str) -> str:
    """A name no other process has, nor had: what kind it is, where it runs, and chance."""
    return f"{kind}-{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def hush_grpc() -> None:
    """Has grpcio write its own lines for errors only.

    They are not JSON, and every stranger who fails a handshake would add one. To be called
    before `grpc` is first imported; whoever set `GRPC_VERBOSITY` is obeyed.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")


def freeze_garbage() -> None:
    """Takes what start-up made out of the garbage collector's sight.

    Modules and models live as long as the process; looking through them again and again cost
    pauses of 20 ms (32 clients, one core: p99 from 22 to 4 ms, throughput up by a tenth).
    """
    gc.collect()
    gc.freeze()


def stop_on_signals(asked: asyncio.Event) -> None:
    """The first SIGTERM or SIGINT asks for a drain; the second has its default effect."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        asked.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop)


def end_past_held_threads() -> None:
    """Ends the process here, with 0, if threads are left that nothing can wait for.

    Such as one whose model blocks, or is being opened. Were the interpreter to end first, a thread
    that then comes back from native code would be unwound through C++ that forbids it: SIGABRT.
    """
    if any(thread.daemon for thread in threading.enumerate()):
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):  # nobody reads it any more
                stream.flush()
        os._exit(0)
