"""The process that forks probes: it has imported a runtime, and does nothing else.

Started by `ProbeHosts` as `python -m services.inference.isolation.probe_host FD PACKAGE`, where FD
is its end of a channel. Each `probe` message carries the end of another channel, for a child that
opens one artifact, runs its golden rows, and reports the memory and CPU time that this took.

Rules:
- the host forks while none of its own threads is running: it never uses the runtime itself;
- the kernel limits a child's memory, CPU time and wall-clock time; the child ends when its parent
  closes the channel;
- the host ends with the server, and by itself after `IDLE_S` without a probe.
"""

import contextlib
import importlib
import os
import signal
import socket
import sys
import threading
import time
import warnings
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from flambeau.protocol.row_form import batch_of
from flambeau.protocol.signature import Signature
from model_store.golden import GoldenRows, parse_golden
from model_store.host.failure_text import error_text
from model_store.host.memory_limit import limit_memory, tells_of_memory
from model_store.host.peak_memory import PeakMemory
from model_store.manifest import parse_manifest
from services.inference.backends.backend import Backend
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.isolation.channel import Channel, ChannelClosedError
from services.inference.isolation.sent_artifact import receive_opening, unpacked
from services.inference.isolation.worker_process import FIRST_TO_KILL, end_with_parent
from services.low_priority_thread import NICENESS, STEPS_BELOW_LOOP, lower_priority_below

IDLE_S = 10.0
"""Idle timeout after the last probe: a process with torch takes a quarter of a gigabyte."""
WALL_PER_CPU = 10.0
"""Wall-clock limit, as a multiple of the CPU limit: a process of low priority waits for others."""
RUN_S = 0.5
"""Approximate CPU time of the largest batch that is run."""
MAX_INPUT_BYTES = 2**26
"""Most bytes of a batch's inputs: the limit of a request, unless an operator raised that."""
_MAX_ERROR_CHARACTERS = 2_000


def main() -> None:
    """Forks a child per probe, until the server closes the channel or is idle for `IDLE_S`."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):  # children leave no zombies
        signal.signal(number, signal.SIG_IGN)
    # Python warns of a fork beside threads: ONNX Runtime has one, which no child depends on.
    warnings.simplefilter("ignore", DeprecationWarning)
    lower_priority_below(os.getppid(), STEPS_BELOW_LOOP)
    importlib.import_module(sys.argv[2])
    channel = Channel(socket.socket(fileno=int(sys.argv[1])))
    channel.wait_at_most(IDLE_S)
    with contextlib.suppress(ChannelClosedError, TimeoutError):
        while True:
            _, _, descriptor = channel.receive()
            assert descriptor is not None
            if os.fork() == 0:
                channel.close()
                _probe_and_end(Channel(socket.socket(fileno=descriptor)))
            os.close(descriptor)


def _probe_and_end(channel: Channel) -> None:
    code = 1
    try:
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # a probe waits for compilers it starts
        with contextlib.suppress(OSError):
            Path("/proc/self/oom_score_adj").write_text(FIRST_TO_KILL)
        closed = threading.Event()
        arguments = (channel.fileno(), closed)
        threading.Thread(target=end_with_parent, args=arguments, daemon=True).start()
        _probe(channel)
        code = 0
    finally:
        os._exit(code)


def _probe(channel: Channel) -> None:
    """Sends `begun`, and then `needs` or `error`."""
    how, file = receive_opening(channel)
    limit_memory(how["memory_bytes"])
    if how["low_priority"]:
        lower_priority_below(os.getppid(), NICENESS)
    for timer, number, factor in (
        (signal.ITIMER_PROF, signal.SIGPROF, 1.0),
        (signal.ITIMER_REAL, signal.SIGALRM, WALL_PER_CPU),
    ):
        signal.signal(number, signal.SIG_DFL)  # the default ends the process
        signal.setitimer(timer, how["cpu_s"] * factor)
    channel.send("begun", None)
    peak, started = PeakMemory(), time.process_time()
    try:
        grown_bytes = _open_and_run(how, file, peak)
    except BaseException as error:  # a runtime may raise anything on a file it cannot run
        text = error_text(error)
        memory = isinstance(error, MemoryError) or tells_of_memory(text)
        channel.send("error", {"text": text[:_MAX_ERROR_CHARACTERS], "memory": memory})
    else:
        seconds = time.process_time() - started
        channel.send("needs", {"peak_bytes": grown_bytes, "cpu_s": seconds})


def _open_and_run(how: dict[str, Any], file: IO[bytes], peak: PeakMemory) -> int:
    with file:
        manifest_bytes, golden_bytes = (file.read(size) for size in how["sizes"])
        artifact = unpacked(how["artifact"], file)
        file.truncate(0)  # the file is memory, too, and has been read
    manifest = parse_manifest(manifest_bytes, "the manifest")
    golden = parse_golden(golden_bytes, manifest)
    options = TypeAdapter(OpenOptions).validate_python(how["options"])
    backend = open_backend(artifact, options)
    if not how["runs"]:  # the artifact will run on a GPU, which may be many times as fast
        return peak.grown_bytes() or 0
    return _grown_bytes(backend, golden, manifest.signature, peak)


def _grown_bytes(
    backend: Backend, golden: GoldenRows, signature: Signature, peak: PeakMemory
) -> int:
    """Returns the peak memory, in bytes, of a run of the maximum batch size.

    For slow models it is extrapolated from a smaller batch: memory grows with the rows.
    """
    row_bytes = sum(array[:1].nbytes for array in golden.inputs.values())
    largest = min(signature.max_batch_size, max(MAX_INPUT_BYTES // max(row_bytes, 1), 1))
    one_row = batch_of(golden.inputs, signature, 1)
    backend.run(one_row)  # triggers lazy initialization
    started = time.process_time()
    backend.run(one_row)
    row_s = max(time.process_time() - started, 1e-6)
    alone = peak.grown_bytes() or 0
    rows = min(largest, max(int(RUN_S / row_s), 2))
    if rows < 2:
        return alone
    backend.run(batch_of(golden.inputs, signature, rows))
    together = peak.grown_bytes() or 0
    return alone + (together - alone) * (largest - 1) // (rows - 1)


if __name__ == "__main__":
    main()
