"""The manifest: stable bytes, and rejection of invalid content."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from flambeau.protocol.strict import explain
from model_store.errors import BadNameError, ManifestError, ManifestFromFutureError
from model_store.manifest import Draft, Golden, Manifest, check_name, parse_manifest
from model_store.slo import Slo
from tests.fixtures.store_versions import artifact_in, draft_in, entry_in

GOLDEN = Path(__file__).with_name("golden_manifest.json").read_bytes()
WHERE = "digits/3/manifest.json"


def sealed(folder: Path) -> Manifest:
    golden = Golden(file=entry_in(folder, "golden.safetensors", b"golden rows"), rows=8)
    return draft_in(folder, golden=golden).seal(3, datetime(2026, 11, 21, 5, tzinfo=UTC))


def refusal(data: bytes) -> str:
    with pytest.raises(ManifestError) as refused:
        parse_manifest(data, WHERE)
    assert str(refused.value).startswith(WHERE)
    return str(refused.value)


def edited(path: str, value: Any) -> bytes:
    """The golden manifest with one value replaced; parts of the path are keys or positions."""
    *parents, last = path.split("/")
    document = json.loads(GOLDEN)
    place = document
    for part in parents:
        place = place[int(part) if part.isdecimal() else part]
    place[last] = value
    return json.dumps(document).encode()


def test_the_file_is_as_it_always_was(tmp_path: Path) -> None:
    assert sealed(tmp_path).to_json().decode() == GOLDEN.decode()


def test_what_is_written_is_what_is_read(tmp_path: Path) -> None:
    assert parse_manifest(GOLDEN, WHERE) == sealed(tmp_path)


def test_what_was_written_before_artifacts_said_what_made_them_is_read(tmp_path: Path) -> None:
    document = json.loads(GOLDEN)
    for artifact in document["artifacts"]:
        del artifact["made_with"], artifact["weights"], artifact["peak_memory_bytes"]
    assert parse_manifest(json.dumps(document).encode(), WHERE) == sealed(tmp_path)


def test_what_judges_an_artifact_is_written_and_read_again() -> None:
    judged_by = {"name": "rmse", "value": 54.6, "interval": [47.4, 61.0], "better": "lower"}
    data = edited("artifacts/0/verification/judged_by", judged_by)
    found = parse_manifest(data, WHERE).to_json()
    assert json.loads(found) == json.loads(data)
    wrong = judged_by | {"better": "less"}
    assert "judged_by.better" in refusal(edited("artifacts/0/verification/judged_by", wrong))


def test_lineage_says_where_the_rows_came_from() -> None:
    file = {"path": "data/a.csv", "sha256": "0" * 64, "size_bytes": 7}
    folder = {**file, "path": "data/photos", "files": 3}
    origin = {"source": "csv", "files": [file, folder]}
    read = parse_manifest(edited("lineage/data", origin), WHERE)
    assert read.lineage.data is not None
    assert [noted.files for noted in read.lineage.data.files] == [None, 3]
    assert json.loads(read.to_json())["lineage"]["data"] == origin
    message = refusal(edited("lineage/data", {"source": "csv", "files": [{**file, "pth": 1}]}))
    assert "unknown key 'pth'" in message


def test_what_callers_may_count_on_is_kept_and_left_out_where_nothing_is_said(
    tmp_path: Path,
) -> None:
    assert b"slo" not in GOLDEN
    promised = sealed(tmp_path).model_copy(update={"slo": Slo(availability=0.99)})
    assert parse_manifest(promised.to_json(), WHERE).slo == Slo(availability=0.99)


def test_a_promise_with_a_typo_is_refused_by_name() -> None:
    assert "did you mean 'availability'" in refusal(edited("slo", {"availabilty": 0.99}))
    assert "300 is not measured; take 250" in refusal(edited("slo", {"latency_ms": 300}))


def test_a_manifest_from_the_future_says_so_whatever_else_it_holds() -> None:
    data = json.dumps({"schema_version": 2, "novelty": True}).encode()
    with pytest.raises(ManifestFromFutureError) as refused:
        parse_manifest(data, WHERE)
    assert str(refused.value) == (
        f"{WHERE} has schema_version 2, written by a newer flambeau; "
        "this one reads up to 1, so upgrade it"
    )


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", GOLDEN[:-20]])
def test_bytes_that_are_not_json(data: bytes) -> None:
    assert "is not JSON" in refusal(data)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("artefacts", [], "unknown key 'artefacts' (did you mean 'artifacts'?)"),
        ("golden/row", 8, "unknown key 'row' in 'golden' (did you mean 'rows'?)"),
        ("artifacts/0/presision", "fp32", "in 'artifacts.0' (did you mean 'precision'?)"),
        ("artifacts", [], "'artifacts' is []"),
        ("artifacts/0/kind", "pickle", "'artifacts.0.kind' is 'pickle'"),
        ("artifacts/0/name", "ONNX", "'artifacts.0.name' is 'ONNX'"),
        ("artifacts/0/file/sha256", "0" * 63, "'artifacts.0.file.sha256' is"),
        ("artifacts/0/file/sha256", "F" * 64, "'artifacts.0.file.sha256' is"),
        ("artifacts/0/file/size_bytes", -1, "'artifacts.0.file.size_bytes' is -1"),
        ("artifacts/0/verification/agreement", 1.5, "'artifacts.0.verification.agreement' is 1.5"),
        ("lineage/metrics", {"accuracy": float("nan")}, "'lineage.metrics.accuracy' is nan"),
        ("version", 0, "'version' is 0"),
        ("schema_version", 0, "'schema_version' is 0"),
        ("model", "../digits", "'model' is '../digits'"),
        ("signature/max_batch_size", 0, "'signature.max_batch_size' is 0"),
    ],
)
def test_a_manifest_that_breaks_its_rules_names_key_and_value(
    path: str, value: Any, message: str
) -> None:
    assert message in refusal(edited(path, value))


@pytest.mark.parametrize("key", ["signature", "golden", "lineage", "version", "created_at"])
def test_a_missing_key_is_named(key: str) -> None:
    document = json.loads(GOLDEN)
    del document[key]
    assert f"'{key}' is missing" in refusal(json.dumps(document).encode())


@pytest.mark.parametrize("document", [[], "text", 7, None])
def test_json_that_is_no_object(document: Any) -> None:
    assert "(whole)" in refusal(json.dumps(document).encode())


BAD_NAMES = ["", ".", "..", "../x", "a/b", "a\\b", "-x", ".x", "a b", "a\n", "é", "x" * 129, "a\0b"]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_names_that_could_leave_their_folder_are_refused(name: str) -> None:
    with pytest.raises(BadNameError, match=r"model name .* is not allowed"):
        check_name(name)
    assert "file name" in refusal(edited("artifacts/0/file/file", name))
    assert "model name" in refusal(edited("model", name))


@pytest.mark.parametrize("name", ["a", "7", "digits-cnn_v1.2", "x" * 128])
def test_plain_names_are_allowed(name: str) -> None:
    assert check_name(name) == name


@pytest.mark.parametrize("name", ["manifest.json", "claim.json", "model.sig"])
def test_the_files_of_the_store_itself_cannot_be_replaced(name: str) -> None:
    assert "the store writes this file itself" in refusal(edited("golden/file/file", name))


def draft_refusal(folder: Path, **changes: Any) -> str:
    with pytest.raises(ValidationError) as refused:
        draft_in(folder, **changes)
    return explain(refused.value, Draft)


def test_two_artifacts_of_one_name(tmp_path: Path) -> None:
    one = artifact_in(tmp_path)
    two = artifact_in(tmp_path, file=entry_in(tmp_path, "other.onnx", b""))
    message = draft_refusal(tmp_path, artifacts=(one, two))
    assert "an artifact name occurs twice in ['onnx', 'onnx']" in message


def test_two_files_of_one_name(tmp_path: Path) -> None:
    again = entry_in(tmp_path, "golden.safetensors", b"other bytes")
    assert "a file name occurs twice in" in draft_refusal(tmp_path, files=(again,))


def test_files_are_found_by_name(tmp_path: Path) -> None:
    manifest = sealed(tmp_path)
    names = [entry.file for entry in manifest.all_files()]
    assert names == ["model.onnx", "golden.safetensors", "report.json"]
    assert manifest.file("golden.safetensors") == manifest.golden.file
    assert manifest.file("manifest.json") is None


def test_artifacts_are_sorted_by_milliseconds_a_row(tmp_path: Path) -> None:
    latencies: dict[str, dict[int, float]] = {
        "unmeasured": {},
        "good-at-one": {1: 0.1, 32: 3.1},
        "good-at-many": {1: 1.0, 32: 1.6},
        "slow": {1: 2.0},
    }
    artifacts = tuple(artifact_in(tmp_path, name=n, latency_ms=ms) for n, ms in latencies.items())
    draft = draft_in(tmp_path, artifacts=artifacts)
    names = [artifact.name for artifact in draft.artifacts_by_speed()]
    assert names == ["good-at-many", "good-at-one", "slow", "unmeasured"]
