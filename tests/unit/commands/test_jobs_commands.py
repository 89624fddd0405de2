"""First and repeated submissions by `flambeau jobs batch`."""

from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from flambeau.batch_files import check_folder, read_items, write_arrays
from flambeau.commands import jobs as command
from flambeau.errors import InvalidRequestError
from flambeau.jobs import Job

INPUTS = {"x": np.zeros((1, 4), np.float32)}


def job(job_id: str, state: str, *, is_new: bool) -> Job:
    now = datetime.now(UTC)
    return Job(id=job_id, model="m", version="1", state=state, created_at=now, deadline=now,
               finished_at=None, error="", outputs=None, is_new=is_new)  # fmt: skip


@dataclass
class Server:
    """Answers submissions in turn, and records their keys and the jobs that are waited for."""

    answers: list[Job]
    keys: list[str] = field(default_factory=list)
    awaited: list[str] = field(default_factory=list)

    def model(self, name: str, version: str) -> SimpleNamespace:
        spec = SimpleNamespace(name="x")
        return SimpleNamespace(
            name=name,
            signature=SimpleNamespace(inputs=[spec], max_batch_size=8),
            arrays=lambda values: values,
        )

    def submit(self, *_: Any, idempotency_key: str, **__: Any) -> Job:
        self.keys.append(idempotency_key)
        return self.answers[len(self.keys) - 1]

    def wait(self, job_id: str) -> Job:
        self.awaited.append(job_id)
        return job(job_id, "done", is_new=False)


Submitted = Callable[..., tuple[str, list[str]]]


@pytest.fixture
def submitted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Submitted:
    """Runs `jobs batch` on one file; returns the job it waits for, and the submitted keys."""

    def submitted(*answers: Job) -> tuple[str, list[str]]:
        server = Server(list(answers))
        for name in ("flambeau.client.Client", "flambeau.jobs.JobClient"):
            monkeypatch.setattr(name, lambda *_, **__: nullcontext(server))
        (tmp_path / "in").mkdir(exist_ok=True)
        np.save(tmp_path / "in" / "one.npy", INPUTS["x"])
        command.batch("m", tmp_path / "in", tmp_path / "out")
        (awaited,) = server.awaited
        return awaited, server.keys

    return submitted


@pytest.mark.parametrize("state", ["queued", "running", "done"])
def test_what_was_handed_in_before_is_not_handed_in_again(submitted: Submitted, state: str) -> None:
    found, keys = submitted(job("m.1", state, is_new=False))
    assert (found, len(keys)) == ("m.1", 1)


@pytest.mark.parametrize("state", ["failed", "cancelled", "expired"])
def test_what_failed_before_is_a_new_job(submitted: Submitted, state: str) -> None:
    found, keys = submitted(
        job("m.1", state, is_new=False),
        job("m.2", state, is_new=False),
        job("m.3", "queued", is_new=True),
    )
    assert found == "m.3"
    assert len(set(keys)) == 3


def test_what_fails_at_once_is_handed_in_once(submitted: Submitted) -> None:
    assert submitted(job("m.1", "failed", is_new=True))[0] == "m.1"


def test_the_same_work_has_the_same_key(submitted: Submitted) -> None:
    keys = [submitted(job("m.1", "queued", is_new=True))[1] for _ in range(2)]
    assert keys[0] == keys[1]


def test_two_files_of_one_name_are_refused(tmp_path: Any) -> None:
    np.save(tmp_path / "a.npy", INPUTS["x"])
    write_arrays(tmp_path / "a.npz", INPUTS)
    with pytest.raises(InvalidRequestError, match="rename one"):
        list(read_items(tmp_path, "x", 1))


def test_rows_cut_otherwise_are_refused_and_the_same_are_not(tmp_path: Any) -> None:
    source = tmp_path / "stack.npy"
    np.save(source, np.zeros((25, 4), np.float32))
    names = [item.name for item in read_items(source, "x", 10)]
    assert names[-1] == "stack-000000020-000000025"
    write_arrays(tmp_path / f"{names[0]}.npz", INPUTS)
    check_folder(tmp_path, source, frozenset(names))
    other = frozenset(item.name for item in read_items(source, "x", 5))
    with pytest.raises(InvalidRequestError, match="has rows 0 to 9"):
        check_folder(tmp_path, source, other)


@pytest.mark.parametrize("content", [b"", b"PK\x05\x06 cut off", b"\x93NUMPY"])
def test_a_file_that_is_broken_says_so(tmp_path: Any, content: bytes) -> None:
    (tmp_path / "a.npz").write_bytes(content)
    (item,) = read_items(tmp_path, "x", 1)
    with pytest.raises(InvalidRequestError, match=r"a\.npz cannot be read"):
        item.read()


def test_an_output_may_have_any_name(tmp_path: Any) -> None:
    write_arrays(tmp_path / "out.npz", {"file": INPUTS["x"]})
    assert np.load(tmp_path / "out.npz")["file"].shape == (1, 4)


@pytest.mark.parametrize("name", ["b.npy", "b.npz"])
def test_a_file_of_another_kind_is_named_without_numpys_advice(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("1 2 3\n")
    (item,) = read_items(tmp_path, "x", 8)
    with pytest.raises(
        InvalidRequestError, match=rf"b\{name[1:]} cannot be read: not a \{name[1:]} file"
    ) as found:
        item.read()
    assert "pickle" not in str(found.value)
    if name == "b.npy":
        with pytest.raises(InvalidRequestError, match=r"not a \.npy file"):
            list(read_items(tmp_path / name, "x", 8))


def test_an_array_of_python_objects_is_refused_without_numpys_advice(tmp_path: Path) -> None:
    np.save(tmp_path / "b.npy", np.array([{}], object))
    with pytest.raises(InvalidRequestError, match="it holds Python objects; save numbers"):
        list(read_items(tmp_path / "b.npy", "x", 8))
