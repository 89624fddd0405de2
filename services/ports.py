"""The ports a process listens on."""

import contextlib
import socket
from collections.abc import Iterator

import prometheus_client
from prometheus_client import CollectorRegistry


class PortError(Exception):
    """A port that cannot be bound; the message names it and its setting."""


def listen(host: str, port: int, setting: str) -> socket.socket:
    """Opens a TCP port.

    Args:
        host: address.
        port: 0 picks a free one.
        setting: what sets it, for the message.

    Raises:
        PortError: it is taken, or the address is not ours.
    """
    try:
        return socket.create_server((host, port), backlog=1024)
    except OSError as error:
        raise port_error(port, setting, str(error)) from error


def port_error(port: int, setting: str, reason: str) -> PortError:
    """What to raise of a port that cannot be bound."""
    return PortError(f"cannot listen on port {port} ({setting}): {reason}; choose another")


@contextlib.contextmanager
def metrics_server(host: str, port: int, registry: CollectorRegistry) -> Iterator[int]:
    """Serves metrics from a thread. Yields the port.

    Raises:
        PortError: it is taken.
    """
    try:
        server, thread = prometheus_client.start_http_server(port, host, registry)
    except OSError as error:
        raise port_error(port, "metrics_port", str(error)) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
