"""One pod: a process in a namespace of its own, which starts and stops as in Kubernetes."""

import signal
import subprocess
import time
from collections.abc import Sequence
from pathlib import Path

from tests.chaos.network import Network
from tests.fixtures.servers import ROOT, Lines

START_TIMEOUT_S = 120.0
NETNS_CONFIG = Path("/etc/netns")
"""Folder whose subfolders, named by namespace, are overlaid on /etc within it (ip-netns(8))."""


class Host:
    """A namespace that uses our name server; its configuration is removed after the block.

    Args:
        network: network that it is added to.
        name: name of the host.
    """

    def __init__(self, network: Network, name: str) -> None:
        self._network, self.name = network, name
        self._folder = NETNS_CONFIG / network.namespace(name)

    def __enter__(self) -> "Host":
        self._folder.mkdir(parents=True)
        (self._folder / "resolv.conf").write_text(f"nameserver {self._network.bridge_address}\n")
        self._network.add(self.name)
        return self

    def __exit__(self, *_: object) -> None:
        (self._folder / "resolv.conf").unlink()
        self._folder.rmdir()

    @property
    def address(self) -> str:
        """Address of the host."""
        return self._network.address(self.name)

    @property
    def within(self) -> list[str]:
        """Prefix of a command that runs in this namespace."""
        return self._network.within(self.name)

    def cut(self) -> None:
        """Cuts all traffic without closing any connection."""
        self._network.cut(self.name)


class Pod:
    """A running process on a host of its own.

    Args:
        host: host of the pod alone.
        node: node that it shares with other pods.
        command: command of the process.
        ready_line: part of the log line that shows readiness.
    """

    def __init__(self, host: Host, node: str, command: Sequence[str], ready_line: str) -> None:
        self.host, self.node = host, node
        self._ready_line = ready_line
        self._process = subprocess.Popen(
            [*host.within, *command],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert self._process.stderr is not None
        self.log = Lines(self._process.stderr)

    @property
    def name(self) -> str:
        """Name of the pod, and of its host."""
        return self.host.name

    def await_ready(self) -> None:
        """Waits until it logs readiness."""
        self.log.wait_for(lambda line: self._ready_line in line, START_TIMEOUT_S)

    def end(self, prestop_s: float, grace_s: float) -> int:
        """Terminates it as a kubelet does.

        Args:
            prestop_s: duration of its preStop hook, before SIGTERM.
            grace_s: grace period after that, before SIGKILL.

        Returns:
            Its exit code; negative for the signal that ended it.
        """
        time.sleep(prestop_s)  # the real hook sleeps, too
        self._process.send_signal(signal.SIGTERM)
        try:
            return self._process.wait(grace_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def kill(self) -> None:
        """Kills it, as a power cut would."""
        self._process.kill()
        self._process.wait()
        self.log.join()
