"""Certificates of Redis connections that are replaced while a process runs."""

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import redis
from prometheus_client import CollectorRegistry
from redis.exceptions import RedisError

from services.queueing.redis_streams.clients import Commands, RedisClients
from services.telemetry.metrics import TlsMetrics
from tests.fixtures.certificates import LATER, Authority, replace
from tests.fixtures.redis_servers import FLAVOURS, binary_of, until_seen
from tests.fixtures.redis_setups import LOCAL, free_port, is_open, running, wait_until

ALL_SLOTS = (0, 16383)
SOONER = datetime(2036, 1, 1, tzinfo=UTC)
EXPIRY = "flambeau_tls_certificate_not_after_timestamp_seconds"
RELOADS = "flambeau_tls_reloads_total"


@dataclass(frozen=True)
class Place:
    """A Redis that speaks mutual TLS only, and the files of both ends."""

    folder: Path
    port: int
    query: str
    authority: Authority
    admin: Any

    def rotate(self) -> None:
        """Gives both ends certificates of another authority, and closes existing connections."""
        _issue(self.folder, "another")
        options = ((name.removeprefix("--"), value) for name, value in _files(self.folder).items())
        self.admin.execute_command("CONFIG SET", *(word for pair in options for word in pair))
        self.disconnect()

    def disconnect(self) -> None:
        """Closes all connections except its own."""
        self.admin.execute_command("CLIENT KILL", "TYPE", "normal", "SKIPME", "yes")


@pytest.fixture(params=FLAVOURS)
def binary(request: pytest.FixtureRequest) -> str:
    return binary_of(request.param)


async def test_reconnects_use_the_certificates_on_disk(binary: str, tmp_path: Path) -> None:
    with mutual_tls(binary, tmp_path) as place:
        await survives_rotation(place, f"rediss://{LOCAL}:{place.port}?{place.query}")


async def test_renewals_and_expiry_are_told(binary: str, tmp_path: Path) -> None:
    with mutual_tls(binary, tmp_path) as place:
        clients = RedisClients(f"rediss://{LOCAL}:{place.port}?{place.query}")
        registry = CollectorRegistry()
        clients.report_certificates(TlsMetrics(registry))
        client = clients.open()
        await until_seen(lambda: answers(client))
        assert registry.get_sample_value(EXPIRY, {"use": "redis_client"}) == LATER.timestamp()
        key = (tmp_path / "ours.key").read_bytes()
        place.authority.issue("ours", SOONER)
        renewed = (tmp_path / "ours.key").read_bytes()
        replace(tmp_path / "ours.key", key)  # a renewal in progress has written only half of it
        place.disconnect()
        await until_seen(lambda: answers(client))
        assert registry.get_sample_value(RELOADS, {"outcome": "refused"}) == 1
        (tmp_path / "ours.key").unlink()
        os.mkfifo(tmp_path / "ours.key")  # no reader waits for a pipe
        place.disconnect()
        await until_seen(lambda: answers(client))
        assert registry.get_sample_value(RELOADS, {"outcome": "refused"}) == 2
        replace(tmp_path / "ours.key", renewed)
        place.disconnect()
        await until_seen(lambda: answers(client))
        assert registry.get_sample_value(RELOADS, {"outcome": "refused"}) == 2
        assert registry.get_sample_value(RELOADS, {"outcome": "taken"}) == 1
        assert registry.get_sample_value(EXPIRY, {"use": "redis_client"}) == SOONER.timestamp()
        assert registry.get_sample_value(EXPIRY, {"use": "redis_ca"}) == LATER.timestamp()
        await client.close()


async def test_so_do_those_to_a_cluster(binary: str, tmp_path: Path) -> None:
    with mutual_tls(binary, tmp_path, "--cluster-enabled", "yes", "--tls-cluster", "yes") as place:
        place.admin.execute_command("CLUSTER", "ADDSLOTSRANGE", *ALL_SLOTS)
        wait_until(lambda: _is_whole(place.admin))
        await survives_rotation(place, f"rediss+cluster://{LOCAL}:{place.port}?{place.query}")


async def test_so_do_those_to_a_master_behind_sentinel(binary: str, tmp_path: Path) -> None:
    home, port = tmp_path / "sentinel", free_port()
    home.mkdir()
    with mutual_tls(binary, tmp_path, "--tls-replication", "yes") as place:
        settings = [f"sentinel monitor flambeau {LOCAL} {place.port} 1", "tls-replication yes"]
        settings += [f"{name[2:]} {value}" for name, value in _files(tmp_path).items()]
        config = home / "sentinel.conf"
        config.write_text("\n".join(settings) + "\n")
        with running(binary, home, port, "--sentinel", config=config):
            url = f"rediss+sentinel://{LOCAL}:{port}/flambeau?{place.query}"
            await survives_rotation(place, url)


async def survives_rotation(place: Place, url: str) -> None:
    """Checks that a connected client reconnects afterwards."""
    client = RedisClients(url).open()
    try:
        await until_seen(lambda: answers(client))
        place.rotate()
        await until_seen(lambda: answers(client))
    finally:
        await client.close()


async def answers(client: Commands) -> bool:
    """Returns True if a command succeeds now."""
    with contextlib.suppress(RedisError):
        return bool(await client.send("SET", "key", "value"))
    return False


@contextlib.contextmanager
def mutual_tls(binary: str, folder: Path, *options: str) -> Iterator[Place]:
    """Runs a server whose files, and ours, lie in the folder."""
    authority = _issue(folder, "first")
    port, files = free_port(), _files(folder)
    words = [word for pair in files.items() for word in pair]
    options = ("--port", "0", "--tls-port", str(port), "--tls-auth-clients", "yes", *options)
    with running(binary, folder, 0, *options, *words, answers=False) as process:
        wait_until(lambda: is_open(port) or process.poll() is not None)
        if process.poll() is not None and "tls" in (folder / "log-0").read_text().lower():
            pytest.skip("this server was built without TLS")
        ours = {
            "ssl_ca_certs": str(folder / "ca.pem"),
            "ssl_certfile": str(folder / "ours.crt"),
            "ssl_keyfile": str(folder / "ours.key"),
        }
        query = "&".join(f"{name}={file}" for name, file in ours.items())
        given: dict[str, Any] = ours
        with redis.Redis(LOCAL, port, ssl=True, single_connection_client=True, **given) as admin:
            admin.ping()
            yield Place(folder, port, query, authority, admin)


def _issue(folder: Path, name: str) -> Authority:
    """Issues certificates of both ends, by a new authority of this name."""
    issuer = Authority(folder, name)
    issuer.issue("redis")
    issuer.issue("ours")
    replace(folder / "ca.pem", issuer.file.read_bytes())
    return issuer


def _files(folder: Path) -> dict[str, str]:
    return {
        "--tls-cert-file": str(folder / "redis.crt"),
        "--tls-key-file": str(folder / "redis.key"),
        "--tls-ca-cert-file": str(folder / "ca.pem"),
    }


def _is_whole(node: Any) -> bool:
    return bool(node.execute_command("CLUSTER INFO")["cluster_state"] == "ok")
