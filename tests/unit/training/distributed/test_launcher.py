"""Handling of the ranks' output; small programs replace torchrun."""

import contextlib
import os
import select
import signal
import time
from typing import Any

import pytest

from tests.unit.training.recipes import recipe
from training.distributed import launcher
from training.errors import StoppedError, TargetError, TrainingError

TOGETHER = recipe(train={"parallel": "ddp", "processes": 2})
PROLOGUE = """
import json, os, subprocess, sys, time
sys.path.insert(0, sys.argv.pop(1))
given = dict(zip(sys.argv, sys.argv[1:]))
pipe = open(given["--events"], "a")
def tell(**fields):
    print(json.dumps(fields), file=pipe, flush=True)
"""


class Told:
    """Records events, and runs a callback after each."""

    def __init__(self, act: Any = lambda: None) -> None:
        self.events: list[dict[str, Any]] = []
        self._act = act

    def write(self, kind: str, **fields: Any) -> None:
        """See `training.distributed.launcher.Events`."""
        self.events.append({"kind": kind, **fields})
        self._act()


def run(monkeypatch: pytest.MonkeyPatch, program: str, told: Told) -> None:
    monkeypatch.setattr(launcher, "GRACE_S", 10.0)
    launcher.run_together(TOGETHER, [], told, agent=PROLOGUE + program)


def test_events_pass_and_the_first_last_words_count(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told()
    program = "tell(kind='metric', epoch=1); tell(kind='published', model='m', version=4)"
    run(monkeypatch, f"{program}; tell(kind='failed', text='too late')", told)
    assert [event["kind"] for event in told.events] == ["metric", "published"]


@pytest.mark.parametrize(
    ("said", "error", "text"),
    [
        ("tell(kind='failed', text='no x', error='TargetError')", TargetError, "no x"),
        ("tell(kind='failed', text='no y', error='OSError')", TrainingError, "no y"),
        ("tell(kind='stopped', text='after 3')", StoppedError, "after 3"),
        ("tell(kind='crashed', text='reset')", TrainingError, "lost 4 times: reset"),
        ("", TrainingError, "2 processes were lost 4 times; "),
    ],
)
def test_the_end_of_a_run_is_an_error_of_its_kind(
    monkeypatch: pytest.MonkeyPatch, said: str, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text) as raised:
        run(monkeypatch, said, Told())
    assert type(raised.value) is error


def test_sigterm_leaves_the_ranks_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    program = (
        "tell(kind='begun', folder='f')\n"
        "while not os.path.exists(given['--together'] + '/stop'): time.sleep(0.01)\n"
        "tell(kind='stopped', text='as asked')"
    )
    before = signal.getsignal(signal.SIGTERM)

    def stop() -> None:
        """Calls the handler of SIGTERM; the signal might reach another thread of the process."""
        handler = signal.getsignal(signal.SIGTERM)
        assert callable(handler)
        assert handler is not before
        handler(signal.SIGTERM, None)

    with pytest.raises(StoppedError, match="as asked"):
        run(monkeypatch, program, Told(stop))
    assert signal.getsignal(signal.SIGTERM) is before


def test_nothing_stays_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C also ends the ranks, which torchrun starts in sessions of their own."""
    rank = (
        "import sys; sys.path.insert(0, sys.argv[1]); events = open(sys.argv[2], 'a');"
        "from training.distributed.lifeline import hold_lifeline; hold_lifeline();"
        'import os, time; print(\'{"kind": "begun", "pid": %d}\' % os.getpid(), file=events,'
        " flush=True); time.sleep(60)"
    )
    program = (
        f"subprocess.Popen([sys.executable, '-c', {rank!r}, sys.path[0], given['--events']],"
        " start_new_session=True); time.sleep(60)"
    )

    def interrupt() -> None:
        raise KeyboardInterrupt

    told = Told(interrupt)
    since = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        run(monkeypatch, program, told)
    assert time.monotonic() - since < 30
    # A process closes its files, which ends the events, a moment before it is gone.
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(told.events[0]["pid"])
        ended, *_ = select.select([handle], [], [], 10.0)
        os.close(handle)
        assert ended, "the rank still runs"
