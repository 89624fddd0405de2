"""Certificates of the ports: rejection, display, and renewal."""

import asyncio
import os
import ssl
import tempfile
import threading
from collections.abc import Iterator
from concurrent import futures
from datetime import UTC, datetime
from pathlib import Path

import grpc
import grpc.aio
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry

from services.certificate_dates import not_after_s
from services.settings import ConfigError
from services.telemetry.metrics import TlsMetrics
from services.tls import Certificates, TlsSettings, open_certificates
from tests.fixtures.certificates import LATER, Authority, Pair, replace

SOONER = datetime(2036, 1, 1, tzinfo=UTC)
EXPIRY = "flambeau_tls_certificate_not_after_timestamp_seconds"


class Place:
    """A server's files, the TLS context made of them, and clients."""

    def __init__(self, folder: Path, with_clients: bool = False) -> None:
        self.folder = folder
        self.authority = Authority(folder)
        self.pair = self.authority.issue("server")
        self.clients = Authority(folder, "clients") if with_clients else None
        self.registry = CollectorRegistry()
        self.settings = TlsSettings(
            tls_certificate_file=str(self.pair.certificate),
            tls_key_file=str(self.pair.key),
            tls_client_ca_file=str(self.clients.file) if self.clients else "",
        )
        certificates = open_certificates(self.settings, TlsMetrics(self.registry))
        assert certificates is not None
        self.certificates: Certificates = certificates

    def look(self) -> None:
        """Checks the files twice, like two checks of the thread."""
        self.certificates.look()
        self.certificates.look()

    def metric(self, name: str, **labels: str) -> float | None:
        return self.registry.get_sample_value(name, labels)

    def caller(self, pair: Pair | None = None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.file))
        if pair is not None:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    def shown(self, caller: ssl.SSLContext) -> datetime:
        """The expiry of the certificate shown in a handshake, which both ends must finish."""
        to_server, to_caller = ssl.MemoryBIO(), ssl.MemoryBIO()
        server = self.certificates.context.wrap_bio(to_server, to_caller, server_side=True)
        client = caller.wrap_bio(to_caller, to_server, server_hostname="127.0.0.1")
        for end in (client, server, client, server):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
        found = client.getpeercert()
        assert found is not None
        return datetime.fromtimestamp(ssl.cert_time_to_seconds(str(found["notAfter"])), UTC)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture
def mutual(tmp_path: Path) -> Place:
    return Place(tmp_path, with_clients=True)


@settings(max_examples=30, deadline=None)
@given(st.datetimes(datetime(1960, 1, 1), datetime(2120, 1, 1)))
def test_expiry_is_read_as_it_was_written(moment: datetime) -> None:
    moment = moment.replace(microsecond=0, tzinfo=UTC)
    with tempfile.TemporaryDirectory() as folder:
        pair = Authority(Path(folder)).issue("any", moment)
        certificate = x509.load_pem_x509_certificate(pair.certificate.read_bytes())
    der = certificate.public_bytes(Encoding.DER)
    assert not_after_s(der) == moment.timestamp()
    with pytest.raises(ValueError, match=r"truncated|no dates|no expiry date"):
        not_after_s(der[: len(der) // 2])


def test_no_certificate_is_no_tls() -> None:
    assert open_certificates(TlsSettings(), TlsMetrics(CollectorRegistry())) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"tls_key_file": ""}, "needs both tls_certificate_file and tls_key_file"),
        ({"tls_certificate_file": "", "tls_key_file": ""}, "tls_client_ca_file is"),
        ({"tls_certificate_file": "/nowhere.crt"}, "'/nowhere.crt' cannot be read"),
        ({"tls_key_file": "other.key"}, "is not the key of tls_certificate_file"),
        ({"tls_key_file": "locked.key"}, "has a passphrase"),
        ({"tls_certificate_file": "empty"}, "tls_certificate_file holds no certificate"),
        ({"tls_certificate_file": "broken"}, "tls_certificate_file holds a certificate that"),
        ({"tls_client_ca_file": "empty"}, "tls_client_ca_file holds no certificate"),
    ],
)
def test_what_cannot_be_used_is_refused(
    mutual: Place, monkeypatch: pytest.MonkeyPatch, change: dict[str, str], words: str
) -> None:
    monkeypatch.chdir(mutual.folder)
    mutual.authority.issue("other")
    mutual.authority.issue("locked", encryption=BestAvailableEncryption(b"secret"))
    Path("empty").write_text("")
    lines = mutual.pair.certificate.read_text().splitlines()
    Path("broken").write_text("\n".join([lines[0], *lines[2:]]))
    given = mutual.settings.model_dump() | change
    with pytest.raises(ConfigError, match=words):
        open_certificates(TlsSettings(**given), TlsMetrics(CollectorRegistry()))


