"""Certificates of connections to Redis: client certificate and CA files of its URL, kept current.

In: the files that the URL of the queue names. Out: the class of redis-py's connections that uses
them, and when they expire.

redis-py reads the files once for each of its connections, which are connected again and again.
Rules:
- new connections after a renewal use the new files; open connections are unchanged;
- unusable files stop the start; later they change nothing, and that is logged and counted;
- unchanged files are not read again: all connections share one TLS context.
"""

import logging
import ssl
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from redis.asyncio.connection import RedisSSLContext, SSLConnection

from model_store.storage.plain_file import read_plain_file
from services.certificate_files import (
    MAX_PEM_BYTES,
    Mark,
    mark_of,
    openssl_words,
    read_certificates,
)
from services.settings import ConfigError
from services.telemetry.metrics import TlsMetrics

logger = logging.getLogger("flambeau.tls")

_EXPIRING = {"ssl_certfile": "redis_client", "ssl_ca_certs": "redis_ca"}
"""Parts of a URL's query that name certificates, and the use of each in metrics."""
_FILES = (*_EXPIRING, "ssl_keyfile")
_FOLDERS = ("ssl_ca_path",)


class ClientCertificates:
    """The certificate files of one URL.

    Args:
        url: `rediss://…`, as redis-py takes it.

    Raises:
        ConfigError: a file cannot be read, or holds no certificate.
    """

    def __init__(self, url: str) -> None:
        query = dict(parse_qsl(urlsplit(url).query))
        self._files = [Path(query[name]) for name in _FILES if name in query]
        self._marked = [*self._files, *(Path(query[name]) for name in _FOLDERS if name in query)]
        self._expiring = [
            _Expiring(Path(query[name]), name, use)
            for name, use in _EXPIRING.items()
            if name in query
        ]
        self._marks: list[Mark] = []
        self._context: ssl.SSLContext | None = None
        self._metrics: TlsMetrics | None = None

    def report(self, metrics: TlsMetrics) -> None:
        """Tells metrics of expiry, each time they are asked for, and from now on of renewals."""
        self._metrics = metrics
        for expiring in self._expiring:
            metrics.not_after.labels(expiring.use).set_function(expiring.newest_s)

    def renewing(self, kind: type[SSLConnection]) -> type[SSLConnection]:
        """Returns a class of connections that use the newest files."""
        newest = self._newest

        class Renewing(kind):  # type: ignore[misc, valid-type]
            def _connection_arguments(self) -> Mapping[str, Any]:
                self.ssl_context.context = newest(self.ssl_context)
                found: Mapping[str, Any] = super()._connection_arguments()
                return found

        return Renewing

    def _newest(self, asked: RedisSSLContext) -> ssl.SSLContext:
        """Returns the TLS context of new connections.

        Raises:
            OSError: the files cannot be used, and never could.
        """
        marks = [mark_of(file) for file in self._marked]
        if self._context is not None and marks == self._marks:
            return self._context
        self._marks, asked.context = marks, None
        try:
            for file in self._files:
                read_plain_file(file, MAX_PEM_BYTES)  # OpenSSL would wait for a pipe for ever
            context = asked.get()
        except OSError as error:
            if self._context is None:
                raise
            self._count("refused")
            logger.error(
                "the renewed certificate for Redis is invalid; the old one stays in use",
                extra={"reason": openssl_words(error)},
            )
            return self._context
        if self._context is not None:
            self._count("taken")
            logger.info("using a renewed certificate for Redis")
        self._context = context
        return context

    def _count(self, outcome: str) -> None:
        if self._metrics is not None:
            self._metrics.reloads.labels(outcome).inc()


class _Expiring:
    """A file of certificates; asked by threads that answer for metrics.

    Args:
        file: PEM.
        setting: which names it.
        use: in metrics.

    Raises:
        ConfigError: it cannot be read, or holds no certificate.
    """

    def __init__(self, file: Path, setting: str, use: str) -> None:
        self.use = use
        self._file = file
        self._setting = setting
        self._lock = threading.Lock()
        self._mark = mark_of(file)
        self._expiry_s = read_certificates(file, setting)[1]

    def newest_s(self) -> float:
        """Returns the first expiry of the file's certificates; unreadable ones change nothing."""
        with self._lock:
            mark = mark_of(self._file)
            if mark != self._mark:
                self._mark = mark
                try:
                    self._expiry_s = read_certificates(self._file, self._setting)[1]
                except ConfigError as error:
                    logger.error(
                        "a certificate for Redis cannot be read", extra={"reason": str(error)}
                    )
            return self._expiry_s
