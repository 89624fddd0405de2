"""`flambeau.serve`: serves models of a store from Python."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any, Self

from flambeau.client import Client
from flambeau.local.addresses import Addresses, read_addresses
from flambeau.local.own_process import OwnProcess, OwnProcessError
from flambeau.local.store_url import DEFAULT_STORE, store_url

DRAIN_TIMEOUT_S = 60.0
"""Seconds for a server to finish its requests and exit."""


class ServerError(Exception):
    """The server did not start; the message has the reason."""


class Server:
    """A server in a process of ours; ends with its block, with `stop`, or with this process.

    Attributes:
        addresses: where it listens.
    """

    def __init__(self, process: OwnProcess, addresses: Addresses) -> None:
        self._process = process
        self.addresses = addresses

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<flambeau server: REST {self.url}, gRPC {self.addresses.grpc}>"

    @property
    def pid(self) -> int:
        """The number of its process."""
        return self._process.pid

    @property
    def url(self) -> str:
        """The address of REST, with its scheme and port."""
        return f"http://{self.addresses.http}"

    def client(self, **options: Any) -> Client:
        """Returns a client of this server; `options` are those of `flambeau.Client`."""
        return Client(self.addresses.grpc, **options)

    def wait(self) -> None:
        """Waits until the server ends.

        Raises:
            ServerError: it ended with a failure.
        """
        try:
            self._process.wait()
        except OwnProcessError as error:
            raise ServerError(str(error)) from None

    def stop(self) -> None:
        """Finishes accepted requests, and ends the server."""
        self._process.close(DRAIN_TIMEOUT_S)


def serve(
    *models: str,
    store: str | os.PathLike[str] = DEFAULT_STORE,
    block: bool = True,
    http_port: int = 8000,
    grpc_port: int = 8001,
    metrics_port: int = 8002,
    **settings: Any,
) -> Server:
    """Serves models of a store over REST and gRPC, as `flambeau serve` does.

    Args:
        models: names of the models; none for all of the store.
        store: the store: a folder, or the URL of a bucket.
        block: True to serve until Ctrl-C or the end of the server; False to return when it is
            ready, as in a notebook.
        http_port: port of REST; 0 for a free one.
        grpc_port: port of gRPC; 0 for a free one.
        metrics_port: port of Prometheus; 0 for a free one.
        settings: further settings of the server, such as `threads=2`.

    Returns:
        The server: running if `block` is False, else ended.

    Raises:
        ServerError: it did not start; the message has the reason.
    """
    values = {
        "store": store_url(store),
        "http_port": http_port,
        "grpc_port": grpc_port,
        "metrics_port": metrics_port,
        **({"models": list(models)} if models else {}),
        **settings,
    }
    pairs = [f"{name}={json.dumps(value)}" for name, value in values.items()]
    arguments = ["serve", *(part for pair in pairs for part in ("--set", pair))]
    server = start("flambeau", *arguments, say=print if block else None)
    if not block:
        return server
    try:
        server.wait()
    except KeyboardInterrupt:
        server.stop()
    return server


def start(module: str, *arguments: str, say: Callable[[str], None] | None = None) -> Server:
    """Starts a server, and waits until it is ready.

    Args:
        module: as for `python -m`; it prints what `flambeau serve` prints.
        arguments: its arguments.
        say: receives each line that it prints; None for none.

    Raises:
        ServerError: it did not start.
    """
    process = OwnProcess(module, *arguments)
    try:
        addresses = read_addresses(_told(process, say))
        if addresses is None:
            raise ServerError("the server ended before it was ready")
    except OwnProcessError as error:
        process.close()
        raise ServerError(str(error)) from None
    except BaseException:
        process.close()
        raise
    process.read_on(say)
    return Server(process, addresses)


def _told(process: OwnProcess, say: Callable[[str], None] | None) -> Iterator[str]:
    for line in process.lines():
        if say is not None:
            say(line.rstrip("\n"))
        yield line
