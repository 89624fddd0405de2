"""Digests of files that grow: those of the whole file, however it was appended to."""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from model_store.uploads.running_digests import MAX_FILES, RunningDigests


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(parts=st.lists(st.tuples(st.binary(max_size=50), st.booleans()), max_size=12))
def test_the_digest_is_that_of_the_file(tmp_path: Path, parts: list[tuple[bytes, bool]]) -> None:
    """Some appends are not told: they came through another process."""
    path, content = tmp_path / "file", b""
    path.write_bytes(b"")
    with ThreadPoolExecutor(1) as threads:
        digests = RunningDigests(threads)
        for part, is_told in parts:
            content += part
            with open(path, "ab") as file:
                file.write(part)
            if is_told:
                digests.advance(path, len(content))
        assert digests.digest(path) == hashlib.sha256(content).hexdigest()


def test_a_file_in_the_place_of_another_is_hashed_anew(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"good")
    with ThreadPoolExecutor(1) as threads:
        digests = RunningDigests(threads)
        digests.advance(path, 4)
        path.unlink()
        path.write_bytes(b"evil")
        assert digests.digest(path) == hashlib.sha256(b"evil").hexdigest()


def test_bytes_that_a_failed_write_took_back_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"there and a part of")
    with ThreadPoolExecutor(1) as threads:
        digests = RunningDigests(threads)
        digests.advance(path, 5)
        threads.submit(path.write_bytes, b"there").result()
        assert digests.digest(path) == hashlib.sha256(b"there").hexdigest()


def test_files_beyond_the_limit_are_read_at_the_end(tmp_path: Path) -> None:
    paths = [tmp_path / str(number) for number in range(MAX_FILES + 5)]
    with ThreadPoolExecutor(1) as threads:
        digests = RunningDigests(threads)
        for path in paths:
            path.write_bytes(path.name.encode())
            digests.advance(path, 1)
        for path in paths:
            assert digests.digest(path) == hashlib.sha256(path.name.encode()).hexdigest()
