"""Functions in a process of their own: results, and every kind of end."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.util import Finalize
from pathlib import Path

import pytest

from training.errors import IsolationError
from training.process.isolated_run import run_isolated, run_limited
from training.recipe.recipe import ExportLimits

MEMORY_BYTES = 8 * 2**30


def double(number: int) -> int:
    return 2 * number


def leave_a_mark_at_the_end(mark: Path) -> None:
    def leave() -> None:
        time.sleep(0.1)  # longer than it takes to hear the answer
        mark.touch()

    Finalize(None, leave, exitpriority=1)


def die() -> None:
    os.write(2, b"first words\nlast words\n")
    os._exit(7)


def sleep() -> None:
    time.sleep(60)


def isolated(call: Callable[..., object], *arguments: object, time_limit_s: float = 60.0) -> object:
    return run_isolated(
        call, *arguments, time_limit_s=time_limit_s, memory_limit_bytes=MEMORY_BYTES
    )


def test_it_gives_what_the_function_gave() -> None:
    assert isolated(double, 21) == 42


def test_what_has_answered_gives_back_what_would_outlive_it(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    isolated(leave_a_mark_at_the_end, mark)
    assert mark.exists()


def test_the_dead_are_told_of_with_their_last_words() -> None:
    with pytest.raises(IsolationError, match="ended with status 7: last words"):
        isolated(die)


class Deadly:
    """Ends the process that reads it."""

    def __reduce__(self) -> tuple[Callable[[int], object], tuple[int]]:
        return os._exit, (3,)


def test_a_process_that_ends_while_it_reads_its_work_is_told() -> None:
    with pytest.raises(IsolationError, match=r"ended while it started \(.*Broken pipe\): it crash"):
        isolated(double, Deadly(), bytes(2**22))


def test_what_takes_too_long_is_ended() -> None:
    with pytest.raises(IsolationError, match=r"longer than 0\.5 s"):
        isolated(sleep, time_limit_s=0.5)


def test_the_limits_of_an_artifact_hold_and_its_time_can_be_replaced() -> None:
    limits = ExportLimits(time_s=0.5, memory_gib=0.5)
    with pytest.raises(IsolationError, match=r"longer than 0\.5 s"):
        run_limited(sleep, limits=limits)
    with pytest.raises(IsolationError, match=r"more than 0\.5 GiB"):
        run_limited(bytes, 2**30, limits=limits, time_limit_s=60)


CALLING = """
import signal
from training.process.isolated_run import run_isolated

if __name__ == "__mp_main__":
    signal.raise_signal(signal.SIGINT)  # Ctrl-C while the other process still prepares itself

class Told:
    def __reduce__(self):
        print("handed over", flush=True)
        return bytes, (bytes(2**20),)  # more than a pipe holds

if __name__ == "__main__":
    print("calling", flush=True)
    try:
        print(run_isolated(len, Told(), time_limit_s=60, memory_limit_bytes=2**33))
    except KeyboardInterrupt:
        print("interrupted")
"""


def calling(folder: Path) -> "subprocess.Popen[str]":
    """A program that calls a function, as leader of a group of its own."""
    script = folder / "calling.py"
    script.write_text(CALLING)
    return subprocess.Popen(
        [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, start_new_session=True,
    )  # fmt: skip


def await_server(process: "subprocess.Popen[str]") -> None:
    """Waits until it has started the server beside the process that tracks resources."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    while len(children.read_text().split()) < 2:
        assert process.poll() is None


def test_a_process_that_prepares_itself_does_not_hear_ctrl_c(tmp_path: Path) -> None:
    said, complained = calling(tmp_path).communicate(timeout=120)
    assert (said, complained) == (f"calling\nhanded over\n{2**20}\n", "")


@pytest.mark.parametrize("moment", ["the server starts", "handed over"])
def test_ctrl_c_while_a_process_starts_is_told_by_the_caller_alone(
    moment: str, tmp_path: Path
) -> None:
    with calling(tmp_path) as process:
        assert process.stdout is not None
        if moment == "the server starts":
            await_server(process)
            os.killpg(process.pid, signal.SIGINT)  # as of a terminal
        else:
            assert [process.stdout.readline() for _ in range(2)] == ["calling\n", "handed over\n"]
            process.send_signal(signal.SIGINT)  # as of `flambeau up`
        said, complained = process.communicate(timeout=120)
    assert said.splitlines()[-1] == "interrupted"
    assert complained == ""
