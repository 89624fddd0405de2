"""Handlers that write to the channel of their process: their own model alone is harmed."""

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from services.errors import WorkerProcessDiedError
from services.inference.isolation.shared_tensors import MAX_PLACES
from tests.fixtures.served_archives import ServedArchive, request_of
from tests.fixtures.worker_processes import children_of

HOSTILE = """
    import fcntl, os, signal, socket, time

    def channel():
        for name in os.listdir("/proc/self/fd"):
            try:
                found = socket.socket(fileno=os.dup(int(name)))
                if found.type == socket.SOCK_SEQPACKET:
                    return found
            except OSError:
                pass

    def memory(seals=0, size=1 << 20):
        made = os.memfd_create("made", os.MFD_ALLOW_SEALING)
        os.ftruncate(made, size)
        fcntl.fcntl(made, fcntl.F_ADD_SEALS, seals)
        return made

    def announce(name, made, to=None):
        socket.send_fds(to or channel(), [f'{{"memory":"{name}"}}'.encode()], [made])

    def handle(data, context):
        for row in data or ():
            what = bytes(row["body"]).decode()
            if what == "cut":
                made = memory()
                announce("response", made)
                channel().send(b'{"outputs":[["response","|O",[1048576,1]]]}')
                os.ftruncate(made, 0)
            elif what == "file":
                announce("response", os.open("/proc/self/exe", os.O_RDONLY))
            elif what == "many":
                to, made = channel(), memory(fcntl.F_SEAL_SHRINK, 4096)
                for number in range(MANY):
                    announce(f"n{number}", made, to)
            elif what == "group":
                os.setpgid(0, os.getpgid(os.getppid()))
                os.kill(os.getpid(), signal.SIGSTOP)
            elif what.startswith("send "):
                channel().send(what[5:].encode())
        return ["fine"] * len(data or ())
""".replace("MANY", str(MAX_PLACES + 10))


@pytest.fixture
def hostile(tmp_path: Path) -> Iterator[ServedArchive]:
    served = ServedArchive(tmp_path, HOSTILE)
    assert bytes(served.ask(request_of())[0].body) == b"fine"
    yield served
    served.backend.close()


@pytest.mark.parametrize(
    "what",
    [
        "cut", "file", "many", "send garbage", "send {}", "send [1]", 'send {"run":[]}',
        'send {"outputs":null}', 'send {"outputs":[["other","<f4",[1]]]}', 'send {"error":1}',
        'send {"outputs":[["response","|O",[-1,-1]]]}', 'send {"opened":1,"end":1}',
    ],
)  # fmt: skip
def test_a_process_that_breaks_the_protocol_is_ended(hostile: ServedArchive, what: str) -> None:
    descriptors = len(os.listdir("/proc/self/fd"))
    with pytest.raises(WorkerProcessDiedError, match="was ended by this server"):
        hostile.ask(request_of(what.encode()))
    with pytest.raises(WorkerProcessDiedError):  # and gives no answer to the next request
        hostile.ask(request_of(b"next"))
    assert len(os.listdir("/proc/self/fd")) <= descriptors + MAX_PLACES


def test_a_stopped_process_that_left_its_group_is_ended(tmp_path: Path) -> None:
    before = set(children_of(os.getpid()))
    hostile = ServedArchive(tmp_path, HOSTILE)
    (worker,) = set(children_of(os.getpid())) - before
    failed: list[Exception] = []

    def ask() -> None:
        try:
            hostile.ask(request_of(b"group"))
        except WorkerProcessDiedError as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    state = Path(f"/proc/{worker}/stat")
    deadline = time.monotonic() + 30
    while state.read_text().rpartition(")")[2].split()[0] != "T":
        assert time.monotonic() < deadline
        time.sleep(0.01)
    hostile.backend.kill()
    thread.join(30)
    hostile.backend.close()
    assert failed
    assert worker not in children_of(os.getpid())
