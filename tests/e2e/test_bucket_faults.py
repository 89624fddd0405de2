"""A server whose bucket is in trouble: it serves what is loaded, and goes on by itself."""

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from model_store.store import ModelStore
from services.atomic_file import write_atomically
from tests.e2e.rest_calls import call, infer, linear_input
from tests.fixtures.certificates import Authority
from tests.fixtures.faulty_proxy import Fault, FaultyProxy, faulty_proxy
from tests.fixtures.http_listener import QuietHandler, http_listener
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.redis_servers import until_true
from tests.fixtures.s3_server import s3_server
from tests.fixtures.security_token_service import ROLE, security_token_service
from tests.fixtures.servers import COMMAND, FREE_PORTS, ServerProcess, serving, supervised

pytestmark = pytest.mark.long

ROW = [1.0, 2.0, 3.0, 4.0]
UNREACHABLE = "store is unreachable; serving the loaded versions"
RECOVERED_S = 90
"""obstore pauses for up to 15 s between attempts."""


@pytest.fixture(scope="module")
def bucket() -> Iterator[str]:
    with s3_server() as url:
        yield url


@pytest.fixture
def proxy(bucket: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyProxy]:
    """Runs a proxy, which the processes that this test starts take for the bucket."""
    with faulty_proxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        yield proxy


@contextmanager
def served(
    store: str, cache: Path | str = "", *arguments: str, **environment: str | None
) -> Iterator[ServerProcess]:
    """Runs a server with other variables, None for not set; it must exit with 0."""
    variables = {**os.environ, **environment}
    settings = {"newest_versions": 0, "store_cache": str(cache)}
    process = subprocess.Popen(
        [COMMAND, *serving(store, *FREE_PORTS, *arguments, **settings)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={name: value for name, value in variables.items() if value is not None},
    )  # fmt: skip
    with supervised(ServerProcess(process)) as server:
        yield server


def version(server: ServerProcess) -> int:
    reply = infer(server, "linear", linear_input(ROW))
    assert reply.status == 200, reply.body
    number = int(reply.json()["model_version"])
    assert reply.outputs() == {"y": [number * x for x in ROW]}
    return number


def store_of(bucket: str, name: str) -> ModelStore:
    """Returns a store with versions 1 and 2, and production on 1."""
    store = ModelStore(f"{bucket}/{name}")
    for scale in (1.0, 2.0):
        publish(store.url, "linear", linear(scale))
    store.promote("linear", 1)
    return store


@pytest.mark.parametrize("fault", ["errors", "slow", "cut", "denied"])
def test_a_bucket_in_trouble_costs_no_request_and_is_followed_again(
    bucket: str, proxy: FaultyProxy, fault: Fault
) -> None:
    store = store_of(bucket, fault)
    with served(store.url, AWS_ENDPOINT_URL=proxy.url) as server:
        assert version(server) == 1
        proxy.fault = fault
        store.promote("linear", 2)
        before = proxy.refused
        until_true(lambda: proxy.refused > before + 1)
        assert {version(server) for _ in range(20)} <= {1, 2}
        if fault == "denied":
            reason = server.wait_for_log(message=UNREACHABLE)["reason"]
            assert "403 Forbidden: <Error><Code>ExpiredToken</Code></Error>; check the" in reason
            seen = proxy.refused
            until_true(lambda: proxy.refused > seen + 2)
            assert [log["message"] for log in server.logs()].count(UNREACHABLE) == 1
        assert call(server, "GET", "/v2/health/ready").status == 200
        proxy.fault = "none"
        until_true(lambda: version(server) == 2, RECOVERED_S)


def test_a_web_identity_whose_token_is_rotated_is_taken(
    bucket: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """The kubelet replaces the token in its file; STS and the bucket refuse what has expired."""
    store = store_of(bucket, "web-identity")
    token = tmp_path / "token"
    token.write_text("first")
    authority = Authority(tmp_path)
    proxy.key = "first"
    with security_token_service(authority.issue("sts")) as service:
        identity = {
            "AWS_ENDPOINT_URL": proxy.url,
            "AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None,
            "AWS_ROLE_ARN": ROLE, "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "AWS_ENDPOINT_URL_STS": service.url, "SSL_CERT_FILE": str(authority.file),
        }  # fmt: skip
        with served(store.url, "", **identity) as server:
            assert version(server) == 1
            service.token = service.key = proxy.key = "second"
            store.promote("linear", 2)
            refused = service.refused
            until_true(lambda: service.refused > refused)
            assert version(server) == 1
            write_atomically(token, "second")
            until_true(lambda: version(server) == 2, RECOVERED_S)
    assert list(dict.fromkeys(service.accepted)) == ["first", "second"]


def test_credentials_that_are_renewed_by_the_pod_s_agent_are_taken(
    bucket: str, proxy: FaultyProxy, tmp_path: Path
) -> None:
    """An agent of EKS Pod Identity: its keys expire within minutes, and old ones are refused."""
    store = store_of(bucket, "rotated")
    token = tmp_path / "token"
    token.write_text("of-the-service-account")
    proxy.key = "first"

    class Agent(QuietHandler):
        def do_GET(self) -> None:
            found = {
                "AccessKeyId": proxy.key, "SecretAccessKey": "test", "Token": "test",
                "Expiration": "2026-01-01T00:00:00Z",
            }  # fmt: skip
            body = json.dumps(found).encode()
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_listener(Agent) as agent:
        identity = {
            "AWS_ENDPOINT_URL": proxy.url,
            "AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent}/v1/credentials",
        }  # fmt: skip
        with served(store.url, "", **identity) as server:
            assert version(server) == 1
            proxy.key = "second"
            store.promote("linear", 2)
            until_true(lambda: version(server) == 2, RECOVERED_S)
