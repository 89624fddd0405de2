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
import os
import select
import signal
import socket
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter

from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import Array
from model_store.host.memory_limit import explained, limit_memory
from model_store.manifest import Artifact, PythonStep
from services.errors import DeviceError, InputRefusedError
from services.inference.backends.backend import Backend
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import StepCode, VerifiedArtifact
from services.inference.isolation.channel import Channel, ChannelClosedError
from services.inference.isolation.shared_tensors import TensorEntry, TensorReader, TensorWriter
from services.low_priority_thread import NICENESS, STEPS_BELOW_LOOP, lower_priority_below

CLOSE_TIMEOUT_S = 1.0
"""Timeout of closing the backend; the parent waits twice as long before it kills the process."""

_MAX_ERROR_CHARACTERS = 8192
FIRST_TO_KILL = "500"
"""`oom_score_adj`: added to a score of at most 1000, so that the OOM killer ends this one first."""


def main() -> None:
    """Serves the channel until the parent closes it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    faulthandler.enable()
    with contextlib.suppress(OSError):  # a container may keep /proc read-only
        Path("/proc/self/oom_score_adj").write_text(FIRST_TO_KILL)
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
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


def end_with_parent(descriptor: int, closed: threading.Event) -> None:
    """Ends the process when the parent closes the channel, even if the model never returns.

    Runtimes may have files to delete, so an idle process closes its backend first.
    """
    hung_up = select.poll()
    hung_up.register(descriptor, 0)  # POLLHUP is always reported
    hung_up.poll()
    closed.wait(CLOSE_TIMEOUT_S)
    os._exit(0)


def _open(channel: Channel) -> tuple[Backend, int] | None:
    """Returns the opened backend and its memory limit in bytes, 0 for none; None if it failed."""
    _, content, descriptor = channel.receive()
    assert descriptor is not None
    limit_bytes = content["memory_limit_bytes"]
    if limit_bytes:
        limit_memory(limit_bytes)
    lower_priority_below(os.getppid(), NICENESS if content["low_priority"] else STEPS_BELOW_LOOP)
    try:
        with open(descriptor, "rb") as file:
            artifact = VerifiedArtifact(
                entry=Artifact.model_validate(content["artifact"]),
                signature=Signature.model_validate(content["signature"]),
                data=file.read(content["data_bytes"]),
                weights=file.read(content["weights_bytes"]),
                code=_step_code(content["python_step"], file.read()),
            )
        options = TypeAdapter(OpenOptions).validate_python(content["options"])
        backend = open_backend(artifact, options)
    except Exception as error:
        _send_error(channel, error, limit_bytes)
        return None
    channel.send("opened", [backend.platform, backend.gives_parts])
    return backend, limit_bytes


def _step_code(step: dict[str, Any] | None, source: bytes) -> StepCode | None:
    return None if step is None else StepCode(PythonStep.model_validate(step), source)


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
    text = str(error) or repr(error)
    if limit_bytes:
        text = explained(error, text, limit_bytes)
    if len(text) > _MAX_ERROR_CHARACTERS:  # the end of a traceback has the error
        half = _MAX_ERROR_CHARACTERS // 2
        text = f"{text[:half]}\n...\n{text[-half:]}"
    content = {
        "text": text,
        "device": isinstance(error, DeviceError),
        "refused": isinstance(error, InputRefusedError),
    }
    channel.send("error", content)


if __name__ == "__main__":
    main()
