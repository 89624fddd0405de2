"""The journal of the registrations: every history, several readers, and files that are broken."""

import concurrent.futures
import contextlib
import resource
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_store.archives.registration_file import MAX_HISTORY, Change, RegistrationFile
from model_store.archives.registrations import (
    RegisteredVersion,
    Registrations,
    Step,
)
from model_store.errors import DocumentError


def version(**fields: Any) -> RegisteredVersion:
    usual: dict[str, Any] = {
        "url": "m.mar", "folder": "/m", "is_own_folder": False, "min_workers": 1, "max_workers": 1,
        "batch_size": 1, "max_batch_delay_ms": 100, "response_timeout_s": 120,
        "startup_timeout_s": 120, "job_queue_size": 100,
    }  # fmt: skip
    return RegisteredVersion(**{**usual, **fields})


def put(file: RegistrationFile, name: str, number: str = "1.0", **fields: Any) -> None:
    with file.changing() as change:
        change.put(name, number, version(**fields))


def defaults(found: Registrations) -> dict[str, tuple[str, list[str]]]:
    return {name: (model.default, list(model.versions)) for name, model in found.models.items()}


def test_a_folder_without_a_file_has_no_registrations(tmp_path: Path) -> None:
    assert RegistrationFile(tmp_path).latest() == Registrations()


def test_other_processes_see_each_change(tmp_path: Path) -> None:
    first, second = RegistrationFile(tmp_path), RegistrationFile(tmp_path)
    put(first, "a")
    assert defaults(second.latest()) == {"a": ("1.0", ["1.0"])}
    put(second, "a", "2.0")
    with first.changing() as change:
        assert defaults(change.before) == {"a": ("1.0", ["1.0", "2.0"])}
        change.make_default("a", "2.0")
        change.put("b", "1.0", version(url="é"))
    assert defaults(second.latest()) == {"a": ("2.0", ["1.0", "2.0"]), "b": ("1.0", ["1.0"])}
    with second.changing() as change:
        change.drop("a", "2.0")
    assert first.latest() == second.latest() == RegistrationFile(tmp_path).latest()
    assert first.latest().models["b"].versions["1.0"].url == "é"


def test_a_change_that_fails_changes_nothing(tmp_path: Path) -> None:
    file = RegistrationFile(tmp_path)

    def broken() -> None:
        with file.changing() as change:
            change.put("a", "1.0", version())
            raise RuntimeError("it broke")

    with pytest.raises(RuntimeError):
        broken()
    assert file.latest() == Registrations()


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["put", "default", "drop", "renew"]),
        st.sampled_from("ab"),
        st.sampled_from(["1.0", "2.0", "3.0"]),
        st.integers(0, 9),
    ),
    max_size=40,
)


@settings(max_examples=100)
@given(STEPS)
def test_every_history_is_read_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, str, str, int]]
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    writer, reader = RegistrationFile(folder), RegistrationFile(folder)
    for act, name, number, workers in steps:
        with writer.changing() as change:
            _do(change, act, name, number, workers)
            expected = change.after
        assert writer.latest() == expected
        if act == "renew":
            assert reader.latest() == expected
    read = RegistrationFile(folder).latest()
    assert read == reader.latest() == writer.latest()
    assert list(read.models) == list(writer.latest().models)
    again = Registrations()
    for step in read.steps():
        again = again.after(step)
    assert again == read


def _do(change: Change, act: str, name: str, number: str, workers: int) -> None:
    model = change.before.models.get(name)
    if act in ("put", "renew"):
        change.put(name, number, version(min_workers=workers))
    elif model is not None and number in model.versions:
        (change.make_default if act == "default" else change.drop)(name, number)


def test_a_journal_of_history_is_written_anew(tmp_path: Path) -> None:
    file, other = RegistrationFile(tmp_path), RegistrationFile(tmp_path)
    put(file, "other")
    path = next(tmp_path.glob("*.jsonl"))
    sizes = []
    for number in range(MAX_HISTORY + 10):
        put(file, "m", min_workers=number)
        sizes.append(path.stat().st_size)
        if number % 100 == 0:
            assert other.latest() == file.latest()
    assert max(sizes) < 1.2 * sizes[0] * MAX_HISTORY
    assert sizes[-1] < max(sizes) / 10
    assert other.latest() == file.latest() == RegistrationFile(tmp_path).latest()
    assert other.latest().models["m"].versions["1.0"].min_workers == MAX_HISTORY + 9


def test_changes_of_several_threads_are_all_kept(tmp_path: Path) -> None:
    files = [RegistrationFile(tmp_path) for _ in range(4)]
    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: put(files[n % 4], f"m{n}"), range(80)))
    names = {f"m{n}" for n in range(80)}
    assert all(set(file.latest().models) == names for file in files)


