"""A connection to a registry over HTTP.

In: calls. Out: their JSON, or bytes of files.

Rules: a broken connection and a busy registry are tried again, as long as calls get through; calls
may be repeated, because bytes carry their offset and finished acts are recognised. A call that is
made once is not repeated from its first byte on.
"""

import http.client
import json
import ssl
import time
from collections.abc import Callable
from email.message import Message
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

from flambeau.registry.errors import (
    RegistryAwayError,
    RegistryBusyError,
    RegistryConflictError,
    RegistryError,
    RegistryUnknownError,
)

if TYPE_CHECKING:
    from flambeau.channel import Tls

T = TypeVar("T")

TIMEOUT_S = 60.0
"""Time without a byte after which a connection counts as broken."""
FINISH_TIMEOUT_S = 3600.0
"""Time of the last call of a push, in which the registry reads all files once: some GB a second."""
INDEX_HEADER = "flambeau-index"
"""Header of a repository index: `whole` if no version is missing in it."""
FILE_TYPE = "application/octet-stream"
"""Type of files that a registry sends; an address of metrics sends text for every path."""
TRIES = 6
"""Tries of one call; the waits between them double from half a second, 15 s together."""
FIRST_WAIT_S = 0.5
MAX_ANSWER_BYTES = 16 * 2**20
"""Limit of an answer in JSON, and of a manifest."""
_OF_OTHER_SERVERS = (400, 404, 405)
"""Statuses that come without a reason from a port of gRPC, and from other servers."""

_OF_PROXIES = (502, 504)
"""Statuses of proxies that lost the answer."""


