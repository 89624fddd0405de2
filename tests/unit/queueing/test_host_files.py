"""Files that processes of one host share: hostile ones, full memory, dead processes."""

import asyncio
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from flambeau.protocol.tensors import TensorError
from services.queueing import host_files
from services.queueing.host_files import STEP_BYTES, HostFiles
from services.queueing.redis_streams.wire import (
    FILE_ALIGNMENT,
    WireError,
    decode_request,
    encode_request,
    file_parts,
)
from tests.fixtures.queue_ends import LANE, request

MIB = 2**20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "host"


@contextmanager
def files_of(root: Path, *names: str) -> Iterator[list[HostFiles]]:
    found = [HostFiles(name, root) for name in names]
    yield found
    for files in found:
        files.close()


def always() -> bool:
    return True


async def test_a_view_outlives_its_file(root: Path) -> None:
    with files_of(root, "g", "w") as (g, w):
        data = bytes(range(256)) * (3 * STEP_BYTES // 256)
        assert await g.write("g", "request-1", [memoryview(data), b"end"], always)
        view = w.read("g", "request-1", len(data) + 3)
        assert view.readonly
        g.remove("request-1")
        g.close()
        assert view == data + b"end"
        with pytest.raises(TensorError, match="No such file"):
            w.read("g", "request-1", len(data) + 3)
    assert os.listdir(root) == []


async def test_many_files_take_few_descriptors(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_files, "MAPS_AT_ONCE", 2)
    with files_of(root, "g") as (g,):
        assert await g.write("g", "request-1", [b"x" * 5000], always)
        before = len(os.listdir("/proc/self/fd"))
        views = [g.read("g", "request-1", 5000) for _ in range(5)]
        assert len(os.listdir("/proc/self/fd")) == before + 2
        assert all(view == b"x" * 5000 and view.readonly for view in views)
        views.clear()
        views.append(g.read("g", "request-1", 5000))
        assert len(os.listdir("/proc/self/fd")) == before + 1


async def test_processes_that_do_not_see_each_other_are_on_other_hosts(
    root: Path, tmp_path: Path
) -> None:
    with files_of(root, "g", "w") as (g, _), files_of(tmp_path / "other", "v") as (v,):
        assert g.reaches(["w"])
        assert not g.reaches(["w", "v"])
        assert not g.reaches([".."])
        assert not v.reaches(["g"])
        with pytest.raises(TensorError):
            v.read("g", "request-1", 1)
        assert not HostFiles().reaches(["w"])


@pytest.mark.parametrize(
    ("owner", "name"),
    [("g", "../secret"), ("g", "."), ("..", "secret"), ("g", ""), ("g", "a\0b"), ("g", "a" * 201)],
)
def test_names_that_are_not_plain_are_refused(root: Path, owner: str, name: str) -> None:
    with files_of(root, "g") as (g,):
        (root.parent / "secret").write_bytes(b"x")
        with pytest.raises(TensorError, match="is not of this host"):
            g.read(owner, name, 1)


def test_hostile_files_are_refused(root: Path) -> None:
    with files_of(root, "g") as (g,):
        folder = root / "g"
        (folder / "short").write_bytes(b"x" * 99)
        (folder / "empty").touch()
        (folder / "link").symlink_to(folder / "short")
        os.mkfifo(folder / "pipe")
        (folder / "folder").mkdir()
        for name, size, why in (
            ("short", 100, "has 99 bytes, and should have 100"),
            ("short", -1, "should have -1"),
            ("empty", 0, "has 0 bytes"),
            ("link", 99, "cannot be read"),
            ("pipe", 0, "not a file of this user"),
            ("folder", 1, "not a file of this user"),
            ("missing", 1, "cannot be read"),
        ):
            with pytest.raises(TensorError, match=why):
                g.read("g", name, size)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_files_of_another_user_are_refused(root: Path) -> None:
    with files_of(root, "g") as (g,):
        (root / "g" / "theirs").write_bytes(b"x")
        os.chown(root / "g" / "theirs", 12345, -1)
        with pytest.raises(TensorError, match="not a file of this user"):
            g.read("g", "theirs", 1)


def test_a_folder_that_others_may_enter_is_not_used(root: Path) -> None:
    root.mkdir()
    root.chmod(0o755)
    with files_of(root, "g") as (g,):
        assert not g.reaches(["g"])
    assert os.listdir(root) == []


async def test_without_room_there_is_no_file(root: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with files_of(root, "g") as (g,):
        resource.setrlimit(resource.RLIMIT_FSIZE, (STEP_BYTES + 1000, hard))
        try:
            assert not await g.write("g", "request-1", [bytes(2 * STEP_BYTES)], always)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert os.listdir(root / "g") == []


async def test_half_of_the_free_memory_is_left(root: Path) -> None:
    with files_of(root, "g") as (g,):
        free = os.statvfs(root).f_bavail * os.statvfs(root).f_frsize
        part = np.broadcast_to(np.zeros(1, np.uint8), [free]).data
        assert not await g.write("g", "request-1", [part], always)
        assert os.listdir(root / "g") == []


async def test_a_write_ends_when_nobody_waits_for_it(root: Path) -> None:
    with files_of(root, "g") as (g,):
        assert not await g.write("g", "request-1", [bytes(4 * STEP_BYTES)], lambda: False)
        writing = asyncio.create_task(g.write("g", "r", [bytes(64 * STEP_BYTES)], always))
        await asyncio.sleep(0)
        writing.cancel()
        await asyncio.wait([writing])
        assert os.listdir(root / "g") == []


async def test_answers_that_nobody_waits_for_are_swept(root: Path) -> None:
    with files_of(root, "g", "w") as (g, w):
        for name in ("reply-1-aa", "reply-2-ab", "reply-2-ac", "request-1", "request-9"):
            assert await w.write("g", name, [b"x" * 10], always)
        assert w.reply_bytes("g") == 30
        w.sweep()
        assert len(os.listdir(root / "g")) == 5
        g.sweep({2: None})
        assert sorted(os.listdir(root / "g")) == [
            "reply-2-ab", "reply-2-ac", "request-1", "request-9",
        ]  # fmt: skip


def test_the_folder_of_a_killed_process_is_swept(root: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from services.queueing.host_files import HostFiles\n"
        "files = HostFiles('dies', Path(sys.argv[1])); print('made', flush=True); sys.stdin.read()"
    )
    command = [sys.executable, "-c", program, str(root)]
    with (
        files_of(root, "lives") as (lives,),
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process,
    ):
        assert process.stdout is not None
        process.stdout.readline()
        (root / "dies" / "request-1").write_bytes(b"x")
        lives.sweep()
        assert sorted(os.listdir(root)) == ["dies", "lives"]
        process.send_signal(signal.SIGKILL)
        process.wait()
        lives.sweep()
        assert os.listdir(root) == ["lives"]


async def test_tensors_of_a_record_lie_in_its_file(root: Path) -> None:
    inputs = {
        "x": np.arange(6, dtype="<f4").reshape(2, 3)[:, ::2],
        "none": np.zeros((0, 3), "<i8"),
        "b": np.array([True, False]),
        "h": np.array(3, "<f2"),
    }
    sent = request()
    sent = type(sent)(
        request_id="r", lane=LANE, inputs=inputs, rows=1, deadline=0.0, outputs=("y",)
    )
    with files_of(root, "g", "w") as (g, w):
        assert await g.write("g", "request-7", file_parts(inputs), always)
        data = encode_request(sent, "request-7")

        def read(name: str, size: int) -> memoryview:
            return w.read("g", name, size)

        found = decode_request(data, LANE, 1.0, alone=False, read=read)
        assert not isinstance(found, str)
        for name, array in inputs.items():
            got = found.inputs[name]
            assert (got.dtype, got.shape, got.tolist()) == (
                array.dtype, array.shape, array.tolist(),
            )  # fmt: skip
            assert not array.size or got.ctypes.data % FILE_ALIGNMENT == 0
        with pytest.raises(WireError, match="of the host that sent it"):
            decode_request(data, LANE, 1.0, alone=False)
        os.truncate(root / "g" / "request-7", 64)
        with pytest.raises(WireError, match="has 64 bytes, and should have 192"):
            decode_request(data, LANE, 1.0, alone=False, read=read)
