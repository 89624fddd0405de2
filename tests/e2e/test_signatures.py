"""A server whose store is a bucket opens code only if a trusted key signed it."""

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from flambeau.server_process import server_process
from model_store.store import ModelStore
from tests.fixtures import misbehaving_models
from tests.fixtures.s3_server import s3_server
from tests.fixtures.servers import running_server
from tests.fixtures.signing import key_in, signer_in

CODE = misbehaving_models.well_behaved()
OTHER_CODE = misbehaving_models.raising_with_a_traceback()
"""Code that no other model has: the server keeps verified files of a bucket by their sha256."""
WIDTH = misbehaving_models.WIDTH
BODY = json.dumps(
    {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, WIDTH], "data": [3] * WIDTH}]}
).encode()


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns two folders: one with Ada's key, which servers may trust, and one with Eve's."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("ada", "eve"):
        key_in(folder / name, name)
    return folder


@pytest.fixture(scope="module")
def bucket(keys: Path) -> Iterator[str]:
    """Returns a store with a model for each signature state of a version."""
    with s3_server() as bucket_url:
        url = f"{bucket_url}/signed"
        ada, eve = signer_in(keys / "ada"), signer_in(keys / "eve")
        misbehaving_models.publish(url, "good", CODE, ada)
        misbehaving_models.publish(url, "unsigned", CODE)
        misbehaving_models.publish(url, "foreign", CODE, eve)
        misbehaving_models.publish(url, "stripped", CODE, ada)
        flipped = misbehaving_models.publish(url, "flipped", OTHER_CODE, ada)
        tampered = misbehaving_models.publish(url, "tampered", CODE, ada)
        storage = ModelStore(url).storage
        storage.delete("stripped/1/model.sig")
        file = flipped.artifacts[0].file.file
        storage.replace(f"flipped/1/{file}", OTHER_CODE[:-1] + bytes([OTHER_CODE[-1] ^ 1]))
        storage.replace("tampered/1/manifest.json", tampered.to_json().replace(b"0.986", b"0.987"))
        yield url


def answer(address: str, model: str) -> tuple[int, str]:
    """Returns status and body of one inference."""
    url = f"http://{address}/v2/models/{model}/infer"
    try:
        with urllib.request.urlopen(url, BODY) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


REASONS = {
    "unsigned": "version 1 of 'unsigned' in s3://models/signed is not signed",
    "foreign": "is not trusted here (trusted: ada ",
    "stripped": "its model.sig was removed since",
    "flipped": "sha256 differs from the manifest",
    "tampered": "is not what the key 'ada' signed: manifest.json has sha256",
}


def test_a_bucket_serves_signed_code_and_nothing_else(bucket: str, keys: Path) -> None:
    trusted = f"--set=trusted_keys={keys / 'ada/trusted'}"
    with server_process(["--store", bucket, trusted]) as server:
        status, body = answer(server.http, "good")
        assert status == 200, body
        assert json.loads(body)["outputs"][0]["data"] == [6] * WIDTH
        for model, reason in REASONS.items():
            status, body = answer(server.http, model)
            assert status == 503
            assert reason in body


def test_a_folder_may_be_as_strict(tmp_path: Path, keys: Path) -> None:
    misbehaving_models.publish(str(tmp_path), "good", CODE, signer_in(keys / "ada"))
    misbehaving_models.publish(str(tmp_path), "unsigned", CODE)
    misbehaving_models.publish(str(tmp_path), "data", misbehaving_models.raising())
    settings = {"trusted_keys": str(keys / "ada/trusted"), "signature_needed_for": "code"}
    with running_server(tmp_path, **settings) as server:
        assert answer(server.http, "good")[0] == answer(server.http, "data")[0] == 200
        status, body = answer(server.http, "unsigned")
        assert status == 503
        assert "is not signed" in body
        refused = server.wait_for_log(message="artifact refused", model="unsigned")
        assert "signature_needed_for=code" in refused["reason"]