class RegistryConnection:
    """One connection, opened when it is needed.

    Args:
        url: URL of the registry's server, such as `https://models.example:8000`.
        token: API key or token; empty for none.
        tls: authorities and certificate for https; None for the system's authorities.
        sleep: waits between tries.
        tries: tries of one call.

    Raises:
        RegistryError: the URL is not one of http or https.
        OSError, ValueError: a file of `tls` cannot be read.
    """

    def __init__(
        self,
        url: str,
        token: str = "",
        tls: "Tls | None" = None,
        sleep: Callable[[float], None] = time.sleep,
        tries: int = TRIES,
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        if parts.scheme not in ("http", "https") or not parts.hostname or port == -1:
            raise RegistryError(f"'{url}' names no registry; give http://HOST:PORT, or https")
        if parts.query or parts.fragment or parts.username:
            raise RegistryError(
                f"'{url}' has more than host and port; give a credential with --token-file"
            )
        self.url = url.rstrip("/")
        self._host, self._port = parts.hostname, port
        self._root = parts.path.rstrip("/")
        self._path = self._root + "/v1/registry/"
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._tls = _context(tls) if parts.scheme == "https" else None
        self._sleep, self._tries = sleep, tries
        self._connection: http.client.HTTPConnection | None = None

    def close(self) -> None:
        """Closes the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def pause(self, seconds: float) -> None:
        """Waits before another try."""
        self._sleep(seconds)

    def call(
        self,
        method: str,
        path: str,
        document: Any = None,
        *,
        body: bytes | memoryview = b"",
        query: dict[str, str] | None = None,
        timeout_s: float = TIMEOUT_S,
        is_made_once: bool = False,
    ) -> Any:
        """Makes a call, and returns its JSON; None for an answer without content.

        Args:
            method: HTTP method.
            path: path below `/v1/registry/`, as `path_of` makes it.
            document: JSON to send; None for `body`.
            body: bytes to send.
            query: parameters of the URL.
            timeout_s: time without a byte of the answer.
            is_made_once: True for a call that acts again if it is repeated.

        Raises:
            RegistryError: as the tree says; a broken connection and a busy registry were tried
                `tries` times.
            RegistryUnknownError: the answer to a call that is made once was lost.
        """
        headers = dict(self._headers)
        if document is not None:
            headers["content-type"], body = "application/json", json.dumps(document).encode()
        target = self._path + path + (f"?{urlencode(query)}" if query else "")

        def ask() -> tuple[Any, Message]:
            return self._try(method, target, body, headers, timeout_s)

        return (self._once(ask) if is_made_once else self._repeated(ask))[0]

    def index(self) -> tuple[Any, bool]:
        """Returns the repository index of the server, and if it is whole.

        It is partial while the server starts, and for callers who do not see all models.

        Raises:
            RegistryError: as `call`.
        """
        headers = {**self._headers, "content-type": "application/json"}
        target = f"{self._root}/v2/repository/index"
        found, answered = self._repeated(
            lambda: self._try("POST", target, b"{}", headers, TIMEOUT_S)
        )
        return found, answered.get(INDEX_HEADER) == "whole"

    def _once(self, ask: Callable[[], tuple[Any, Message]]) -> tuple[Any, Message]:
        """Makes a call once, on a new connection; only connecting is tried again."""
        self.close()
        self._repeated(self._connect)
        try:
            return ask()
        except RegistryError as error:
            if not isinstance(error, RegistryAwayError) and error.status not in _OF_PROXIES:
                raise
            raise RegistryUnknownError(
                f"it is not known whether the call took effect at {self.url}: "
                f"{error.__cause__ or error}; look at the history before you repeat it",
                error.status,
            ) from error

    def _connect(self) -> None:
        try:
            self._connection = self._open()
            self._connection.connect()
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error

    def _repeated(self, ask: Callable[[], T]) -> T:
        """Makes a call, up to `tries` times, and returns what it does."""
        for number in range(self._tries):
            try:
                return ask()
            except (RegistryAwayError, RegistryBusyError):
                self.close()
                if number == self._tries - 1:
                    raise
            self._sleep(FIRST_WAIT_S * 2**number)
        raise AssertionError("the last try returns or raises")

    def _try(
        self,
        method: str,
        target: str,
        body: bytes | memoryview,
        headers: dict[str, str],
        timeout_s: float,
    ) -> tuple[Any, Message]:
        with self._answer(method, target, body, headers, timeout_s) as answer:
            try:
                data = answer.read(MAX_ANSWER_BYTES + 1)
            except (OSError, http.client.HTTPException) as error:
                raise self._away(error) from error
        if len(data) > MAX_ANSWER_BYTES:
            raise RegistryError(f"{self.url} answered with more than {MAX_ANSWER_BYTES:,} bytes")
        if answer.status >= 400:
            raise _refusal(answer.status, data, self.url)
        try:
            return json.loads(data) if data else None, answer.headers
        except (ValueError, RecursionError) as error:
            raise _no_registry(self.url, "an answer that is not JSON") from error

    def get_part(self, path: str, start: int, sink: Callable[[bytes], None]) -> None:
        """Reads a file from an offset to its end, once; a broken connection ends it early.

        Args:
            path: path of the file, as `path_of` makes it.
            start: the offset.
            sink: takes the pieces as they arrive.

        Raises:
            RegistryError: the registry refused the call, or the answer is none of a registry.
            RegistryAwayError: the connection broke; ask for the rest.
        """
        headers = {**self._headers, "range": f"bytes={start}-"}
        with self._answer("GET", self._path + path, b"", headers, TIMEOUT_S) as answer:
            if answer.status >= 400:
                raise _refusal(answer.status, answer.read(MAX_ANSWER_BYTES), self.url)
            if (kind := answer.headers.get_content_type()) != FILE_TYPE:
                raise _no_registry(self.url, f"{kind} in place of a file")
            if start and answer.status != 206:
                raise RegistryError(f"{self.url} sent the whole of {path}, not the rest of it")
            while True:
                try:
                    piece = answer.read(2**20)
                except (OSError, http.client.HTTPException) as error:
                    raise self._away(error) from error
                if not piece:
                    return
                sink(piece)

    def _answer(
        self,
        method: str,
        target: str,
        body: bytes | memoryview,
        headers: dict[str, str],
        timeout_s: float,
    ) -> http.client.HTTPResponse:
        try:
            if self._connection is None:
                self._connection = self._open()
            connection = self._connection
            connection.timeout = timeout_s
            if connection.sock is not None:
                connection.sock.settimeout(timeout_s)
            connection.request(method, target, body, headers)
            return connection.getresponse()
        except (OSError, http.client.HTTPException) as error:
            raise self._away(error) from error

    def _open(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=TIMEOUT_S)
        return http.client.HTTPSConnection(
            self._host, self._port, timeout=TIMEOUT_S, context=self._tls
        )

    def _away(self, error: Exception) -> RegistryAwayError:
        self.close()
        return RegistryAwayError(
            f"no answer from {self.url}: {error or type(error).__name__}; check the URL, and that "
            "the server runs, then run the same command again to go on"
        )


def path_of(*parts: str | int) -> str:
    """Joins parts of a path, each quoted."""
    return "/".join(quote(str(part), safe="") for part in parts)


def _context(tls: "Tls | None") -> ssl.SSLContext:
    ca_file = None if tls is None or tls.ca_file is None else str(tls.ca_file)
    context = ssl.create_default_context(cafile=ca_file)
    if tls is not None and tls.certificate_file is not None:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context


def _refusal(status: int, data: bytes, url: str) -> RegistryError:
    try:
        message = str(json.loads(data)["error"])
    except (ValueError, KeyError, TypeError, RecursionError):
        if status in _OF_OTHER_SERVERS:
            return _no_registry(url, f"status {status} without a reason")
        message = f"{url} answered with status {status}, and no reason of a registry"
    kind = {409: RegistryConflictError, 503: RegistryBusyError, 429: RegistryBusyError}
    return kind.get(status, RegistryError)(message, status)


def _no_registry(url: str, answered: str) -> RegistryError:
    return RegistryError(
        f"{url} is no registry's REST port: it answered with {answered}; give the address that the "
        "server prints as REST, on port 8000 by default"
    )
