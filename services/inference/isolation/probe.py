"""Opens an artifact under limits of memory and time, and reports the memory that it took.

In: the files of an artifact, and limits. Out: bytes at the peak, or the reason of a failure.

A process that has imported the runtime forks a child for it (`probe_host.py`): 20 to 40 ms for a
tiny model, whereas a new process takes half a second to several.
"""

import socket
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from model_store.host.own_process import own_command
from model_store.manifest import Manifest
from services.errors import DeviceError
from services.inference.backends.device import CPU
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.served_kinds import SERVED_KINDS
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.isolation.channel import Channel, ChannelClosedError
from services.inference.isolation.forwarded_output import ForwardedOutput
from services.inference.isolation.probe_host import WALL_PER_CPU
from services.inference.isolation.sent_artifact import packed, send_opening

_HOST = "services.inference.isolation.probe_host"
START_S = 60.0
"""Timeout of importing a runtime on a busy machine."""
GRACE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLimits:
    """Limits of a probe."""

    memory_bytes: int
    cpu_s: float
    low_priority: bool = False
    """True for the lowest priority; otherwise just below the event loop, as for models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Outcome of a probe."""

    peak_bytes: int | None = None
    """Peak memory of the largest batch, beside the runtime; None if the probe failed."""
    over_memory: bool = False
    """True if it exceeded its memory limit."""
    over_time: bool = False
    """True if it exceeded its time limit."""
    crashed: bool = False
    """True if its process ended unexpectedly."""
    fault: str = ""
    """Message of the error that it raised, or of the end of its process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeFiles:
    """Files that a probe reads, with verified digests."""

    golden: bytes
    artifact: VerifiedArtifact


class ProbeHosts:
    """The processes that fork probes: one per runtime, started when it is first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._hosts: dict[str, _Host] = {}

    def probe(
        self,
        manifest: Manifest,
        files: ProbeFiles,
        options: OpenOptions,
        limits: ProbeLimits,
    ) -> Probed:
        """Opens and runs an artifact in a separate process; blocks until that has ended.

        Args:
            manifest: manifest of the version.
            files: one of its artifacts, and the golden rows.
            options: options to serve it with; the probe uses the CPU and one thread, and only
                opens an artifact that will run on a GPU.
            limits: limits of the probe.

        Raises:
            DeviceError: no process can be started, or it does not become ready.
        """
        described, contents = packed(files.artifact)
        parts = [manifest.model_dump_json().encode(), files.golden]
        how = {
            "artifact": described,
            "sizes": [len(part) for part in parts],
            "options": asdict(replace(options, device=CPU, threads=1)),
            "memory_bytes": limits.memory_bytes,
            "cpu_s": limits.cpu_s,
            "low_priority": limits.low_priority,
            "runs": options.device == CPU,
        }
        package = SERVED_KINDS[files.artifact.entry.kind].package
        for _ in range(2):  # a host may reach its idle timeout at this moment
            with self._child(package) as channel:
                outcome = _outcome(channel, how, [*parts, *contents], limits)
            if outcome is not None:
                return outcome
        kind = files.artifact.entry.kind
        raise DeviceError(f"no process to try artifacts of {kind} becomes ready")

    def close(self) -> None:
        """Ends the processes."""
        with self._lock:
            for package in list(self._hosts):
                self._end(package)

    def _child(self, package: str) -> "_Child":
        """Forks a child and returns the channel to it."""
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, self._lock:
            for _ in range(2):
                try:
                    self._host(package).send("probe", None, theirs.fileno())
                    break
                except ChannelClosedError:
                    self._end(package)
        return _Child(ours)

    def _host(self, package: str) -> Channel:
        host = self._hosts.get(package)
        if host is not None and not host.waiter.is_alive():
            self._end(package)
            host = None
        if host is None:
            host = self._hosts[package] = _start(package)
        return host.channel

    def _end(self, package: str) -> None:
        host = self._hosts.pop(package)
        host.channel.close()
        host.waiter.join(GRACE_S)
        if host.waiter.is_alive():
            host.process.kill()
            host.waiter.join()


class _Host(NamedTuple):
    """A process that forks probes."""

    process: "subprocess.Popen[bytes]"
    channel: Channel
    waiter: threading.Thread
    """Thread that reaps the process when it ends by itself: the server keeps no zombies."""


class _Child(Channel):
    """A channel that closes at the end of a `with` block, which ends the child."""

    def __enter__(self) -> "_Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _outcome(
    channel: Channel, how: dict[str, Any], parts: Sequence[bytes], limits: ProbeLimits
) -> Probed | None:
    """Returns the outcome that a child reports; None if there is no child."""
    try:
        channel.wait_at_most(START_S)
        send_opening(channel, how, parts)
        channel.receive()  # begun
    except (ChannelClosedError, TimeoutError):
        return None
    started, wall_s = time.monotonic(), limits.cpu_s * WALL_PER_CPU
    try:
        channel.wait_at_most(wall_s + GRACE_S)
        kind, content, _ = channel.receive()
    except TimeoutError:
        return Probed(over_time=True)
    except ChannelClosedError:
        if time.monotonic() - started >= limits.cpu_s:
            return Probed(over_time=True)
        ended = "its process exited while it was opened or ran: it crashed, or memory was short"
        return Probed(crashed=True, fault=ended)
    if kind == "needs":
        return Probed(peak_bytes=content["peak_bytes"])
    return Probed(over_memory=content["memory"], fault=content["text"])


def _start(package: str) -> _Host:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs, ForwardedOutput(_HOST) as output:
        process = subprocess.Popen(  # noqa: S603
            own_command(_HOST, str(theirs.fileno()), package),
            stdin=subprocess.DEVNULL,
            stdout=output.sink,
            pass_fds=[theirs.fileno()],
        )

    def reap() -> None:
        process.wait()
        output.end()

    waiter = threading.Thread(target=reap, name=f"end of {_HOST}", daemon=True)
    waiter.start()
    return _Host(process, Channel(ours), waiter)
