"""Missing credentials of a bucket at Google or Azure are reported before the first request."""

import os
import socket
from pathlib import Path

import pytest

from model_store.errors import StorageError
from model_store.storage import azure_credentials
from model_store.storage.azure_credentials import missing_azure_credentials
from model_store.storage.gcs_credentials import DEFAULT_FILE, missing_gcs_credentials
from model_store.storage.storage import Storage


@pytest.fixture(autouse=True)
def _no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without any, in a home folder without files, and where no metadata service listens."""
    for name in os.environ:
        if name.startswith(("AZURE_", "GOOGLE_", "GCE_", "SERVICE_ACCOUNT", "IDENTITY_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nowhere = f"127.0.0.1:{taken.getsockname()[1]}"
    monkeypatch.setenv("GCE_METADATA_HOST", nowhere)
    monkeypatch.setattr(azure_credentials, "METADATA_URL", f"http://{nowhere}")


def test_a_store_without_credentials_names_those_of_its_provider(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(StorageError, match="no Google credentials: set GOOGLE_APPLICATION_CRED"):
        Storage("gs://bucket/models")
    with pytest.raises(StorageError, match="no storage account is named: set AZURE_STORAGE_ACC"):
        Storage("az://container/models")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "ours")
    with pytest.raises(StorageError, match="no Azure credentials: set AZURE_STORAGE_ACCOUNT_KEY"):
        Storage("az://container/models")


@pytest.mark.parametrize("url", ["gs://", "az:///prefix", "ftp://host/folder", "abfs://c@a/p"])
def test_a_url_that_is_no_bucket_is_refused_with_those_that_are(url: str) -> None:
    with pytest.raises(StorageError, match="s3://bucket/prefix, gs://bucket/prefix or az://"):
        Storage(url)


@pytest.mark.parametrize(
    "name", ["GOOGLE_APPLICATION_CREDENTIALS", "GOOGLE_SERVICE_ACCOUNT", "GOOGLE_SKIP_SIGNATURE"]
)
def test_every_source_of_google_credentials_is_taken(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert missing_gcs_credentials() != ""
    monkeypatch.setenv(name, "true")
    assert missing_gcs_credentials() == ""


def test_the_default_file_of_gcloud_is_a_source(tmp_path: Path) -> None:
    (tmp_path / DEFAULT_FILE).parent.mkdir(parents=True)
    (tmp_path / DEFAULT_FILE).write_text("{}")
    assert missing_gcs_credentials() == ""


@pytest.mark.parametrize(
    "name",
    [
        "AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN", "AZURE_CLIENT_SECRET",
        "AZURE_FEDERATED_TOKEN_FILE", "IDENTITY_ENDPOINT", "AZURE_USE_AZURE_CLI",
    ],
)  # fmt: skip
def test_every_source_of_azure_credentials_is_taken(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "ours")
    assert missing_azure_credentials() != ""
    monkeypatch.setenv(name, "true")
    assert missing_azure_credentials() == ""
