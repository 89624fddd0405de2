"""TLS for the ports of a process: one certificate for all of them, renewed without a restart.

In: PEM files. Out: TLS contexts and credentials for an HTTP and a gRPC server.

Rules:
- TLS 1.2 is the oldest supported version;
- connections opened after a renewal use the new certificate and the new client authorities; open
  connections are not affected;
- unusable files prevent startup; after it they are ignored, and the failure is logged and counted;
- no handshake waits for the disk: a separate thread watches the files.
"""

import logging
import ssl
import threading
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import ConfigDict

from flambeau.protocol.strict import StrictModel
from services.background_thread import background_thread
from services.certificate_files import Mark, mark_of, openssl_words, read_certificates, read_file
from services.settings import ConfigError
from services.telemetry.metrics import TlsMetrics

if TYPE_CHECKING:
    import grpc

logger = logging.getLogger("flambeau.tls")

HTTP, HTTP2 = "http/1.1", "h2"
"""ALPN names of the protocols (RFC 7301)."""
LOOK_EVERY_S = 1.0
"""Interval between checks of the files; changed files are read once two checks in a row agree."""


class TlsSettings(StrictModel):
    """TLS settings of the REST and gRPC ports; a part of other settings."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    tls_certificate_file: str = ""
    """PEM file with the server's certificate, followed by the intermediate certificates. Set it
    and `tls_key_file` to require TLS for REST and gRPC; the metrics port stays plaintext. Renewed
    files are loaded without a restart."""
    tls_key_file: str = ""
    """PEM file with the certificate's private key, without a passphrase."""
    tls_client_ca_file: str = ""
    """PEM file with the authorities of client certificates (mutual TLS). Set it to refuse clients
    without a certificate of these authorities, health checks included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """The last usable state of the files."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None
    contexts: dict[str, ssl.SSLContext]
    """Contexts by ALPN protocol."""
    expiry_s: dict[str, float]
    """Earliest expiry of a certificate in seconds since 1970, by use: `server` or `client_ca`."""


