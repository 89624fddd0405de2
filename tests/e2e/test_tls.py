"""A server behind mutual TLS: third-party clients connect, others do not, renewal breaks none."""

import http.client
import json
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import numpy as np
import pytest

from tests.e2e.rest_calls import infer_path, linear_input
from tests.fixtures.certificates import Authority, Pair
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.triton_client import TritonClient, TritonError

ROW = [1.0, 2.0, 3.0, 4.0]
WANTED = [[2.0, 4.0, 6.0, 8.0]]
BODY = json.dumps({"inputs": [linear_input(ROW)]}).encode()
SERVER_LIVE = "/inference.GRPCInferenceService/ServerLive"
FOLLOWING = 20
"""Calls of each client that must succeed after the renewal."""


class Locked:
    """A server behind mutual TLS, and the files of its clients."""

    def __init__(self, folder: Path, server: ServerProcess, authority: Authority) -> None:
        self.server = server
        self.authority = authority
        self.ours = authority.issue("ours")
        self.foreign = Authority(folder, "strangers").issue("foreign")

    def context(self, pair: Pair | None) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=str(self.authority.file))
        if pair:
            context.load_cert_chain(pair.certificate, pair.key)
        return context

    def rest(self, pair: Pair | None) -> None:
        """Sends one request on a new connection."""
        connection = http.client.HTTPSConnection(
            self.server.http, timeout=30, context=self.context(pair)
        )
        try:
            connection.request("POST", infer_path("linear"), BODY)
            answer = json.loads(connection.getresponse().read())
            assert answer["outputs"][0]["data"] == WANTED[0]
        finally:
            connection.close()

    def grpc(self, pair: Pair | None) -> None:
        """Does the same over gRPC."""
        client = TritonClient(
            "grpc",
            self.server.grpc,
            ssl=True,
            root_certificates=str(self.authority.file),
            private_key=str(pair.key) if pair else None,
            certificate_chain=str(pair.certificate) if pair else None,
            channel_args=[("grpc.use_local_subchannel_pool", 1)],
        )
        with client:
            found = client.infer("linear", {"x": np.array([ROW], np.float32)}, client_timeout=30)
        assert found.outputs["y"].tolist() == WANTED


@pytest.fixture(scope="module")
def locked(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Locked]:
    folder = tmp_path_factory.mktemp("tls")
    authority = Authority(folder)
    pair = authority.issue("server")
    with running_server(
        store,
        models=["linear"],
        tls_certificate_file=str(pair.certificate),
        tls_key_file=str(pair.key),
        tls_client_ca_file=str(authority.file),
    ) as server:
        yield Locked(folder, server, authority)


def test_clients_others_wrote_get_in(locked: Locked) -> None:
    ours, authority, server = locked.ours, locked.authority, locked.server
    done = subprocess.run(
        ["curl", "--silent", "--fail-with-body", "--cacert", authority.file, "--cert",
         ours.certificate, "--key", ours.key, "--tlsv1.2", "--tls-max", "1.2", "--data", BODY,
         f"https://{server.http}{infer_path('linear')}"],
        check=True, capture_output=True, timeout=60,
    )  # fmt: skip
    assert json.loads(done.stdout)["outputs"][0]["data"] == WANTED[0]
    locked.grpc(ours)
    tls = (str(authority.file), str(ours.certificate), str(ours.key))
    with TritonClient("http", server.http, tls=tls) as triton:
        answer = triton.infer("linear", {"x": np.array([ROW], np.float32)})
    assert answer.outputs["y"].tolist() == WANTED


def test_our_command_line_gets_in(locked: Locked) -> None:
    ours = locked.ours
    asked = ["infer", "linear", "--server", locked.server.grpc, "--input", f"x=[{ROW}]", "--json"]
    files: list[str | Path] = [
        "--ca-file",
        locked.authority.file,
        "--certificate-file",
        ours.certificate,
    ]
    done = run_flambeau(*files, "--key-file", ours.key, *asked)
    assert json.loads(done.stdout) == {"y": WANTED}, done.stderr


@pytest.mark.parametrize("who", ["nobody", "foreign"])
def test_strangers_do_not_get_in(locked: Locked, who: str) -> None:
    pair = None if who == "nobody" else locked.foreign
    failures = "flambeau_tls_handshake_failures_total"
    before = locked.server.metric(failures)
    with pytest.raises((ssl.SSLError, ConnectionError)):
        locked.rest(pair)
    reason = {"nobody": "PEER_DID_NOT_RETURN_A_CERTIFICATE", "foreign": "CERTIFICATE_VERIFY_FAILED"}
    locked.server.wait_for_log(message="refused a TLS handshake", reason=reason[who])
    assert locked.server.metric(failures) == before + 1
    with pytest.raises(TritonError, match="UNAVAILABLE"):
        locked.grpc(pair)  # which retries
    locked.server.wait_until_metric(lambda found: found > before + 1, failures)


def test_plain_callers_do_not_get_in(locked: Locked) -> None:
    with socket.create_connection(("127.0.0.1", locked.server.http_port), timeout=30) as plain:
        plain.sendall(b"GET /v2/health/live HTTP/1.1\r\nhost: here\r\n\r\n")
        assert not plain.recv(1000).startswith(b"HTTP")
    with (
        grpc.insecure_channel(locked.server.grpc) as channel,
        pytest.raises(grpc.RpcError) as refused,
    ):
        channel.unary_unary(SERVER_LIVE, None, None)(b"", timeout=30)
    assert refused.value.code() == grpc.StatusCode.UNAVAILABLE


def test_a_renewal_under_traffic_fails_no_call(locked: Locked) -> None:
    server = locked.server
    with calling(lambda: locked.rest(locked.ours)), calling(lambda: locked.grpc(locked.ours)):
        locked.authority.issue("server")
        server.wait_for_log(message="using a renewed certificate")
        (locked.authority.file.parent / "server.key").write_text("nonsense")
        server.wait_for_log(message="the renewed certificate is invalid; the old one stays in use")
    assert server.metric("flambeau_tls_reloads_total", outcome="taken") == 1
    assert server.metric("flambeau_tls_reloads_total", outcome="refused") == 1


@contextmanager
def calling(call: Callable[[], object]) -> Iterator[None]:
    """Calls repeatedly, and for a while after the block; no call may fail."""
    failures: list[BaseException] = []
    over = threading.Event()

    def run() -> None:
        left = FOLLOWING
        while left and not failures:
            left -= over.is_set()
            try:
                call()
            except BaseException as error:
                failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert not failures
