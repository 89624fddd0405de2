"""Opens the ports of a process, and serves metrics and health on the metrics port.

The metrics port answers `/v2/health/live` and `/v2/health/ready` in every process: a worker has no
other port, and if the other ports require a client certificate, probes cannot use them.
"""

import asyncio
import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

import prometheus_client
from prometheus_client import CollectorRegistry, Metric
from prometheus_client.registry import Collector

LIVE_PATH = "/v2/health/live"
READY_PATH = "/v2/health/ready"
LOOP_ANSWERS_WITHIN_S = 5.0
"""Time after which a silent event loop counts as blocked, and its process as not live."""
MAX_METRICS_CONNECTIONS = 64
"""Connections of the metrics port; each has a thread, and further ones are closed at once."""
SCRAPES_AT_ONCE = 2
"""Pages of metrics that are written at once, 2 ms each. Every thread that writes one may keep the
interpreter lock from the event loop for 5 ms."""
METRICS_READ_TIMEOUT_S = 5.0
"""Time for a client of the metrics port to send its request."""
BACKLOG = 4096
"""Connections that the kernel completes while a process is too busy to accept them; the default
limit of Linux. Further SYNs are dropped, and the client retries after 1 s, 3 s, 7 s."""


class PortError(Exception):
    """A port that cannot be bound; the message names it and its setting."""


def listen(host: str, port: int, setting: str, *, is_shared: bool = False) -> socket.socket:
    """Opens a TCP port.

    Args:
        host: address.
        port: port number; 0 picks a free one.
        setting: setting of the port, for the message.
        is_shared: True if other processes of this user listen on it, too, each for a part of the
            connections (SO_REUSEPORT, socket(7)).

    Raises:
        PortError: it is in use, or the address is not of this machine.
    """
    try:
        found = socket.create_server((host, port), backlog=BACKLOG, reuse_port=is_shared)
    except OSError as error:
        raise port_error(port, setting, str(error)) from error
    # Connections inherit TCP_NODELAY. asyncio sets it only if the socket's protocol number is TCP,
    # and a response in two parts waits for 40 ms without it.
    found.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return found


def reserve(host: str, port: int, setting: str) -> socket.socket:
    """Reserves a port for processes that share it, and that nothing else uses now.

    Returns:
        A socket that does not listen; it gets no connections, and the port is ours until it closes.

    Raises:
        PortError: as `listen`.
    """
    listen(host, port, setting).close()
    found = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    try:
        found.bind((host, port))
    except OSError as error:
        found.close()
        raise port_error(port, setting, str(error)) from error
    return found


def check_free(host: str, ports: Mapping[str, int]) -> None:
    """Binds and releases each port, to fail before long work that would need them.

    Args:
        host: address.
        ports: port number by setting; 0 is always free.

    Raises:
        PortError: one is in use.
    """
    for setting, port in ports.items():
        listen(host, port, setting).close()


def port_error(port: int, setting: str, reason: str) -> PortError:
    """Returns the error for a port that cannot be bound."""
    return PortError(f"cannot listen on port {port} ({setting}): {reason}; choose another")


@contextlib.contextmanager
def metrics_server(
    host: str, port: int, registry: CollectorRegistry, why_not_ready: Callable[[], str]
) -> Iterator[int]:
    """Serves metrics and the health of the process with the running event loop. Yields the port.

    Args:
        host: address.
        port: port number; 0 picks a free one.
        registry: registry of the metrics.
        why_not_ready: returns the reason, empty if ready; called in the event loop.

    Raises:
        PortError: it is in use.
    """
    loop = asyncio.get_running_loop()
    try:
        server = (_Ipv6MetricsServer if ":" in host else _MetricsServer)((host, port), _Handler)
    except OSError as error:
        raise port_error(port, "metrics_port", str(error)) from error
    page = CollectorRegistry(support_collectors_without_names=True)  # for `?name[]=`
    page.register(_Everything(registry))
    metrics = prometheus_client.make_wsgi_app(page)
    server.set_app(_metrics_and_health(metrics, loop, why_not_ready))
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Everything(Collector):
    """All families of a registry, whose collectors do not tell their names before a scrape."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        """Yields them."""
        return self._registry.collect()


class _MetricsServer(ThreadingMixIn, WSGIServer):
    """A thread for each connection, for few connections."""

    daemon_threads = True
    request_queue_size = MAX_METRICS_CONNECTIONS

    def __init__(self, address: tuple[str, int], handler: type[WSGIRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(MAX_METRICS_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Starts a thread for a connection, or closes it."""
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answers, in that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing: a client that leaves or sends nothing is no fault of ours."""


class _Ipv6MetricsServer(_MetricsServer):
    address_family = socket.AF_INET6


class _Handler(WSGIRequestHandler):
    timeout = METRICS_READ_TIMEOUT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Prints nothing."""


def _metrics_and_health(
    metrics: WSGIApplication, loop: asyncio.AbstractEventLoop, why_not_ready: Callable[[], str]
) -> WSGIApplication:
    """Answers the health paths as the other ports do: 200, or 503 and the reason."""
    writing = threading.BoundedSemaphore(SCRAPES_AT_ONCE)

    async def ask() -> str:
        return why_not_ready()

    def answer(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path not in (LIVE_PATH, READY_PATH):
            with writing:
                try:
                    return metrics(environ, start_response)
                except (TypeError, ValueError):  # an Accept header whose version is not a number
                    return metrics({**environ, "HTTP_ACCEPT": "*/*"}, start_response)
        try:
            said = asyncio.run_coroutine_threadsafe(ask(), loop).result(LOOP_ANSWERS_WITHIN_S)
            reason = "" if path == LIVE_PATH else said
        except TimeoutError:
            reason = f"the event loop has not answered for {LOOP_ANSWERS_WITHIN_S:g} s"
        status = "503 Service Unavailable" if reason else "200 OK"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [reason.encode()]

    return answer
