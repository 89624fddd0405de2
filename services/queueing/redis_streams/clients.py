"""Connections to Redis or Valkey: a single server, Sentinel or a cluster.

In: a URL. Out: clients that never retry a command by themselves: only the sender knows if a retry
is safe, since a repeated XADD would be a second request.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import Any, Protocol, cast
from urllib.parse import parse_qsl, unquote, urlsplit

from redis.asyncio import Redis, RedisCluster
from redis.asyncio.connection import SSLConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel, SentinelManagedSSLConnection
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import RedisClusterException, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from services.queueing.redis_streams.client_certificates import ClientCertificates
from services.queueing.redis_streams.outage import Outage
from services.queueing.redis_streams.pipelined_connection import (
    PipelinedConnection,
    given_away,
)
from services.settings import ConfigError
from services.telemetry.metrics import TlsMetrics

SCHEMES = (
    "redis", "rediss", "unix",
    "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster",
)  # fmt: skip
COMMAND_TIMEOUT_S = 1.0
"""Timeout of a command; after it Redis counts as unreachable."""
SLOWEST_BYTES_S = 10e6
"""Slowest transfer in bytes a second: long commands and replies have more time."""
LONGEST_S = 10.0
"""Timeout of a reply of unknown length."""
BLOCK_S = 1.0
"""Time that one blocking command waits inside Redis."""
SENTINEL_PORT = 26379
Look = Callable[[], Awaitable[None]]
_BEHIND_COMMAND = " of pipeline caused error: "


class QueueUrlError(ValueError):
    """The URL of the queue cannot be used; the message says how one is written."""


class Trip(Protocol):
    """A pipeline of commands. Each succeeds or fails independently."""

    def add(self, *command: Any) -> None:
        """Adds a command."""

    async def execute(self, *, raise_on_error: bool = True) -> list[Any]:
        """Sends them all.

        Args:
            raise_on_error: True to raise the first error; else each is the command's result.

        Raises:
            RedisError: Redis is out of reach.
        """


class Commands(Protocol):
    """A client, as this package uses it."""

    async def send(self, *command: Any, **how_to_read: Any) -> Any:
        """Sends one command and returns its result.

        Args:
            command: its words.
            how_to_read: redis-py's options for parsing the reply.

        Raises:
            RedisError: Redis is out of reach, or the command failed.
        """

    async def fetch(self, key: str) -> bytes | None:
        """Returns the bytes under a key, which may be many; None if there are none.

        Raises:
            RedisError: Redis is out of reach.
        """

    def trip(self) -> Trip:
        """Begins a pipeline."""

    async def close(self) -> None:
        """Closes its connections."""


class _ServerTrip:
    """A pipeline to one server."""

    def __init__(self, commands: "_ServerCommands") -> None:
        self._commands = commands
        self._added: list[tuple[Any, ...]] = []

    def add(self, *command: Any) -> None:
        self._added.append(command)

    async def execute(self, *, raise_on_error: bool = True) -> list[Any]:
        found = await self._commands.execute(self._added) if self._added else []
        if raise_on_error:
            for result in found:
                if isinstance(result, RedisError):
                    raise result
        return found


class _ServerCommands:
    """A client of one server, or of the master behind Sentinel."""

    def __init__(self, client: Any, timeout_s: float) -> None:
        self._client = client
        self._parsers = dict(client.response_callbacks)
        self._connection = PipelinedConnection(client.connection_pool)
        self._timeout_s = timeout_s

    async def execute(self, commands: Sequence[Sequence[Any]], **how_to_read: Any) -> list[Any]:
        """Sends commands together; errors of Redis are among their results."""
        timeout_s = self._timeout_s + sum(map(_travel_s, commands))
        found = await self._connection.execute(commands, timeout_s)
        for i, command in enumerate(commands):
            parse = self._parsers.get(command[0])
            if parse is not None and not isinstance(found[i], RedisError):
                found[i] = parse(found[i], **how_to_read)
        return found

    async def send(self, *command: Any, **how_to_read: Any) -> Any:
        (result,) = await self.execute((command,), **how_to_read)
        if isinstance(result, RedisError):
            raise result
        return result

    async def fetch(self, key: str) -> bytes | None:
        (found,) = await self._connection.execute((("GET", key),), LONGEST_S)
        if isinstance(found, RedisError):
            raise found
        return cast(bytes | None, found)

    def trip(self) -> _ServerTrip:
        return _ServerTrip(self)

    async def close(self) -> None:
        self._connection.close()
        await self._client.aclose()


class _ClusterTrip:
    """A pipeline to the nodes of a cluster."""

    def __init__(self, pipeline: Any, timeout_s: float) -> None:
        self._pipeline = pipeline
        self._timeout_s = timeout_s

    def add(self, *command: Any) -> None:
        self._timeout_s += _travel_s(command)
        self._pipeline.execute_command(*command)

    async def execute(self, *, raise_on_error: bool = True) -> list[Any]:
        execution = self._pipeline.execute(raise_on_error=raise_on_error)
        try:
            found: list[Any] = await _in_time(execution, self._timeout_s)
        except RedisError as error:
            error.args = (_own_words(error),)
            raise
        return found


class _ClusterCommands:
    """A client of a cluster.

    The time limit is ours: that of redis-py starts a task for every command, and may swallow the
    cancellation of who waits for it (`asyncio.wait_for` of Python 3.11).
    """

    def __init__(self, client: Any, timeout_s: float) -> None:
        self._client = client
        self._timeout_s = timeout_s

    async def send(self, *command: Any, **how_to_read: Any) -> Any:
        execution = self._client.execute_command(*command, **how_to_read)
        return await _in_time(execution, self._timeout_s + _travel_s(command))

    async def fetch(self, key: str) -> bytes | None:
        found: bytes | None = await _in_time(self._client.execute_command("GET", key), LONGEST_S)
        return found

    def trip(self) -> _ClusterTrip:
        return _ClusterTrip(self._client.pipeline(transaction=False), self._timeout_s)

    async def close(self) -> None:
        await self._client.aclose()


class RedisClients:
    """Makes clients for one URL.

    Args:
        url: `redis://[user:password@]host[:port][/db]`, `rediss://…` (TLS; `?ssl_ca_certs=FILE`,
            and `ssl_certfile`, `ssl_keyfile` where Redis asks for ours) or `unix:///socket`;
            `redis+sentinel://host:port,host:port/service[/db]`; `redis+cluster://host:port`.

    Raises:
        QueueUrlError: it is none of these, or names certificates that cannot be read.
    """

    def __init__(self, url: str) -> None:
        scheme, _, rest = url.partition("://")
        if scheme not in SCHEMES or not rest:
            raise QueueUrlError(
                f"the queue's URL must begin with one of {', '.join(f'{s}://' for s in SCHEMES)} "
                f"and is {redacted(url)!r}"
            )
        self._kind = scheme.partition("+")[2]
        self._plain_url = f"{scheme.partition('+')[0]}://{rest}"
        self.url = redacted(url)
        """The URL without its password, for logs."""
        self.outage = Outage(self.url)
        """Told by all parts of the process that ask this Redis."""
        self._tls: ClientCertificates | None = None
        try:
            if scheme.startswith("rediss"):
                self._tls = ClientCertificates(self._plain_url)
            self._open_client()
        except (ValueError, TypeError, ConfigError) as error:
            raise QueueUrlError(f"the queue's URL {self.url!r} cannot be used: {error}") from error

    @property
    def has_slots(self) -> bool:
        """True if keys of different slots are on different servers, beyond one script."""
        return self._kind == "cluster"

    def report_certificates(self, metrics: TlsMetrics) -> None:
        """Reports the expiry and the renewals of the certificates that the URL names."""
        if self._tls is not None:
            self._tls.report(metrics)

    def open(self) -> Commands:
        """Opens a client for commands that answer at once."""
        return self._commands(COMMAND_TIMEOUT_S)

    def open_blocking(self) -> Commands:
        """Opens a client for commands that wait up to `BLOCK_S` inside Redis."""
        return self._commands(BLOCK_S + COMMAND_TIMEOUT_S)

    def _commands(self, timeout_s: float) -> Commands:
        client = self._open_client()
        if self.has_slots:
            return _ClusterCommands(client, timeout_s)
        pool = client.connection_pool
        pool.connection_class = given_away(pool.connection_class)
        return _ServerCommands(client, timeout_s)

    @contextlib.asynccontextmanager
    async def subscribed(self, pattern: str) -> AsyncIterator[AsyncIterator[tuple[str, bytes]]]:
        """Yields messages of channels: the channel and the content of each.

        Raises:
            RedisError: Redis is out of reach, now or while a message is waited for.
        """
        with _as_redis_errors():
            client = await self._any_node() if self.has_slots else self._open_client()
            pubsub = client.pubsub()
            try:
                await pubsub.psubscribe(pattern)
                yield _messages(pubsub)
            finally:
                await pubsub.aclose()
                await client.aclose()

    async def scan(self, pattern: str) -> AsyncIterator[str]:
        """Yields the names of all keys that match a pattern.

        Raises:
            RedisError: Redis is out of reach.
        """
        client = self._open_client()
        try:
            with _as_redis_errors():
                async for key in client.scan_iter(pattern, count=1000):
                    yield key.decode()
        finally:
            await client.aclose()

    async def _any_node(self) -> Any:
        """A client of one node of the cluster: it passes messages on to all of them."""
        cluster = self._open_client()
        try:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                await cluster.initialize()
            node = cluster.get_random_node()
        except TimeoutError as error:
            raise RedisTimeoutError("the cluster does not list its nodes") from error
        finally:
            await cluster.aclose()
        parts = urlsplit(self._plain_url)
        login, at, _ = parts.netloc.rpartition("@")
        host = f"[{node.host}]" if ":" in node.host else node.host
        url = parts._replace(netloc=f"{login}{at}{host}:{node.port}").geturl()
        return self._open_single(url)

    def _open_client(self) -> Any:
        if self.has_slots:
            return self._open_cluster()
        if self._kind == "sentinel":
            client = _open_by_sentinel(self._plain_url, _options())
            return self._renewing(client, SentinelManagedSSLConnection)
        return self._open_single(self._plain_url)

    def _open_single(self, url: str) -> Any:
        return self._renewing(Redis.from_url(url, **_options()), SSLConnection)

    def _renewing(self, client: Any, kind: type[SSLConnection]) -> Any:
        if self._tls is not None:  # now, for a URL's own class goes before an argument
            client.connection_pool.connection_class = self._tls.renewing(kind)
        return client

    def _open_cluster(self) -> Any:
        """It follows slots that move, and sends again only what was turned away."""
        client: Any = RedisCluster.from_url(self._plain_url, **_options())
        if self._tls is not None:  # it takes no class as an argument
            kind = self._tls.renewing(SSLConnection)
            client.connection_kwargs["connection_class"] = kind  # of nodes it has yet to find
            for node in client.nodes_manager.startup_nodes.values():
                node.connection_class = kind
        return client


def redacted(url: str) -> str:
    """Removes the password and the query of a URL."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return "***"
    rest, _, _ = rest.partition("?")
    user, at, host = rest.rpartition("@")
    return f"{scheme}://{user.partition(':')[0]}{':***' if ':' in user else ''}{at}{host}"


