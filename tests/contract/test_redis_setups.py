"""The ways Redis may be set up: as a cluster, behind Sentinel, with TLS and a user of its own."""

import contextlib
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
import redis
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from redis.exceptions import RedisError

from tests.fixtures.queue_ends import redis_ends, reply
from tests.fixtures.redis_servers import FLAVOURS, binary_of, until

START_TIMEOUT_S = 20.0
LOCAL = "127.0.0.1"


@pytest.fixture(params=FLAVOURS)
def binary(request: pytest.FixtureRequest) -> str:
    return binary_of(request.param)


async def test_a_cluster_carries_requests(binary: str, tmp_path: Path) -> None:
    with cluster(binary, tmp_path) as url:
        await requests_are_answered(url)


async def test_sentinel_names_the_master(binary: str, tmp_path: Path) -> None:
    with behind_sentinel(binary, tmp_path) as url:
        await requests_are_answered(url)


async def test_a_user_of_its_own_and_tls_are_enough(binary: str, tmp_path: Path) -> None:
    with over_tls(binary, tmp_path) as url:
        await requests_are_answered(url)


async def requests_are_answered(url: str) -> None:
    """One after the other, one cancelled, and several at once."""
    async with redis_ends(url) as ends:
        for n in range(3):
            caller = ends.send(n)
            await ends.shelf.holds(1)
            ends.shelf.take().finish(reply(n))
            assert await caller.value() == n
        ends.send("cancelled").entry.cancel()
        callers = [ends.send(n) for n in range(3)]
        while not all(caller.heard for caller in callers):
            await until(lambda: ends.shelf.entries)
            entry = ends.shelf.take()
            if not entry.dead:
                number = int(entry.request.request_id)
                entry.finish(reply(number))
                assert await callers[number].value() == number


@contextlib.contextmanager
def cluster(binary: str, folder: Path) -> Iterator[str]:
    """Two nodes, each with half of the slots."""
    ports, buses = [[free_port() for _ in range(2)] for _ in range(2)]
    with contextlib.ExitStack() as stack:
        for port, bus in zip(ports, buses, strict=True):
            home = folder / str(port)
            home.mkdir()
            options = ["--cluster-enabled", "yes", "--cluster-port", str(bus)]
            stack.enter_context(running(binary, home, port, *options))
        nodes: list[Any] = [stack.enter_context(redis.Redis(LOCAL, port)) for port in ports]
        for i, node in enumerate(nodes):
            node.execute_command("CLUSTER", "ADDSLOTSRANGE", i * 8192, i * 8192 + 8191)
            node.execute_command("CLUSTER", "SET-CONFIG-EPOCH", i + 1)
        nodes[0].execute_command("CLUSTER", "MEET", LOCAL, ports[1], buses[1])
        for node in nodes:
            wait_until(lambda node=node: is_whole(node))  # type: ignore[misc]
        yield f"redis+cluster://{LOCAL}:{ports[0]}"


def is_whole(node: Any) -> bool:
    """Whether a node knows who has which slot."""
    info = node.execute_command("CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and info["cluster_slots_ok"] == "16384")


@contextlib.contextmanager
def behind_sentinel(binary: str, folder: Path) -> Iterator[str]:
    """One master and one sentinel."""
    master, sentinel = free_port(), free_port()
    (folder / "sentinel").mkdir()
    config = folder / "sentinel" / "sentinel.conf"
    config.write_text(f"sentinel monitor flambeau {LOCAL} {master} 1\n")
    with (
        running(binary, folder, master),
        running(binary, folder / "sentinel", sentinel, "--sentinel", config=config),
    ):
        yield f"redis+sentinel://{LOCAL}:{sentinel}/flambeau"


@contextlib.contextmanager
def over_tls(binary: str, folder: Path) -> Iterator[str]:
    """Only TLS, and a user who may do what the queue needs and nothing else."""
    certificate, key = write_certificate(folder)
    port = free_port()
    options = [
        "--port", "0", "--tls-port", str(port), "--tls-auth-clients", "no",
        "--tls-cert-file", str(certificate), "--tls-key-file", str(key),
        "--tls-ca-cert-file", str(certificate),
        "--user", "default", "off",
        "--user", "flambeau", "on", ">secret", "~flambeau:*", "&flambeau:*", "-@all",
        "+@connection", "+@stream", "+@sortedset", "+@hash", "+@list", "+@string", "+@keyspace",
        "+@scripting", "+@pubsub", "+time",
    ]  # fmt: skip
    with running(binary, folder, 0, *options, answers=False) as process:
        wait_until(lambda: is_open(port) or process.poll() is not None)
        if process.poll() is not None and "tls" in (folder / "log-0").read_text().lower():
            pytest.skip("this server was built without TLS")
        yield f"rediss://flambeau:secret@{LOCAL}:{port}?ssl_ca_certs={certificate}"


def write_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of our own for this machine, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "flambeau test")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(
            x509.SubjectAlternativeName([x509.IPAddress(IPv4Address(LOCAL))]), critical=False
        )
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    certificate_file, key_file = folder / "certificate.pem", folder / "key.pem"
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    key_file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return certificate_file, key_file


@contextlib.contextmanager
def running(
    binary: str,
    folder: Path,
    port: int,
    *options: str,
    config: Path | None = None,
    answers: bool = True,
) -> Iterator["subprocess.Popen[bytes]"]:
    """A server until the block ends; it answers by then, unless it only speaks TLS."""
    command = [binary, *([str(config)] if config else []), "--port", str(port), "--bind", LOCAL]
    command += ["--dir", str(folder), *options]
    log = folder / f"log-{port}"
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
    try:
        if answers:
            wait_until(lambda: is_open(port) or process.poll() is not None)
            assert process.poll() is None, log.read_text()
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    """A port nobody listens on."""
    with socket.create_server((LOCAL, 0)) as listening:
        return int(listening.getsockname()[1])


def is_open(port: int) -> bool:
    """Whether somebody listens."""
    try:
        socket.create_connection((LOCAL, port), 1).close()
    except OSError:
        return False
    return True


def wait_until(wanted: Callable[[], bool]) -> None:
    """Asks again: nothing tells when a server is ready."""
    give_up_at = time.monotonic() + START_TIMEOUT_S
    while True:
        with contextlib.suppress(RedisError):
            if wanted():
                return
        assert time.monotonic() < give_up_at
        time.sleep(0.02)
