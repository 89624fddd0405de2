"""Certificates beside a version, in a folder: one an environment, none for another version."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from model_store.certificates.certificate import (
    ArtifactResult,
    Certificate,
    Environment,
    parse_certificate,
)
from model_store.certificates.certificates import certificates, manifest_sha256, record
from model_store.errors import CertificateError
from model_store.manifest import Manifest
from model_store.store import ModelStore
from model_store.tolerance import Tolerance
from tests.fixtures.store_versions import draft_in

NOW = datetime(2026, 11, 22, 8, tzinfo=UTC)
ENVIRONMENT = Environment(
    machine="x86_64 Linux",
    cpu_model="EPYC",
    cpu_features=("avx2",),
    device="cpu",
    threads=1,
    python="3.11.7",
    libraries={"onnxruntime": "1.24.0"},
)
TOLERANCE = Tolerance(max_abs_difference=1e-4, min_agreement=1.0)
PASSED = ArtifactResult(artifact="onnx", outcome="passed", tolerance=TOLERANCE)


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(str(tmp_path / "store"))


@pytest.fixture
def manifest(store: ModelStore, tmp_path: Path) -> Manifest:
    return store.publish(draft_in(tmp_path / "draft"), tmp_path / "draft")


def certificate(store: ModelStore, manifest: Manifest, **changes: Any) -> Certificate:
    fields: dict[str, Any] = {
        "model": manifest.model,
        "version": manifest.version,
        "manifest_sha256": manifest_sha256(store, manifest),
        "flambeau": "0.1.0",
        "made_at": NOW,
        "environment": ENVIRONMENT,
        "artifacts": (PASSED,),
    }
    return Certificate(**{**fields, **changes})


def test_the_same_environment_has_one_and_it_is_the_newest(
    store: ModelStore, manifest: Manifest
) -> None:
    assert certificates(store, manifest) == []
    path = record(store, manifest, certificate(store, manifest))
    later = certificate(store, manifest, made_at=NOW + timedelta(days=1))
    assert record(store, manifest, later) == path
    assert certificates(store, manifest) == [later]


@pytest.mark.parametrize(
    "change",
    [
        {"libraries": {"onnxruntime": "1.25.0"}},
        {"driver": "550.54"},
        {"cpu_model": "Xeon"},
        {"cpu_features": ()},
        {"device": "cuda"},
        {"threads": 2},
    ],
)
def test_anything_that_changes_results_is_another_environment(
    store: ModelStore, manifest: Manifest, change: dict[str, Any]
) -> None:
    old = certificate(store, manifest)
    new = certificate(
        store,
        manifest,
        environment=ENVIRONMENT.model_copy(update=change),
        made_at=NOW + timedelta(days=1),
    )
    record(store, manifest, old)
    record(store, manifest, new)
    assert certificates(store, manifest) == [new, old]


def test_the_version_itself_stays_as_it_is(store: ModelStore, manifest: Manifest) -> None:
    before = store.storage.list("digits/1/")
    record(store, manifest, certificate(store, manifest))
    assert store.storage.list("digits/1/") == before
    assert store.versions("digits") == [1]
    assert store.models() == ["digits"]


def test_one_of_another_manifest_is_refused(store: ModelStore, manifest: Manifest) -> None:
    record(store, manifest, certificate(store, manifest, manifest_sha256="0" * 64))
    with pytest.raises(CertificateError, match=r"of a manifest with sha256 000000000000…"):
        certificates(store, manifest)


def test_what_is_written_is_what_is_read(store: ModelStore, manifest: Manifest) -> None:
    failed = PASSED.model_copy(update={"outcome": "failed", "reason": "far", "latency_ms": {1: 2}})
    wrote = certificate(store, manifest, artifacts=(PASSED, failed))
    assert parse_certificate(wrote.to_json(), "here") == wrote


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"schema_version": 2}, "here has schema_version 2, written by a newer flambeau"),
        ({"model": 3}, "'model' is 3"),
        ({"hostname": "secret"}, "unknown key 'hostname'"),
    ],
)
def test_documents_that_break_the_rules(
    store: ModelStore, manifest: Manifest, change: dict[str, Any], reason: str
) -> None:
    document = json.loads(certificate(store, manifest).to_json()) | change
    with pytest.raises(CertificateError) as refused:
        parse_certificate(json.dumps(document).encode(), "here")
    assert reason in str(refused.value)


def test_a_document_that_is_no_json() -> None:
    with pytest.raises(CertificateError, match="here is not JSON"):
        parse_certificate(b"certificate", "here")


@pytest.mark.parametrize(
    ("outcomes", "holds"),
    [
        (["passed"], True),
        (["passed", "not run"], True),
        (["not run"], False),
        (["passed", "failed"], False),
    ],
)
def test_it_holds_if_one_passed_and_none_failed(
    store: ModelStore, manifest: Manifest, outcomes: list[str], holds: bool
) -> None:
    results = tuple(PASSED.model_copy(update={"outcome": outcome}) for outcome in outcomes)
    assert certificate(store, manifest, artifacts=results).holds is holds
