"""Failures of buckets: the words say what to check."""

import pytest

from model_store.errors import StorageError
from model_store.storage.storage import Storage


def test_an_endpoint_without_tls_names_the_setting_that_allows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("AWS_ALLOW_HTTP", raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    with pytest.raises(StorageError, match="AWS_ALLOW_HTTP=true"):
        Storage("s3://models").list()