class Certificates:
    """Certificates and client authorities of a process's ports; made by `open_certificates`.

    Args:
        settings: settings with a certificate and a key.
        metrics: metrics of expiry, renewals and failed handshakes.

    Raises:
        ConfigError: a file cannot be read, is not PEM, or does not match the others.
    """

    def __init__(self, settings: TlsSettings, metrics: TlsMetrics) -> None:
        self._certificate = Path(settings.tls_certificate_file)
        self._key = Path(settings.tls_key_file)
        self._client_ca = Path(settings.tls_client_ca_file) if settings.tls_client_ca_file else None
        self._metrics = metrics
        self._judged = self._seen = self._marks()
        self._loaded = self._read()
        self.context = self._context_for(HTTP)
        """Context for an HTTP server; every handshake uses the newest certificate."""
        self.grpc_context = self._context_for(HTTP2)
        """Context for a server of gRPC over HTTP/2, likewise."""
        self._tell()

    def grpc_credentials(self) -> "grpc.ServerCredentials":
        """Returns credentials for a grpcio server; every handshake uses the newest certificate.

        Source: https://github.com/grpc/proposal/blob/master/L8-python-dynamic-certificates.md
        """
        import grpc

        given = self._loaded

        def configuration(loaded: _Loaded) -> "grpc.ServerCertificateConfiguration":
            return grpc.ssl_server_certificate_configuration(
                [(loaded.key, loaded.certificate)], root_certificates=loaded.client_ca
            )

        def newer() -> "grpc.ServerCertificateConfiguration | None":
            nonlocal given
            newest = self._loaded
            if newest is given:
                return None
            given = newest
            return configuration(newest)

        return grpc.dynamic_ssl_server_credentials(
            configuration(given),
            newer,  # type: ignore[arg-type]  # None says that nothing has changed
            require_client_authentication=self._client_ca is not None,
        )

    def renewing(self) -> AbstractContextManager[None]:
        """Watches the files for the duration of the block."""

        def watch(over: threading.Event) -> None:
            while not over.wait(LOOK_EVERY_S):
                self.look()

        return background_thread("tls", watch)

    def look(self) -> None:
        """Loads the files if they have changed, and have not changed again since the last check.

        So files that are written one after the other are loaded once all are written.
        """
        marks = self._marks()
        settled, self._seen = marks == self._seen, marks
        if marks == self._judged or not settled:
            return
        try:
            loaded = self._read()
        except ConfigError as error:
            self._judged = marks
            self._metrics.reloads.labels("refused").inc()
            logger.error(
                "the renewed certificate is invalid; the old one stays in use",
                extra={"reason": str(error), "expires_at": _date(self._loaded)},
            )
            return
        if self._marks() != marks:
            return  # written while they were read; the next check sees it
        self._judged, self._loaded = marks, loaded
        self._tell()
        self._metrics.reloads.labels("taken").inc()
        logger.info("using a renewed certificate", extra={"expires_at": _date(loaded)})

    def _marks(self) -> tuple[Mark, ...]:
        files = (self._certificate, self._key, self._client_ca)
        return tuple(mark_of(file) for file in files if file is not None)

    def _read(self) -> _Loaded:
        """Reads the files.

        Raises:
            ConfigError: as the constructor.
        """
        certificate, server_s = read_certificates(self._certificate, "tls_certificate_file")
        key = read_file(self._key, "tls_key_file")
        client_ca, expiry_s = None, {"server": server_s}
        contexts = {protocol: self._new_context(protocol) for protocol in (HTTP, HTTP2)}
        try:
            for context in contexts.values():
                # An empty passphrase; without it OpenSSL would prompt on the terminal.
                context.load_cert_chain(self._certificate, self._key, password="")
        except (ssl.SSLError, OSError) as error:
            raise ConfigError(
                f"tls_key_file '{self._key}' is not the key of tls_certificate_file "
                f"'{self._certificate}', or one of them is no PEM file, or the key has a "
                f"passphrase ({openssl_words(error)}); give the pair as it was issued, the key "
                "without"
            ) from error
        if self._client_ca is not None:
            client_ca, expiry_s["client_ca"] = read_certificates(
                self._client_ca, "tls_client_ca_file"
            )
            for context in contexts.values():
                context.load_verify_locations(cadata=client_ca.decode("ascii", "replace"))
                context.verify_mode = ssl.CERT_REQUIRED
                # A session ticket would readmit a client whose authority was removed.
                context.options |= ssl.OP_NO_TICKET
                context.num_tickets = 0
        return _Loaded(
            certificate=certificate,
            key=key,
            client_ca=client_ca,
            contexts=contexts,
            expiry_s=expiry_s,
        )

    def _new_context(self, protocol: str) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols([protocol])
        context.sslobject_class = _handshakes_counted_in(self._metrics)
        return context

    def _context_for(self, protocol: str) -> ssl.SSLContext:
        """Returns a context whose handshakes switch to the protocol's newest context."""

        def take_newest(handshake: ssl.SSLObject, _name: str | None, _: ssl.SSLContext) -> None:
            # Called by OpenSSL for every ClientHello, with or without a server name.
            handshake.context = self._loaded.contexts[protocol]

        context = self._loaded.contexts[protocol]
        context.sni_callback = take_newest
        return context

    def _tell(self) -> None:
        """Sets the expiry metrics, and warns of expired certificates."""
        for use, expiry_s in self._loaded.expiry_s.items():
            self._metrics.not_after.labels(use).set(expiry_s)
            if expiry_s < time.time():
                logger.warning("a certificate has expired", extra={"use": use})


def open_certificates(settings: TlsSettings, metrics: TlsMetrics) -> Certificates | None:
    """Opens the configured certificates; None if the ports are plaintext.

    Raises:
        ConfigError: a setting requires another one, or a file cannot be used.
    """
    if settings.tls_certificate_file and settings.tls_key_file:
        return Certificates(settings, metrics)
    for name in ("tls_certificate_file", "tls_key_file", "tls_client_ca_file"):
        if value := getattr(settings, name):
            raise ConfigError(
                f"{name} is '{value}', and TLS needs both tls_certificate_file and tls_key_file; "
                "set both, or none of the three"
            )
    return None


def _handshakes_counted_in(metrics: TlsMetrics) -> type[ssl.SSLObject]:
    """Returns the class of a context's connections, which counts and logs failed handshakes.

    asyncio does not report them: it treats the failure as a lost connection.
    """

    class Handshake(ssl.SSLObject):
        def do_handshake(self) -> None:
            try:
                super().do_handshake()
            except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
                raise
            except ssl.SSLError as error:
                metrics.handshake_failures.inc()
                logger.info("refused a TLS handshake", extra={"reason": openssl_words(error)})
                raise

    return Handshake


def _date(loaded: _Loaded) -> str:
    moment = datetime.fromtimestamp(loaded.expiry_s["server"], UTC)
    return moment.isoformat(timespec="seconds")
