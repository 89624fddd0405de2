"""The worker process: opens one artifact and runs the batches that its parent sends.

Started by `IsolatedBackend` as `python -m services.inference.isolation.worker_process FD`, where
FD is its end of a channel.

Rules:
- the process ends with its parent: the kernel closes the channel when the parent ends, for any
  reason. (A parent-death signal, prctl(2), would come when the *thread* that started it ends.)
- it ignores SIGINT and SIGTERM, which a terminal or a service manager sends to every process of
  a server: the parent drains first and then closes the channel;
- it reports an error of the model, and continues.
"""

import contextlib
import faulthandler
import functools
import os
import select
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from pydantic import TypeAdapter

from flambeau.protocol.tensors import Array
from model_store.host.failure_text import error_text, sendable
from model_store.host.memory_limit import explained, limit_memory
from services.errors import DeviceError, InputRefusedError
from services.inference.backends.backend import Backend
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.isolation.channel import Channel, ChannelClosedError
from services.inference.isolation.sent_artifact import receive_opening, unpacked
from services.inference.isolation.shared_tensors import TensorEntry, TensorReader, TensorWriter
from services.low_priority_thread import NICENESS, STEPS_BELOW_LOOP, lower_priority_below

CLOSE_TIMEOUT_S = 1.0
"""Timeout of closing the backend; the parent waits twice as long before it kills the process."""

OUT_OF_MEMORY = 112
"""Exit code once the model ran out of memory: what it leaked stays until the process ends."""
FIRST_TO_KILL = "500"
"""`oom_score_adj`: added to a score of at most 1000, so that the OOM killer ends this one first."""


def main() -> None:
    """Serves the channel until the parent closes it."""
    for number in (signal.SIGINT, signal.SIGTERM):
        # Not SIG_IGN, which commands that the model starts would inherit, and never end.
        signal.signal(number, lambda *_: None)
        signal.siginterrupt(number, False)
    faulthandler.enable()
    with contextlib.suppress(OSError):  # a container may keep /proc read-only
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_KILL)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a pipe
    end = socket.socket(fileno=int(sys.argv[1]))
    end.set_inheritable(False)
    channel = Channel(end)
    os.register_at_fork(after_in_child=functools.partial(_leave_the_server, channel))
    closed = threading.Event()
    arguments = (channel.fileno(), closed)
    threading.Thread(target=end_with_parent, args=arguments, daemon=True).start()
    with contextlib.suppress(ChannelClosedError):
        opened = _open(channel)
        if opened is not None:
            backend, limit_bytes = opened
            try:
                serve(channel, backend, limit_bytes)
            finally:
                backend.close()
    closed.set()


def _leave_the_server(channel: Channel) -> None:
    """Frees a fork of the model's from this process: it must not answer requests, and it ends."""
    channel.close()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)


def end_with_parent(descriptor: int, closed: threading.Event) -> None:
    """Ends the process when the parent closes the channel, even if the model never returns.

    Runtimes may have files to delete, so an idle process closes its backend first.
    """
    hung_up = select.poll()
    hung_up.register(descriptor, 0)  # POLLHUP is always reported
    hung_up.poll()
    closed.wait(CLOSE_TIMEOUT_S)
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)  # with the processes that the model started
    os._exit(0)


def _open(channel: Channel) -> tuple[Backend, int] | None:
    """Returns the opened backend and its memory limit in bytes, 0 for none; None if it failed."""
    how, file = receive_opening(channel)
    limit_bytes: int = how["memory_limit_bytes"]
    if limit_bytes:
        limit_memory(limit_bytes)
    lower_priority_below(os.getppid(), NICENESS if how["low_priority"] else STEPS_BELOW_LOOP)
    try:
        with file:
            artifact = unpacked(how["artifact"], file)
        backend = open_backend(artifact, TypeAdapter(OpenOptions).validate_python(how["options"]))
    except Exception as error:
        _send_error(channel, error, limit_bytes)
        return None
    channel.send("opened", [backend.platform, backend.gives_parts])
    return backend, limit_bytes


def serve(channel: Channel, backend: Backend, limit_bytes: int) -> None:
    """Runs the batches that the parent sends, until it closes the channel.

    Args:
        channel: channel to the parent.
        backend: an open backend.
        limit_bytes: limit of its memory, which errors name; 0 for none.

    Raises:
        ChannelClosedError: the parent has closed the channel.
    """
    inputs, outputs = TensorReader(), TensorWriter(channel)
    while True:
        kind, content, descriptor = channel.receive()
        if kind == "memory":
            inputs.attach(content, cast(int, descriptor))
            continue
        try:
            arrays = {entry[0]: inputs.view(entry) for entry in content}
            if kind == "run_in_parts":
                _run_in_parts(backend, arrays, channel, outputs)
            else:
                channel.send("outputs", _written(backend.run(arrays), outputs))
        except ChannelClosedError:
            raise
        except MemoryError:  # what leaked stays until the process ends
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(OUT_OF_MEMORY)
        except Exception as error:
            _send_error(channel, error, limit_bytes)


def _run_in_parts(
    backend: Backend, arrays: Mapping[str, Array], channel: Channel, outputs: TensorWriter
) -> None:
    """Sends each part, and continues once the parent has taken it, unless nobody reads."""
    with contextlib.closing(backend.run_in_parts(arrays)) as parts:
        for part in parts:
            channel.send("part", _written(part, outputs))
            _, goes_on, _ = channel.receive()
            if not goes_on:
                break
    channel.send("end", None)


def _written(results: Mapping[str, Array], outputs: TensorWriter) -> list[TensorEntry]:
    return [outputs.write(name, array) for name, array in results.items()]


def _send_error(channel: Channel, error: Exception, limit_bytes: int) -> None:
    text = error_text(error)
    if limit_bytes:
        text = explained(error, text, limit_bytes)
    content = {
        "text": sendable(text),
        "device": isinstance(error, DeviceError),
        "refused": isinstance(error, InputRefusedError),
        "trace": sendable("".join(traceback.format_exception(error))),
    }
    channel.send("error", content)


if __name__ == "__main__":
    main()