def test_slow_reader_does_not_undo_a_change_of_another_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, other = RegistrationFile(tmp_path), RegistrationFile(tmp_path)
    put(file, "a")
    put(other, "b")
    has_read, may_go_on = threading.Event(), threading.Event()
    writer, after = threading.current_thread(), Registrations.after

    def slowly(before: Registrations, *steps: Step) -> Registrations:
        if threading.current_thread() is not writer:
            has_read.set()
            assert may_go_on.wait(10)
        return after(before, *steps)

    monkeypatch.setattr(Registrations, "after", slowly)
    with concurrent.futures.ThreadPoolExecutor(1) as threads:
        slow = threads.submit(file.latest)
        assert has_read.wait(10)
        put(other, "c")
        with file.changing() as change:
            change.put("d", "1.0", version())
            may_go_on.set()
            assert list(slow.result().models) == ["a", "b"]
    for one in (file, other, RegistrationFile(tmp_path)):
        assert list(one.latest().models) == ["a", "b", "c", "d"]


def test_change_counts_once_its_last_line_is_whole(tmp_path: Path) -> None:
    file, reader = RegistrationFile(tmp_path), RegistrationFile(tmp_path)
    put(file, "a")
    path = next(tmp_path.glob("*.jsonl"))
    whole = path.read_bytes()
    with file.changing() as change:
        change.put("a", "2.0", version())
        change.make_default("a", "2.0")
    first, _ = path.read_bytes()[len(whole) :].splitlines(keepends=True)
    path.write_bytes(whole + first)  # its writer was killed, or the disk is full
    assert defaults(reader.latest()) == {"a": ("1.0", ["1.0"])}
    put(reader, "b")
    assert path.read_bytes().startswith(whole + b'{"act":"put","model":"b"')
    for one in (file, reader, RegistrationFile(tmp_path)):
        assert defaults(one.latest()) == {"a": ("1.0", ["1.0"]), "b": ("1.0", ["1.0"])}


def test_journal_that_was_cut_is_read_anew(tmp_path: Path) -> None:
    file = RegistrationFile(tmp_path)
    put(file, "a")
    path = next(tmp_path.glob("*.jsonl"))
    whole = path.read_bytes()
    put(file, "b")
    path.write_bytes(whole)
    assert list(file.latest().models) == ["a"]
    put(file, "c")
    assert list(RegistrationFile(tmp_path).latest().models) == ["a", "c"]


def test_a_line_without_its_end_is_left_out_and_cut_off(tmp_path: Path) -> None:
    file, other = RegistrationFile(tmp_path), RegistrationFile(tmp_path)
    put(file, "a")
    path = next(tmp_path.glob("*.jsonl"))
    whole = path.read_bytes()
    path.write_bytes(whole + b'{"act":"put","model":"b","ver')  # of a process that was killed
    assert list(other.latest().models) == list(RegistrationFile(tmp_path).latest().models) == ["a"]
    put(other, "c")
    assert path.read_bytes().startswith(whole + b'{"act":"put","model":"c"')
    assert list(file.latest().models) == list(other.latest().models) == ["a", "c"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"nonsense\n", "is not JSON"),
        (b'{"act":"drop","model":"x","version":"1.0"}\n', "have no version '1.0' of 'x' to drop"),
        (b'{"act":"put","model":"x","version":"1.0"}\n', "have no version '1.0' of 'x' to put"),
        (b'{"act":"other","model":"x","version":"1.0"}\n', "act"),
    ],
)
def test_a_file_that_was_changed_by_hand_is_an_error(
    tmp_path: Path, line: bytes, words: str
) -> None:
    file = RegistrationFile(tmp_path)
    put(file, "a")
    path = next(tmp_path.glob("*.jsonl"))
    path.write_bytes(path.read_bytes() + line)
    for read in (file.latest, RegistrationFile(tmp_path).latest):
        with pytest.raises(DocumentError, match=words):
            read()


def test_a_line_that_could_not_be_read_is_not_written(tmp_path: Path) -> None:
    file = RegistrationFile(tmp_path)
    put(file, "a")
    with pytest.raises(DocumentError, match="at most 1,048,576 are read"):
        put(file, "b", url="x" * 2**20)
    assert list(file.latest().models) == ["a"]


@contextlib.contextmanager
def files_of_at_most(size_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("left", [0, 10])
def test_a_full_disk_changes_nothing(tmp_path: Path, left: int) -> None:
    file = RegistrationFile(tmp_path)
    put(file, "a")
    size = next(tmp_path.glob("*.jsonl")).stat().st_size
    with files_of_at_most(size + left), pytest.raises(OSError, match=r"File too large|No space"):
        put(file, "b")
    assert next(tmp_path.glob("*.jsonl")).stat().st_size == size
    assert list(file.latest().models) == ["a"]
    put(file, "b")
    assert list(RegistrationFile(tmp_path).latest().models) == ["a", "b"]
