"""The address of an HTTP server: parsed from a URL, and connected to."""

import asyncio
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from flambeau.replay.errors import ServerUrlError, UnreachableError

if TYPE_CHECKING:
    from flambeau.channel import Tls

READ_BYTES = 2**16
"""Bytes of one read, and of a stream's buffer."""
CONNECT_TIMEOUT_S = 10.0
_PORTS = {"http": 80, "https": 443}
_MAX_PORT = 65_535

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@dataclass(frozen=True, slots=True)
class ServerUrl:
    """An HTTP server.

    Attributes:
        text: the URL as it was given, without a slash at the end.
        host: name or address.
        port: TCP port.
        prefix: path before that of every request; empty, or with a slash at its start.
        tls: context of TLS for `https`; None for `http`.
    """

    text: str
    host: str
    port: int
    prefix: str
    tls: ssl.SSLContext | None

    @classmethod
    def parse(cls, text: str, tls: "Tls | None" = None) -> Self:
        """Parses `http://HOST:PORT[/PREFIX]`, or `https`.

        Args:
            text: the URL.
            tls: certificate files for `https`; public authorities are trusted without.

        Raises:
            ServerUrlError: it is no such URL, or has a user, a query or a fragment.
        """
        try:
            parts = urlsplit(text)
            port = parts.port
        except ValueError as error:
            raise ServerUrlError(f"'{text}' is no URL: {error}; give http://HOST:PORT") from error
        scheme, host = parts.scheme.lower(), parts.hostname
        is_printable = text.isascii() and text.isprintable() and " " not in text
        if scheme not in _PORTS or not host or not is_printable:
            raise ServerUrlError(f"{text!r} is no URL of a server; give http://HOST:PORT")
        if parts.query or parts.fragment or "@" in parts.netloc or port == 0:
            raise ServerUrlError(
                f"'{text}' has a user, a query, a fragment or port 0; give http://HOST:PORT only"
            )
        plain = text.rstrip("/")
        secured = _tls_context(tls) if scheme == "https" else None
        return cls(plain, host, port or _PORTS[scheme], parts.path.rstrip("/"), secured)

    @classmethod
    def parse_origin(cls, text: str, tls: "Tls | None" = None) -> Self:
        """Parses a URL without a path.

        Raises:
            ServerUrlError: as `parse`, or there is a path.
        """
        found = cls.parse(text, tls)
        if found.prefix:
            raise ServerUrlError(
                f"'{text}' has a path, and requests pass unchanged; give http://HOST:PORT"
            )
        return found

    @property
    def authority(self) -> str:
        """The value of the `host` header."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        usual = _PORTS["https" if self.tls else "http"]
        return host if self.port == usual else f"{host}:{self.port}"

    async def connect(self) -> Streams:
        """Opens a connection.

        Raises:
            UnreachableError: there is none within `CONNECT_TIMEOUT_S`.
        """
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                return await asyncio.open_connection(
                    self.host, self.port, ssl=self.tls, limit=READ_BYTES
                )
        except TimeoutError as error:
            raise UnreachableError(
                f"no connection to {self.text} within {CONNECT_TIMEOUT_S:g} s; check the address"
            ) from error
        except OSError as error:
            raise UnreachableError(
                f"no connection to {self.text}: {error}; check the address, and that it runs"
            ) from error


def parse_listen(text: str) -> tuple[str, int]:
    """Parses `HOST:PORT` to listen on; port 0 picks a free one.

    Raises:
        ServerUrlError: it is no such address.
    """
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > _MAX_PORT:
        raise ServerUrlError(f"'{text}' is no address to listen on; give HOST:PORT")
    return host.strip("[]"), int(port)


def _tls_context(tls: "Tls | None") -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=tls.ca_file if tls else None)
    if tls and tls.certificate_file and tls.key_file:
        context.load_cert_chain(tls.certificate_file, tls.key_file)
    return context
