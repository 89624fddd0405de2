"""Every file of a store, in a folder and in a bucket, may be anything: its reader names it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from model_store.certificates import certificates
from model_store.errors import StoreError
from model_store.golden import read_golden
from model_store.payload_samples import read_samples
from model_store.semver import SemverRange, parse_range
from model_store.semver_index import fitting
from model_store.store import ModelStore
from tests.fixtures.store_versions import publish_in

SAMPLES = "digits/samples/20261122T145501.123456Z-1f2e3d4c.jsonl"
CONTENTS = {
    "nested": b"[" * 200_000 + b"\n",
    "nested objects": b'{"a":' * 100_000 + b"\n",
    "many": b"[" + b"0," * 400_000 + b"0]\n",
    "faults": b'{"' + b'":1,"'.join(b"%d" % number for number in range(20_000)) + b'":1}\n',
    "large": b" " * (2**20 + 1) + b"\n",
    "digits": b"9" * 100_000 + b"\n",
    "no text": bytes(range(256)) + b"\n",
    "null": b"null\n",
}


def newest(text: str) -> SemverRange:
    found = parse_range(text)
    assert found is not None
    return found


READERS: dict[str, tuple[str, Callable[[ModelStore], object]]] = {
    "manifest": ("digits/1/manifest.json", lambda store: store.manifest("digits", 1)),
    "pointers": ("digits/pointers/00000001.json", lambda store: store.pointers("digits")),
    "history": ("digits/pointers/00000001.json", lambda store: store.history("digits")),
    "semver": (
        "digits/semver/1.0.0.json",
        lambda store: fitting(store, "digits", newest("^1.0"), "^1.0"),
    ),
    "golden": (
        "digits/1/golden.safetensors",
        lambda store: read_golden(store, store.manifest("digits", 1)),
    ),
    "artifact": ("digits/1/model.onnx", lambda store: read_entry(store, "model.onnx")),
    "report": ("digits/1/report.json", lambda store: read_entry(store, "report.json")),
    "certificate": (
        "digits/certificates/1/0123456789abcdef.json",
        lambda store: certificates(store, store.manifest("digits", 1)),
    ),
    "samples": (SAMPLES, lambda store: list(read_samples(store.storage, "digits"))),
    "signature": ("digits/1/model.sig", lambda store: signer(store)),
}


def read_entry(store: ModelStore, file: str) -> str:
    manifest = store.manifest("digits", 1)
    entry = manifest.file(file)
    assert entry is not None
    return store.read_text(manifest, entry)


def signer(store: ModelStore) -> object:
    return store.signer(store.manifest("digits", 1), [])


@pytest.mark.parametrize("data", CONTENTS.values(), ids=CONTENTS)
@pytest.mark.parametrize("reader", READERS)
def test_a_file_that_is_anything_is_one_error_that_names_it(
    store: ModelStore, folder: Path, reader: str, data: bytes
) -> None:
    publish_in(store, folder)
    store.promote("digits", 1)
    path, read = READERS[reader]
    store.storage.replace(path, data)
    with pytest.raises(StoreError) as refused:
        read(store)
    assert path.rpartition("/")[2] in str(refused.value)
    assert len(str(refused.value)) < 5_000
