"""The server of processes as a fork of the calling program."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import decimal, multiprocessing, os, signal, sys
from multiprocessing import forkserver
from training.process.forked_server import ServerFork

def answer(connection):
    is_default = signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    connection.send((getattr(decimal, "mark", None), is_default, os.getppid()))

def asked(name):
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=answer, args=(theirs,))
    process.start()
    mark, is_default, server = ours.recv()
    process.join()
    print(f"{name}: {mark}, {is_default}", flush=True)
    return server

if __name__ == "__main__":
    decimal.mark = "set before"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    fork = ServerFork()
    decimal.mark = "set later"
"""
USED = """
    with fork.used():
        forkserver.ensure_running()
    server = int(asked("first"))
    os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    with fork.used():  # as of each call
        asked("another")
"""
FORKED_ON = """
    if child := os.fork():
        os.waitpid(child, 0)
    with fork.used():
        asked("parent" if child else "child")
    os._exit(0)
"""


def output(tmp_path: Path, program: str) -> list[str]:
    """Returns the lines of the program; all its processes have closed their outputs then."""
    file = tmp_path / "program.py"
    file.write_text(program)
    done = subprocess.run(
        [sys.executable, "-W", "error", str(file)], capture_output=True, text=True, timeout=100,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_fork_has_what_its_program_had_and_another_server_follows_its_death(
    tmp_path: Path,
) -> None:
    assert output(tmp_path, PROGRAM + USED) == ["first: set before, True", "another: None, True"]


def test_a_fork_that_is_not_used_ends_with_its_program(tmp_path: Path) -> None:
    assert output(tmp_path, PROGRAM) == []


def test_a_fork_serves_the_process_that_made_it_alone(tmp_path: Path) -> None:
    lines = output(tmp_path, PROGRAM + FORKED_ON)
    assert lines == ["child: None, True", "parent: set before, True"]
