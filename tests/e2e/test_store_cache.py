"""A server that starts while its bucket is away serves what its cache knows, and follows later."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.rest_calls import call
from tests.e2e.test_bucket_faults import RECOVERED_S, bucket, proxy, served, store_of, version
from tests.fixtures.faulty_proxy import Fault, FaultyProxy
from tests.fixtures.http_listener import QuietHandler, http_listener
from tests.fixtures.redis_servers import until_true
from tests.fixtures.servers import ServerProcess

pytestmark = pytest.mark.long

__all__ = ["bucket", "proxy"]

AWAY = "store is away; serving from the cache"


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


@pytest.fixture
def agent() -> Iterator["Agent"]:
    """Runs an agent that gives credentials to pods."""
    found = Agent()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            body = json.dumps({
                "AccessKeyId": found.key, "SecretAccessKey": "test", "Token": "test",
                "Expiration": "2026-01-01T00:00:00Z",
            }).encode()  # fmt: skip
            self.send_response(200)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with http_listener(Handler) as found.url:
        yield found


class Agent:
    """An agent of EKS Pod Identity, and the key that it gives."""

    def __init__(self) -> None:
        self.url = ""
        self.key = "first"


def fill(store: str, cache: Path, **environment: str | None) -> None:
    """Serves version 1 once, so that the cache knows it."""
    with served(store, cache, **environment) as server:
        assert version(server) == 1


def assert_served_from_cache(server: ServerProcess) -> None:
    assert version(server) == 1
    reply = call(server, "GET", "/v2/health/ready")
    assert reply.status == 200
    assert reply.json()["reason"].startswith(
        "serving from the cache; the store has been away since"
    )
    assert server.wait_for_log(message=AWAY)["reason"]
    assert server.metric("flambeau_served_from_cache") == 1


def assert_follows(server: ServerProcess, wanted: int) -> None:
    until_true(lambda: version(server) == wanted, RECOVERED_S)
    server.wait_for_metric(0, "flambeau_served_from_cache")
    until_true(lambda: call(server, "GET", "/v2/health/ready").json() == {"ready": True})
    assert [log["message"] for log in server.logs()].count(AWAY) == 1


@pytest.mark.parametrize("fault", ["denied", "errors"])
def test_a_start_without_the_bucket_serves_the_last_known_versions(
    bucket: str, proxy: FaultyProxy, cache: Path, fault: Fault
) -> None:
    store = store_of(bucket, f"away-{fault}")
    fill(store.url, cache, AWS_ENDPOINT_URL=proxy.url)
    proxy.fault = fault
    store.promote("linear", 2)
    with served(store.url, cache, AWS_ENDPOINT_URL=proxy.url) as server:
        assert_served_from_cache(server)
        proxy.fault = "none"
        assert_follows(server, 2)


def test_several_processes_start_without_the_bucket(
    bucket: str, proxy: FaultyProxy, cache: Path
) -> None:
    store = store_of(bucket, "away-processes")
    fill(store.url, cache, AWS_ENDPOINT_URL=proxy.url)
    proxy.fault = "denied"
    with served(store.url, cache, "--processes=2", AWS_ENDPOINT_URL=proxy.url) as server:
        assert_served_from_cache(server)
        proxy.fault = "none"
        assert_follows(server, 1)


def test_flipped_bytes_of_the_cache_are_fetched_again(bucket: str, cache: Path) -> None:
    store = store_of(bucket, "flipped")
    fill(store.url, cache)
    files = {path: path.read_bytes() for path in (cache / "files").iterdir()}
    assert files
    for path, data in files.items():
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    with served(store.url, cache) as server:
        assert version(server) == 1
        damaged = server.metric("flambeau_store_cache_reads_total", outcome="damaged")
        assert damaged == len(files)
        assert server.wait_for_log(
            message="a cached file was damaged; it is removed and fetched again"
        )
    assert {path: path.read_bytes() for path in (cache / "files").iterdir()} == files


def test_a_start_with_outdated_credentials_goes_on_when_they_are_renewed(
    bucket: str, proxy: FaultyProxy, cache: Path, tmp_path: Path, agent: Agent
) -> None:
    store = store_of(bucket, "outdated")
    token = tmp_path / "token"
    token.write_text("of-the-service-account")
    identity = {
        "AWS_ENDPOINT_URL": proxy.url,
        "AWS_ACCESS_KEY_ID": None, "AWS_SECRET_ACCESS_KEY": None,
        "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{agent.url}/v1/credentials",
    }  # fmt: skip
    proxy.key = "first"
    fill(store.url, cache, **identity)
    store.promote("linear", 2)
    proxy.key = "second"
    with served(store.url, cache, **identity) as server:
        assert_served_from_cache(server)
        agent.key = "second"
        assert_follows(server, 2)