def _travel_s(command: Sequence[Any]) -> float:
    """Seconds a command may take on its way."""
    return sum(len(part) for part in command if isinstance(part, bytes)) / SLOWEST_BYTES_S


def _usual(error: RedisClusterException) -> RedisConnectionError:
    """redis-py's errors of a cluster are of a family of their own."""
    return RedisConnectionError(str(error))


@contextlib.contextmanager
def _as_redis_errors() -> Iterator[None]:
    """Gives the errors of a cluster the usual family."""
    try:
        yield
    except RedisClusterException as error:
        raise _usual(error) from error


async def _in_time(execution: Awaitable[Any], timeout_s: float) -> Any:
    """Awaits a result within a timeout; failures are redis-py's usual errors."""
    try:
        async with asyncio.timeout(timeout_s):
            return await execution
    except TimeoutError as error:
        raise RedisTimeoutError(f"no answer within {timeout_s:g} s") from error
    except RedisClusterException as error:
        raise _usual(error) from error


def _options() -> dict[str, Any]:
    return {
        "socket_timeout": None,
        "socket_connect_timeout": COMMAND_TIMEOUT_S,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
    }


def _own_words(error: RedisError) -> str:
    """Returns Redis' own message; redis-py prefixes the command with its keys, as a tuple.

    Callers get to see it.
    """
    return str(error).rpartition(_BEHIND_COMMAND)[2].strip("(),").strip("\"'")


