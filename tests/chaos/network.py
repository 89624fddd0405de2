"""A network between the processes: each host is a namespace of its own, on a bridge to this one.

It requires root, iproute2, and a kernel that allows namespaces. Addresses are of the range for
benchmarks (RFC 2544), which is routed nowhere.
"""

import os
import shutil
import subprocess
from collections.abc import Sequence

NETEM = ("netem", "delay", "100ms", "30ms", "loss", "1%")
"""See tc-netem(8)."""
TBF = ("tbf", "rate", "200kbit", "burst", "4kb", "latency", "1s")
"""For kernels without netem: a bucket so small that packets wait. See tc-tbf(8)."""


class Network:
    """Hosts that can be cut off and slowed; all of it is removed after the block.

    Args:
        hosts: names of the first hosts; `add` creates more, 250 at most.
    """

    def __init__(self, hosts: Sequence[str]) -> None:
        self._first = tuple(hosts)
        self._hosts: dict[str, int] = {}
        self._bridge = f"fb{os.getpid()}"
        self._subnet = f"198.18.{os.getpid() % 250}"
        self.slowed_with = ""
        """Queueing discipline of the last `slow`."""

    def __enter__(self) -> "Network":
        _run("ip", "link", "add", self._bridge, "type", "bridge")
        try:
            _run("ip", "address", "add", f"{self.bridge_address}/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            for host in self._first:
                self.add(host)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for host in self._hosts:
            self._remove(host)
        _try("ip", "link", "delete", self._bridge)

    @property
    def hosts(self) -> list[str]:
        """Names of the hosts."""
        return list(self._hosts)

    @property
    def bridge_address(self) -> str:
        """Address of this machine for the hosts."""
        return f"{self._subnet}.1"

    def address(self, host: str) -> str:
        """Returns the address of a host."""
        return f"{self._subnet}.{self._hosts[host] + 2}"

    def within(self, host: str) -> list[str]:
        """Returns the prefix of a command that runs on a host."""
        return ["ip", "netns", "exec", self.namespace(host)]

    def cut(self, host: str) -> None:
        """Cuts all traffic without closing any connection."""
        _run("ip", "link", "set", self._link(host), "down")

    def join(self, host: str) -> None:
        """Ends a cut."""
        _run("ip", "link", "set", self._link(host), "up")

    def slow(self, host: str) -> None:
        """Delays all traffic, and drops some packets."""
        for qdisc, end in self._both_ends(host):
            if _try(*qdisc, "add", *end, *NETEM):
                self.slowed_with = NETEM[0]
            else:
                self.slowed_with = TBF[0]
                _run(*qdisc, "add", *end, *TBF)

    def hasten(self, host: str) -> None:
        """Ends the delay."""
        for qdisc, end in self._both_ends(host):
            _run(*qdisc, "delete", *end)

    def _both_ends(self, host: str) -> list[tuple[list[str], list[str]]]:
        here = (["tc", "qdisc"], ["dev", self._link(host), "root"])
        there = ([*self.within(host), "tc", "qdisc"], ["dev", "eth0", "root"])
        return [here, there]

    def add(self, host: str) -> None:
        """Adds a host, with an address that no other had."""
        assert host not in self._hosts
        self._hosts[host] = len(self._hosts)
        link, namespace = self._link(host), self.namespace(host)
        _run("ip", "netns", "add", namespace)
        _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        _run("ip", "link", "set", link, "master", self._bridge, "up")
        inside = self.within(host)
        _run(*inside, "ip", "address", "add", f"{self.address(host)}/24", "dev", "eth0")
        for name in ("lo", "eth0"):
            _run(*inside, "ip", "link", "set", name, "up")

    def _remove(self, host: str) -> None:
        _try("ip", "netns", "delete", self.namespace(host))
        _try("ip", "link", "delete", self._link(host))  # deleted with its namespace later

    def _link(self, host: str) -> str:
        return f"{self._bridge}-{self._hosts[host]}"

    def namespace(self, host: str) -> str:
        """Returns the name of a host's namespace."""
        return f"{self._bridge}-{host}"


def why_no_network() -> str:
    """Returns the reason why no network can be made here; empty if one can."""
    if not (shutil.which("ip") and shutil.which("tc")):
        return "ip and tc are not installed (Debian's package iproute2)"
    try:
        with Network(["probe"]):
            return ""
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def _try(*command: str) -> bool:
    return subprocess.run(command, check=False, capture_output=True).returncode == 0
