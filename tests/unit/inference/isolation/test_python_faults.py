"""Python models that leak, crash, leave, fork or answer too much, in a process of their own."""

import contextlib
import os
from collections import deque
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from flambeau.protocol.tensors import Array
from services.errors import BackendError, WorkerProcessDiedError
from services.inference.backends.open_options import OpenOptions
from services.inference.isolation.isolated_backend import IsolatedBackend, open_isolated_backend
from tests.fixtures.misbehaving_models import SIGNATURE, WIDTH
from tests.fixtures.python_models import signature_of, verified
from tests.fixtures.worker_processes import children_of, wait_until_ended

SOURCE = """
import ctypes, multiprocessing, os, subprocess, sys, threading, time
import numpy as np

class Model:
    def load(self, context):
        self.kept = []

    def infer(self, inputs):
        x = inputs["x"]
        value = int(x.max())
        if value >= 20:
            return getattr(self, f"case_{value}")(x)
        return {"y": 2 * x}

    def case_20(self, x):
        os._exit(7)

    def case_21(self, x):
        ctypes.string_at(0)

    def case_22(self, x):
        self.kept.append(np.ones(2**24))  # 128 MiB
        return {"y": 2 * x}

    def case_23(self, x):
        if os.fork() == 0:
            return {"y": -x}  # a child that answers too
        os.wait()
        return {"y": 2 * x}

    def case_24(self, x):
        command = [sys.executable, "-c", "import time; time.sleep(600)"]
        self.child = subprocess.Popen(command, close_fds=False)
        return {"y": np.full_like(x, self.child.pid)}

    def case_25(self, x):
        print("to standard output", flush=True)
        os.write(1, b"and by its descriptor")
        return {"y": np.full_like(x, len(sys.stdin.read()))}

    def case_26(self, x):
        def add(): self.kept.append(1)
        threads = [threading.Thread(target=add) for _ in range(8)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        return {"y": np.full_like(x, len(self.kept))}

    def case_27(self, x):
        os.kill(os.getpid(), 9)

    def case_28(self, x):
        with multiprocessing.get_context("fork").Pool(2) as pool:
            return {"y": np.full_like(x, sum(pool.map(abs, [-1, -2])))}

    def case_29(self, x):
        return {"y": x, 7: x}
"""


def rows(*values: float) -> dict[str, Array]:
    return {"x": np.repeat(np.array(values, np.float32)[:, None], WIDTH, axis=1)}


def opened(memory_limit_bytes: int = 0) -> IsolatedBackend:
    return open_isolated_backend(
        verified(SOURCE, SIGNATURE), OpenOptions(), memory_limit_bytes=memory_limit_bytes
    )


@pytest.fixture(scope="module")
def model() -> Iterator[IsolatedBackend]:
    with closing(opened()) as backend:
        yield backend


def answers(backend: IsolatedBackend) -> bool:
    return bool((backend.run(rows(1, 2))["y"] == 2 * rows(1, 2)["x"]).all())


@pytest.mark.parametrize(
    ("case", "words"),
    [(20, "ended with exit code 7"), (21, "was ended by SIGSEGV"), (27, "was ended by SIGKILL")],
)
def test_a_process_that_ends_is_named(case: int, words: str) -> None:
    with closing(opened()) as backend:
        assert answers(backend)
        with pytest.raises(WorkerProcessDiedError, match=words):
            backend.run(rows(case))


def test_a_leak_ends_the_process_so_that_another_starts_without_it() -> None:
    with closing(opened(memory_limit_bytes=2**29)) as backend:
        words = "needed more memory than it may allocate, and ended"
        with pytest.raises(WorkerProcessDiedError, match=words):
            deque(backend.run(rows(22)) for _ in range(10))


def test_a_fork_that_answers_too_is_not_heard(model: IsolatedBackend) -> None:
    assert model.run(rows(23))["y"][0, 0] == 46
    assert answers(model)
    assert answers(model)


def test_processes_that_it_started_end_with_it() -> None:
    with closing(opened()) as backend:
        child = int(backend.run(rows(24))["y"][0, 0])
        assert child in children_of(backend.pid)
    assert wait_until_ended(child)
    with closing(opened()) as backend:
        child = int(backend.run(rows(24))["y"][0, 0])
        backend.kill()
    assert wait_until_ended(child)


def test_what_it_prints_is_on_standard_error_and_it_reads_nothing(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with closing(opened()) as backend:
        assert backend.run(rows(25))["y"][0, 0] == 0
    out, err = capfd.readouterr()
    assert (out, "to standard output" in err, "and by its descriptor" in err) == ("", True, True)


@pytest.mark.parametrize(("case", "value"), [(26, 8), (28, 3)])
def test_threads_and_pools_of_its_own_work(model: IsolatedBackend, case: int, value: int) -> None:
    assert model.run(rows(case))["y"][0, 0] == value
    assert answers(model)


def test_an_odd_name_is_a_fault(model: IsolatedBackend) -> None:
    with pytest.raises(BackendError, match="returned '7', which is no output"):
        model.run(rows(29))
    assert answers(model)


def test_long_text_crosses_both_ways() -> None:
    signature = signature_of([("t", "BYTES", (-1, 2))], [("u", "BYTES", (-1, 2))])
    source = "class Model:\n def infer(self, inputs): return inputs['t'][:, ::-1]"
    given = np.empty((2, 2), object)
    given[:] = [[b"\0", b"long" * 10**6], ["°".encode(), b""]]
    with closing(open_isolated_backend(verified(source, signature), OpenOptions())) as backend:
        found = backend.run({"t": given})["u"]
    assert found.tolist() == [[b"long" * 10**6, b"\0"], [b"", "°".encode()]]


def test_the_channel_is_not_inherited_by_commands(model: IsolatedBackend) -> None:
    child = int(model.run(rows(24))["y"][0, 0])
    opened_by_it = []
    for descriptor in Path(f"/proc/{child}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # it opens files while it starts
            opened_by_it.append(os.readlink(descriptor))
    assert opened_by_it
    assert not any(target.startswith("socket:") for target in opened_by_it)
