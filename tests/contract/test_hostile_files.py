"""Every store file, in a folder and in a bucket, may have any content: its reader names the file.

This includes the files beside a store: choices, artifacts' requirements, and recipes.
"""

import contextlib
import os
import random
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from model_store.certificates.certificate import ArtifactResult, Certificate, Environment
from model_store.certificates.certificates import certificates, manifest_sha256
from model_store.errors import StoreError
from model_store.golden import read_golden
from model_store.samples.payload_sample import PayloadSample, with_values
from model_store.samples.payload_samples import read_samples
from model_store.semver.semver import SemverRange, parse_range
from model_store.semver.semver_index import fitting
from model_store.store import ModelStore
from services.inference.loading.choice_memory import Choice, ChoiceMemory
from services.inference.loading.needs_memory import MemoryNeed, NeedsMemory
from tests.fixtures.hostile_files import change, change_value, seal
from tests.fixtures.signing import key_in, signer_in
from tests.fixtures.store_versions import draft_in, publish_in
from training.errors import RecipeError
from training.recipe.file import load_recipe

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


FUZZ_ROUNDS = int(os.environ.get("FLAMBEAU_FUZZ_ROUNDS", "60"))
KEY = "0" * 64
NOW = datetime(2026, 11, 22, 8, tzinfo=UTC)


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


@pytest.mark.parametrize("reader", READERS)
def test_a_file_changed_at_random_is_read_or_is_one_error(tmp_path: Path, reader: str) -> None:
    """Bits, parts and values of a whole file; where a digest would tell, it is made to agree."""
    store = whole_store(tmp_path)
    path, read = READERS[reader]
    folder = tmp_path / "store/digits/1"
    manifest, whole = (folder / "manifest.json").read_bytes(), store.storage.get(path, 2**20)
    for seed in range(FUZZ_ROUNDS):
        chance = random.Random(f"{reader} {seed}")
        data = whole
        for _ in range(chance.choice([1, 1, 2, 5])):
            data = chance.choice([change, change_value])(data, chance)
        (tmp_path / "store" / path).write_bytes(data)
        if reader in ("golden", "artifact", "report"):
            seal(folder, path.rpartition("/")[2])
        with contextlib.suppress(StoreError):
            read(store)
        (folder / "manifest.json").write_bytes(manifest)


def whole_store(tmp_path: Path) -> ModelStore:
    """Returns a store with a file of every kind, each as flambeau writes it."""
    store = ModelStore(str(tmp_path / "store"))
    draft = draft_in(tmp_path / "draft")
    key_in(tmp_path / "ada", "ada")
    manifest = store.publish(draft, tmp_path / "draft", sign=signer_in(tmp_path / "ada"))
    store.promote("digits", 1, why="first")
    machine = Environment(machine="x86_64 Linux", cpu_model="EPYC", cpu_features=("avx2",),
                          device="cpu", threads=1, python="3.11.7", libraries={})  # fmt: skip
    result = ArtifactResult(
        artifact="onnx", outcome="passed", tolerance=manifest.artifacts[0].verification.tolerance
    )
    certificate = Certificate(
        model="digits", version=1, manifest_sha256=manifest_sha256(store, manifest),
        flambeau="0.1.0", made_at=NOW, environment=machine, artifacts=(result,),
    )  # fmt: skip
    path, _ = READERS["certificate"]
    store.storage.replace(path, certificate.to_json())
    tensor = with_values("x", "FP32", np.zeros((2, 3), np.float32))
    sample = PayloadSample(time=NOW, request_id="r", model="digits", version=1, protocol="rest",
                           status="200", duration_ms=1.0, inputs=(tensor,))  # fmt: skip
    store.storage.replace(SAMPLES, sample.to_line() * 3)
    return store


@pytest.mark.parametrize("data", CONTENTS.values(), ids=CONTENTS)
def test_files_that_servers_remember_in_count_as_empty(tmp_path: Path, data: bytes) -> None:
    for open_file in (ChoiceMemory, NeedsMemory):
        (tmp_path / "remembered").write_bytes(data)
        assert open_file(str(tmp_path / "remembered")).recall(KEY) is None


def test_files_that_servers_remember_in_may_be_changed_at_random(tmp_path: Path) -> None:
    choices, needs = str(tmp_path / "choices"), str(tmp_path / "needs")
    ChoiceMemory(choices).remember(KEY, Choice(artifact="onnx", row_ms={"onnx": 0.5}))
    NeedsMemory(needs).remember(KEY, MemoryNeed(peak_bytes=5))
    for path, open_file in ((choices, ChoiceMemory), (needs, NeedsMemory)):
        whole = Path(path).read_bytes()
        for seed in range(FUZZ_ROUNDS):
            chance = random.Random(seed)
            Path(path).write_bytes(chance.choice([change, change_value])(whole, chance))
            open_file(path).recall(KEY)


def test_a_recipe_changed_at_random_is_read_or_is_one_error(tmp_path: Path) -> None:
    whole = Path("training/recipes/digits_cnn.yaml").read_bytes()
    for seed in range(FUZZ_ROUNDS):
        (tmp_path / "recipe.yaml").write_bytes(change(whole, random.Random(seed)))
        with contextlib.suppress(RecipeError):
            load_recipe(str(tmp_path / "recipe.yaml"))


@pytest.mark.parametrize("data", CONTENTS.values(), ids=CONTENTS)
def test_a_recipe_that_is_anything_is_one_error(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "recipe.yaml").write_bytes(data)
    with pytest.raises(RecipeError, match=r"recipe\.yaml"):
        load_recipe(str(tmp_path / "recipe.yaml"))
