"""Closed-loop load: each client sends its next request when the last is answered.

Both generators send one canned request again and again, so that the client's own work stays as
small as Python allows; what remains of it is reported beside the server's.
"""

import asyncio
import time
from dataclasses import dataclass, field
from typing import cast

from grpc import aio

INFER = "/inference.GRPCInferenceService/ModelInfer"
CHANNELS = 4


@dataclass(slots=True)
class Latencies:
    """Seconds of every answered request, and how many failed."""

    seconds: list[float] = field(default_factory=list)
    failures: int = 0


class _RestClient(asyncio.Protocol):
    """One connection that never rests. Reads just enough HTTP for our own server's answers."""

    def __init__(self, request: bytes, stop_at: float, results: Latencies) -> None:
        self._request = request
        self._stop_at = stop_at
        self._results = results
        self._buffer = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is not a subclass
        self._send()

    def _send(self) -> None:
        self._started = time.perf_counter()
        if self._started >= self._stop_at:
            self._transport.close()
            self.done.set_result(None)
        else:
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        head, found, body = self._buffer.partition(b"\r\n\r\n")
        if not found:
            return
        length = int(head.lower().partition(b"content-length:")[2].partition(b"\r\n")[0])
        if len(body) >= length:
            self._buffer = b""
            self._results.seconds.append(time.perf_counter() - self._started)
            self._results.failures += not head.startswith(b"HTTP/1.1 200")
            self._send()

    def connection_lost(self, error: Exception | None) -> None:
        if not self.done.done():
            self.done.set_exception(error or ConnectionError("the server closed the connection"))


async def load_rest(address: str, request: bytes, clients: int, seconds: float) -> Latencies:
    """Loads the REST edge.

    Args:
        address: host:port.
        request: a whole HTTP request, head and body.
        clients: connections, each with one request in flight.
        seconds: how long.
    """
    host, port = address.rsplit(":", 1)
    results = Latencies()
    stop_at = time.perf_counter() + seconds
    loop = asyncio.get_running_loop()
    connections = [
        await loop.create_connection(
            lambda: _RestClient(request, stop_at, results), host, int(port)
        )
        for _ in range(clients)
    ]
    await asyncio.gather(*(protocol.done for _, protocol in connections))
    return results


async def load_grpc(address: str, message: bytes, clients: int, seconds: float) -> Latencies:
    """Loads the gRPC edge with a serialised ModelInferRequest; answers are not parsed."""
    results = Latencies()
    stop_at = time.perf_counter() + seconds
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [aio.insecure_channel(address, options) for _ in range(min(clients, CHANNELS))]

    async def client(number: int) -> None:
        call = channels[number % len(channels)].unary_unary(INFER, None, None)
        while (started := time.perf_counter()) < stop_at:
            try:
                await call(message)
            except aio.AioRpcError:
                results.failures += 1
            results.seconds.append(time.perf_counter() - started)

    await asyncio.gather(*(client(number) for number in range(clients)))
    for channel in channels:
        await channel.close(None)
    return results
