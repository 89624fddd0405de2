"""Evidence files: exact sums of all processes, whatever other files there are."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_store.errors import StorageError
from model_store.storage.storage import Storage
from services.rollouts import evidence_files
from services.rollouts.evidence.errors import InvalidEvidenceError
from services.rollouts.evidence.evidence import MAX_NAMES, MAX_SHARES, Evidence, merged
from services.rollouts.evidence_files import MAX_FILE_BYTES, EvidenceFiles

ID = "0123456789abcdef"


def counted(requests: int, share: float = 0.1, peak: float = 0.0) -> Evidence:
    evidence = Evidence(peaks={"errors": peak})
    for _ in range(requests):
        evidence.count_request(share, "candidate", output=3)
    return evidence


@pytest.fixture
def files(tmp_path: Path) -> EvidenceFiles:
    return EvidenceFiles(Storage(str(tmp_path)), "digits", ID)


def path_of(tmp_path: Path, name: str) -> Path:
    path = tmp_path / "digits" / "rollouts" / ID / "evidence" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def test_no_files_are_no_evidence(files: EvidenceFiles) -> None:
    found = files.read()
    assert (found.total, found.processes, found.left_out) == (Evidence(), 0, {})


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=8))
def test_sum_is_that_of_the_largest_counts_of_each_process(
    tmp_path_factory: pytest.TempPathFactory, writes: list[tuple[str, int]]
) -> None:
    files = EvidenceFiles(Storage(str(tmp_path_factory.mktemp("store"))), "digits", ID)
    largest: dict[str, int] = {}
    for process, requests in writes:
        largest[process] = max(requests, largest.get(process, 0))
        files.write(process, counted(requests, peak=requests))
    found = files.read()
    assert found.total == merged(counted(most, peak=most) for most in largest.values())
    assert found.processes == len(largest)


def test_counts_of_a_restarted_process_go_on(files: EvidenceFiles) -> None:
    files.write("server-host-1-aaaaaaaa", counted(7, peak=2.5))
    files.write("server-host-1-bbbbbbbb", counted(2, peak=1.0))
    total = files.read().total
    assert total.counts["share/100000/candidate/requests"] == 9
    assert total.peaks == {"errors": 2.5}


def test_counts_that_began_anew_replace_no_larger_ones(files: EvidenceFiles) -> None:
    files.write("gateway-1", counted(7, peak=2.5))
    for peak, highest in ((1.0, 2.5), (3.0, 3.0)):
        files.write("gateway-1", counted(2, peak=peak))
        total = files.read().total
        assert total.counts["share/100000/candidate/requests"] == 7
        assert total.peaks == {"errors": highest}


def test_damaged_file_of_a_process_is_replaced(files: EvidenceFiles, tmp_path: Path) -> None:
    path_of(tmp_path, "a.json").write_bytes(b"{")
    files.write("a", counted(2))
    assert files.read().total == counted(2)


DAMAGED = {
    "cut.json": b'{"counts": {"share/1000',
    "text.json": b"\xff\xfe no JSON",
    "list.json": b"[1, 2]",
    "deep.json": b'{"counts": ' + b"[" * 5_000 + b"]" * 5_000 + b', "peaks": {}}',
    "name.json": b'{"counts": {"../../etc/passwd": 1}, "peaks": {}}',
    "negative.json": b'{"counts": {"pairs/0": -1}, "peaks": {}}',
    "fraction.json": b'{"counts": {"pairs/0": 0.5}, "peaks": {}}',
    "endless.json": b'{"counts": {}, "peaks": {"errors": Infinity}}',
    "shares.json": json.dumps(
        {"counts": {f"share/{n + 1}/live/requests": 1 for n in range(MAX_SHARES)}, "peaks": {}}
    ).encode(),
    "values.json": b'{"counts": {' + b"," * (MAX_NAMES + 100) + b'}, "peaks": {}}',
    "large.json": b" " * (MAX_FILE_BYTES + 1),
    "other.txt": b"",
    ".hidden.json": b"{}",
}


@pytest.mark.parametrize("name", DAMAGED)
def test_damaged_file_is_reported_and_stops_no_other(
    files: EvidenceFiles, tmp_path: Path, name: str
) -> None:
    files.write("a-first", counted(3))
    files.write("z-last", counted(4))
    path_of(tmp_path, name).write_bytes(DAMAGED[name])
    found = files.read()
    assert found.processes == 2
    assert found.total.counts["share/100000/candidate/requests"] == 7
    [(path, reason)] = found.left_out.items()
    assert path.endswith(name)
    assert reason


def test_folder_in_place_of_a_file_stops_no_other(files: EvidenceFiles, tmp_path: Path) -> None:
    files.write("a", counted(3))
    path_of(tmp_path, "b.json").mkdir()
    path_of(tmp_path, "b.json/c.json").write_text("{}")
    assert files.read().processes == 1


def test_numbers_and_bytes_of_files_are_limited(
    files: EvidenceFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(4):
        files.write(f"process-{number}", counted(1))
    monkeypatch.setattr(evidence_files, "MAX_FILES", 3)
    found = files.read()
    assert found.processes == 3
    assert "3 files of evidence are read at most" in str(found.left_out)
    monkeypatch.setattr(evidence_files, "MAX_TOTAL_BYTES", 300)
    found = files.read()
    assert 1 <= found.processes < 3
    assert "300 are read" in str(found.left_out)


def test_process_with_a_name_that_is_no_file_is_refused(files: EvidenceFiles) -> None:
    for name in ("", "../x", "a/b", ".a", "a" * 300):
        with pytest.raises(InvalidEvidenceError, match="names no process"):
            files.write(name, counted(1))


def test_store_that_is_gone_is_an_error(tmp_path: Path) -> None:
    storage = Storage(str(tmp_path / "store"))
    (tmp_path / "store").rmdir()
    (tmp_path / "store").write_text("a file")
    with pytest.raises(StorageError):
        EvidenceFiles(storage, "digits", ID).write("a", counted(1))
