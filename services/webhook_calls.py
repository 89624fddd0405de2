"""Calls of webhooks: a signed HTTP POST.

Headers and signature are those of the Standard Webhooks specification: `webhook-id`,
`webhook-timestamp` and `webhook-signature`, an HMAC-SHA256 over `id.timestamp.body`.

Rules:
- no redirect is followed: it could lead to any host;
- a call ends `DEADLINE_S` after its start, however slowly the host sends; nothing of the body is
  read;
- each call has a daemon thread: a host that hangs keeps no process from ending;
- one URL gets at most `AT_ONCE_PER_URL` calls at once: a slow host leaves room for others.
"""

import asyncio
import base64
import hashlib
import hmac
import http.client
import logging
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from services.settings import ConfigError

DEADLINE_S = 10.0
"""Longest duration of a call."""
AT_ONCE_PER_URL = 4
"""Concurrent calls of one URL; others wait."""
NO_RESPONSE = 1
"""Stands for a status where there was no response."""
SECRET_PREFIX = b"whsec_"
LEAST_SECRET_BYTES = 24
MAKE = 'echo "whsec_$(head -c 32 /dev/urandom | base64)"'
"""Command that makes a secret."""
logger = logging.getLogger("flambeau.webhooks")


def read_secret(file: str) -> bytes:
    """Reads a secret: `whsec_` and base64, or any other bytes as they are.

    Libraries of Standard Webhooks read every text as base64, so a text without `whsec_` is logged:
    its receiver must take the same bytes as its key.

    Raises:
        ConfigError: the file cannot be read, or holds less than `LEAST_SECRET_BYTES`.
    """
    if not file:
        raise ConfigError("there are webhooks: set webhook_secret_file too, to sign with")
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"webhook_secret_file {file}: {error.strerror}") from error
    if secret.startswith(SECRET_PREFIX):
        try:
            secret = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError as error:
            raise ConfigError(
                f"webhook_secret_file {file}: no base64 after whsec_ ({error}); make one by {MAKE}"
            ) from error
    else:
        logger.warning(
            "the webhook secret has no whsec_, so its bytes sign as they are: receivers need the "
            "same bytes as their key, and libraries that read it as base64 fail; make one by "
            f"{MAKE}"
        )
    if len(secret) < LEAST_SECRET_BYTES:
        raise ConfigError(
            f"webhook_secret_file {file} holds {len(secret)} bytes; give {LEAST_SECRET_BYTES} or "
            f"more: make one by {MAKE}"
        )
    return secret


def signature(secret: bytes, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Returns the value of `webhook-signature`."""
    signed = b"%b.%d.%b" % (webhook_id.encode(), timestamp, body)
    return f"v1,{base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()}"


class WebhookCalls:
    """Calls webhooks, from one event loop.

    Args:
        secret: secret of the signature.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._opener = urllib.request.build_opener(_NoRedirect, _Http, _Https)
        self._by_url: dict[str, _Turns] = {}

    @asynccontextmanager
    async def turn(self, url: str) -> AsyncGenerator[None, None]:
        """Waits until fewer than `AT_ONCE_PER_URL` turns of a URL are taken, and takes one."""
        turns = self._by_url.setdefault(url, _Turns())
        turns.users += 1
        try:
            async with turns.free:
                yield
        finally:
            turns.users -= 1
            if not turns.users:
                del self._by_url[url]

    async def post(self, url: str, webhook_id: str, body: bytes) -> int:
        """Calls once, within a `turn` of the URL. Returns the status, or `NO_RESPONSE`."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[int] = loop.create_future()

        def call() -> None:
            status = self._post(url, webhook_id, body)
            with suppress(RuntimeError):  # the loop is closed: the process ends
                loop.call_soon_threadsafe(tell, status)

        def tell(status: int) -> None:
            if not told.done():
                told.set_result(status)

        threading.Thread(target=call, name="webhook", daemon=True).start()
        return await told

    def _post(self, url: str, webhook_id: str, body: bytes) -> int:
        now = int(time.time())
        headers = {
            "content-type": "application/json",
            "user-agent": "flambeau",
            "webhook-id": webhook_id,
            "webhook-timestamp": str(now),
            "webhook-signature": signature(self._secret, webhook_id, now, body),
        }
        with _Deadline() as deadline:
            try:
                request = _Request(url, body, headers, method="POST")
                request.deadline = deadline
                with self._opener.open(request, timeout=DEADLINE_S) as reply:
                    return NO_RESPONSE if deadline.is_over else int(reply.status)
            except urllib.error.HTTPError as error:
                with error:
                    return error.code
            except (OSError, http.client.HTTPException, ValueError):  # the host may send anything
                return NO_RESPONSE


class _Turns:
    """Turns of one URL, and the number of calls that have one or wait for one."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(AT_ONCE_PER_URL)
        self.users = 0


class _Deadline:
    """Shuts the connection of a call down at its deadline: a timeout is of one operation alone.

    Attributes:
        is_over: True from the deadline on; headers that end there may be incomplete.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.is_over = False
        self._watched: socket.socket | None = None
        self._timer = threading.Timer(DEADLINE_S, self._expire)
        self._timer.daemon = True

    def watch(self, connected: socket.socket) -> None:
        """Watches a connection, by a descriptor of its own: TLS takes the other one."""
        with self._lock:
            self._close()
            self._watched = connected.dup()
            if self.is_over:
                self._shut_down()

    def _expire(self) -> None:
        with self._lock:
            self.is_over = True
            self._shut_down()

    def _shut_down(self) -> None:
        if self._watched is not None:
            with suppress(OSError):  # the host has closed it
                self._watched.shutdown(socket.SHUT_RDWR)

    def _close(self) -> None:
        if self._watched is not None:
            self._watched.close()
            self._watched = None

    def __enter__(self) -> "_Deadline":
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._timer.cancel()
        with self._lock:
            self._close()


class _Request(urllib.request.Request):
    deadline: _Deadline


class _Connection(http.client.HTTPConnection):
    deadline: _Deadline

    def connect(self) -> None:
        """Connects, and has the connection watched: before the handshake of TLS, if any."""
        super().connect()
        self.deadline.watch(self.sock)


class _TlsConnection(http.client.HTTPSConnection, _Connection):
    """A watched connection: `HTTPSConnection` connects by `_Connection`, and begins TLS then."""


class _Http(urllib.request.HTTPHandler):
    def http_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Opens a watched connection."""
        return self.do_open(partial(_watched, _Connection, req), req)


class _Https(urllib.request.HTTPSHandler):
    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        """Opens a watched connection."""
        return self.do_open(partial(_watched, _TlsConnection, req), req)


def _watched(
    kind: type[_Connection], request: urllib.request.Request, host: str, **options: Any
) -> _Connection:
    assert isinstance(request, _Request)
    connection = kind(host, **options)
    connection.deadline = request.deadline
    return connection


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follows no redirect."""