def test_a_renewed_pair_is_shown_from_the_next_handshake_on(place: Place) -> None:
    assert place.shown(place.caller()) == LATER
    assert place.metric(EXPIRY, use="server") == LATER.timestamp()
    place.authority.issue("server", SOONER)
    place.certificates.look()
    assert place.shown(place.caller()) == LATER  # whoever writes may not be done
    place.certificates.look()
    assert place.shown(place.caller()) == SOONER
    assert place.metric(EXPIRY, use="server") == SOONER.timestamp()
    place.look()
    assert place.metric("flambeau_tls_reloads_total", outcome="taken") == 1


def test_a_bad_renewal_changes_nothing_and_is_told(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    good = place.pair.key.read_bytes()
    other = place.authority.issue("other", SOONER)
    replace(place.pair.key, other.key.read_bytes())
    place.look()
    place.look()
    assert place.shown(place.caller()) == LATER
    assert place.metric("flambeau_tls_reloads_total", outcome="refused") == 1
    assert [record.message for record in caplog.records] == [
        "the renewed certificate is invalid; the old one stays in use"
    ]
    place.pair.key.unlink()
    place.look()
    assert place.shown(place.caller()) == LATER
    os.mkfifo(place.pair.key)  # nobody waits for a pipe
    place.look()
    assert place.shown(place.caller()) == LATER
    place.pair.key.unlink()
    replace(place.pair.key, good)
    place.look()
    assert place.metric("flambeau_tls_reloads_total", outcome="taken") == 1


def test_only_callers_of_the_authority_get_in(mutual: Place) -> None:
    assert mutual.clients is not None
    ours = mutual.caller(mutual.clients.issue("ours"))
    strangers = Authority(mutual.folder, "strangers")
    foreign = mutual.caller(strangers.issue("foreign"))
    assert mutual.shown(ours) == LATER
    for caller in (mutual.caller(), foreign):
        with pytest.raises(ssl.SSLError):
            mutual.shown(caller)
    assert mutual.metric("flambeau_tls_handshake_failures_total") == 2
    replace(mutual.clients.file, strangers.file.read_bytes())
    mutual.look()
    assert mutual.shown(foreign) == LATER
    with pytest.raises(ssl.SSLError):
        mutual.shown(ours)


def test_an_expired_certificate_is_warned_of(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.authority.issue("server", datetime(2020, 1, 1, tzinfo=UTC))
    place.look()
    assert "a certificate has expired" in [record.message for record in caplog.records]


def ask(port: int, authority: Authority, pair: Pair | None) -> bytes:
    """Sends one request on a new connection."""
    key = pair.key.read_bytes() if pair else None
    chain = pair.certificate.read_bytes() if pair else None
    credentials = grpc.ssl_channel_credentials(authority.file.read_bytes(), key, chain)
    options = [("grpc.use_local_subchannel_pool", 1)]
    with grpc.secure_channel(f"127.0.0.1:{port}", credentials, options) as channel:
        found: bytes = channel.unary_unary("/test/Echo", None, None)(b"echo", timeout=20)
        return found


def renewals(mutual: Place, port: int) -> None:
    """Checks the rules of renewal for any gRPC server."""
    assert mutual.clients is not None
    ours, foreign = mutual.clients.issue("ours"), mutual.authority.issue("foreign")
    assert ask(port, mutual.authority, ours) == b"echo"
    for pair in (None, foreign):
        with pytest.raises(grpc.RpcError) as refused:
            ask(port, mutual.authority, pair)
        assert refused.value.code() == grpc.StatusCode.UNAVAILABLE
    other = Authority(mutual.folder, "other")
    other.issue("server")
    mutual.look()
    assert ask(port, other, ours) == b"echo"
    with pytest.raises(grpc.RpcError):
        ask(port, mutual.authority, ours)


@pytest.fixture
def threaded_port(mutual: Place) -> Iterator[int]:
    handler = grpc.unary_unary_rpc_method_handler(lambda request, _: request)
    server = grpc.server(futures.ThreadPoolExecutor(2))
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test", {"Echo": handler}),)
    )
    port = server.add_secure_port("127.0.0.1:0", mutual.certificates.grpc_credentials())
    server.start()
    yield port
    server.stop(0).wait()


def test_grpc_keeps_to_it(mutual: Place, threaded_port: int) -> None:
    renewals(mutual, threaded_port)


async def test_grpc_on_the_event_loop_keeps_to_it(mutual: Place) -> None:
    async def echo(request: bytes, _: object) -> bytes:
        return request

    server = grpc.aio.server()
    handler = grpc.unary_unary_rpc_method_handler(echo)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("test", {"Echo": handler}),)
    )
    port = server.add_secure_port("127.0.0.1:0", mutual.certificates.grpc_credentials())
    await server.start()
    await asyncio.to_thread(renewals, mutual, port)
    await server.stop(0)


def test_the_thread_that_looks_ends_with_its_block(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("services.tls.LOOK_EVERY_S", 0.001)
    taken = threading.Event()
    monkeypatch.setattr("services.tls.logger.info", lambda *_, **__: taken.set())
    with place.certificates.renewing():
        place.authority.issue("server", SOONER)
        assert taken.wait(20)
    assert place.shown(place.caller()) == SOONER
    assert "tls" not in {thread.name for thread in threading.enumerate()}