async def _messages(pubsub: Any) -> AsyncIterator[tuple[str, bytes]]:
    while True:
        message = await pubsub.get_message(ignore_subscribe_messages=True, timeout=BLOCK_S)
        if message is not None:
            yield message["channel"].decode(), message["data"]


class _Master(Redis):
    """A client of a master that sentinels name; their connections end with its own."""

    sentinels: Sequence[Redis] = ()

    async def aclose(self, close_connection_pool: bool | None = None) -> None:
        await super().aclose(close_connection_pool)
        for sentinel in self.sentinels:
            await sentinel.aclose()


def _open_by_sentinel(url: str, options: dict[str, Any]) -> Any:
    parts = urlsplit(url)
    login, _, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise ValueError("name the service behind the sentinels: redis+sentinel://host:port/NAME")
    user, _, password = login.partition(":")
    addresses = []
    for host in hosts.split(","):
        name, _, port = host.partition(":")
        addresses.append((name, int(port or SENTINEL_PORT)))
    asked = dict(parse_qsl(parts.query))
    sentinel_options = {
        **options,
        "socket_timeout": COMMAND_TIMEOUT_S,
        "password": asked.get("sentinel_password") or None,
    }
    sentinel = Sentinel(addresses, sentinel_kwargs=sentinel_options)  # type: ignore[no-untyped-call]
    tls: dict[str, Any] = {name: file for name, file in asked.items() if name.startswith("ssl_")}
    master: _Master = sentinel.master_for(
        service,
        redis_class=_Master,
        db=int(database or 0),
        username=unquote(user) or None,
        password=unquote(password) or None,
        ssl=parts.scheme == "rediss",
        **tls,
        **options,
    )
    master.sentinels = sentinel.sentinels
    return master


async def keep_looking(
    redis: Commands, look: Look, pause_s: float, outage: Outage | None = None
) -> None:
    """Looks again and again until cancelled; survives any fault of Redis, and closes the client.

    Args:
        redis: the client.
        look: looks once.
        pause_s: seconds between two looks.
        outage: told of each answer and each fault, where no other part of the process asks Redis.
    """
    try:
        while True:
            try:
                await look()
            except RedisError as error:
                if outage is not None:
                    outage.failed(error)
            else:
                if outage is not None:
                    outage.answered()
            await asyncio.sleep(pause_s)
    finally:
        await redis.close()
