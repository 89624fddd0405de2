"""The server of processes as a fork of the calling program."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import decimal, os, signal, sys
from training.process.isolated_run import fork_process_server, run_isolated

def asked(text):
    return run_isolated(eval, text, time_limit_s=60, memory_limit_bytes=2**33)

MARK, TERM = "getattr(__import__('decimal'), 'mark', None)", "__import__('signal').getsignal(15)"
SERVER = "__import__('os').getppid()"
if __name__ == "__main__":
    decimal.mark = "set before"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    fork_process_server()
    decimal.mark = "set later"
"""
USED = """
    print(asked(MARK), asked(TERM) is signal.SIG_DFL, asked("list('ab')"))
    server = asked(SERVER)
    os.kill(server, signal.SIGKILL)
    os.waitid(os.P_PID, server, os.WEXITED | os.WNOWAIT)
    print(asked(MARK))
"""
FORKED_ON = """
    if child := os.fork():
        os.waitpid(child, 0)
    print(asked(MARK), flush=True)
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
    lines = output(tmp_path, PROGRAM + USED)
    assert lines == ["set before True ['a', 'b']", "None"]


def test_a_fork_that_is_not_used_ends_with_its_program(tmp_path: Path) -> None:
    assert output(tmp_path, PROGRAM) == []


def test_a_fork_serves_the_process_that_made_it_alone(tmp_path: Path) -> None:
    assert output(tmp_path, PROGRAM + FORKED_ON) == ["None", "set before"]
