"""What a model prints goes to the server's error output, without the rest of endless lines."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.inference.isolation.forwarded_output import (
    CUT,
    MAX_LINE_BYTES,
    ForwardedOutput,
    LineLimit,
)


def printed(source: str) -> bytes:
    """Returns what is forwarded of the output of a program."""
    reading, writing = os.pipe()
    with open(reading, "rb") as target:
        with ForwardedOutput("the model", writing) as output:
            program = subprocess.Popen([sys.executable, "-c", source], stdout=output.sink)
        found = bytearray()
        while not found.endswith(b"over\n"):
            found += os.read(target.fileno(), 2**20)
        assert program.wait(60) == 0
        os.close(writing)
        return bytes(found)


def test_lines_are_forwarded_as_they_are() -> None:
    assert (
        printed("print('one'); print('two\\rthree'); print('over')") == b"one\ntwo\rthree\nover\n"
    )


def test_a_line_without_end_is_cut_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    source = "for _ in range(3): print('x' * 10**7)\nprint('over')"
    with caplog.at_level(logging.WARNING, "flambeau.isolation"):
        assert printed(source) == (b"x" * MAX_LINE_BYTES + CUT) * 3 + b"over\n"
    (logged,) = [vars(one) for one in caplog.records if one.name == "flambeau.isolation"]
    assert logged["msg"] == "a line that a model printed was cut"
    assert (logged["program"], logged["limit_bytes"]) == ("the model", MAX_LINE_BYTES)


def test_output_that_nobody_can_take_stops_no_model(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    with open(tmp_path / "empty", "rb") as closed_for_writing:
        with ForwardedOutput("the model", closed_for_writing.fileno()) as output:
            source = "for _ in range(100): print('x' * 10**5)"
            done = subprocess.run([sys.executable, "-c", source], stdout=output.sink, timeout=60)
        assert done.returncode == 0


@pytest.mark.parametrize("what", ["time.sleep(60)", "[print('x' * 999) for _ in iter(int, 1)]"])
def test_what_a_process_left_behind_is_listened_to_no_longer(what: str) -> None:
    source = f"import os, time\nif not os.fork(): os.setsid(); {what}\nprint('over')"
    reading, writing = os.pipe()
    threads = threading.active_count()
    with open(reading, "rb", buffering=0) as target:
        with ForwardedOutput("the model", writing) as output:
            command = [sys.executable, "-uc", source]
            subprocess.run(command, stdout=output.sink, stderr=subprocess.DEVNULL, timeout=60)
        os.set_blocking(reading, False)
        output.end()
        while threading.active_count() > threads:
            target.read(2**20)
        os.close(writing)


def limited(lines: LineLimit, output: bytes) -> bytes:
    """Passes output in pieces of the largest size."""
    starts = range(0, len(output), MAX_LINE_BYTES)
    return b"".join(lines.limited(output[at : at + MAX_LINE_BYTES]) for at in starts)


@given(st.lists(st.binary(max_size=40) | st.sampled_from([b"x" * 70_000, b"\n"]), max_size=12))
def test_pieces_do_not_matter(pieces: list[bytes]) -> None:
    """The limit sees lines, however they come."""
    whole, lines = LineLimit(), LineLimit()
    expected = limited(whole, b"".join(pieces))
    assert b"".join(limited(lines, piece) for piece in pieces) == expected
    assert lines.cuts == whole.cuts
    assert all(len(line) <= MAX_LINE_BYTES + len(CUT) for line in expected.split(b"\n"))
