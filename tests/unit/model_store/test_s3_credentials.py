"""Missing credentials of a bucket are reported before the first request to it."""

import socket
import threading
from collections.abc import Iterator

import pytest

from model_store.errors import StorageError
from model_store.storage.s3_credentials import missing_credentials
from model_store.storage.storage import Storage

NAMES = (
    "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SKIP_SIGNATURE", "WEB_IDENTITY_TOKEN_FILE", "ROLE_ARN",
    "CONTAINER_CREDENTIALS_RELATIVE_URI", "CONTAINER_CREDENTIALS_FULL_URI", "METADATA_ENDPOINT",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any, and with a metadata service where nothing listens."""
    for name in NAMES:
        monkeypatch.delenv(f"AWS_{name}", raising=False)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{port}")


@pytest.fixture(params=[b"HTTP/1.1 200 OK", b"HTTP/1.1 403 Forbidden"])
def metadata_answer(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> Iterator[bytes]:
    """Runs a service at the metadata address that gives this response, once."""
    listener = socket.create_server(("127.0.0.1", 0))

    def answer() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(request.param + b"\r\ncontent-length: 0\r\n\r\n")

    with listener:
        monkeypatch.setenv("AWS_METADATA_ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        thread = threading.Thread(target=answer)
        thread.start()
        yield request.param
        thread.join()


def test_a_store_without_credentials_says_so_and_not_free_space() -> None:
    with pytest.raises(StorageError, match="there are no AWS credentials: set AWS_ACCESS_KEY_ID"):
        Storage("s3://bucket/models")


def test_half_a_pair_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIA")
    assert "without AWS_SECRET_ACCESS_KEY" in missing_credentials()
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    assert "without AWS_ACCESS_KEY_ID" in missing_credentials()


@pytest.mark.parametrize(
    "given",
    [
        {"AWS_ACCESS_KEY_ID": "AKIA", "AWS_SECRET_ACCESS_KEY": "secret"},
        {"AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/token", "AWS_ROLE_ARN": "arn:aws:iam::1:role/x"},
        {"AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://169.254.170.23/v1/credentials"},
        {"AWS_SKIP_SIGNATURE": "true"},
    ],
)
def test_every_source_of_credentials_is_taken(
    given: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert missing_credentials() == ""


def test_a_web_identity_without_a_role_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """obstore would not use it, and look for another source of credentials."""
    monkeypatch.setenv("AWS_WEB_IDENTITY_TOKEN_FILE", "/var/run/token")
    assert "without AWS_ROLE_ARN" in missing_credentials()


def test_the_metadata_service_counts_only_where_it_gives_a_token(metadata_answer: bytes) -> None:
    assert bool(missing_credentials()) == (b" 200 " not in metadata_answer)
