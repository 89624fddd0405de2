"""Standard error whose reader is slow or gone: who logs never waits; what is lost is counted."""

import io
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import TextIO

import pytest

from services.telemetry.log_output import MAX_WAITING_BYTES, LogOutput, may_wait

LINE = "x" * 999 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[int, TextIO]]:
    source, sink = os.pipe()
    with open(sink, "w") as stream:
        yield source, stream
    os.close(source)


def read_in(source: int, size: int) -> bytes:
    """Reads so many bytes."""
    found = b""
    while len(found) < size:
        found += os.read(source, size - len(found))
    return found


def test_a_line_is_written_at_once(pipe: tuple[int, TextIO]) -> None:
    source, stream = pipe
    LogOutput(stream).write("one\n")
    assert os.read(source, 100) == b"one\n"


def test_lines_wait_for_a_slow_reader_in_order(pipe: tuple[int, TextIO]) -> None:
    source, stream = pipe
    output, count = LogOutput(stream), 300  # a pipe takes 64 KiB
    lines = [f"{number:0999}\n" for number in range(count)]
    for line in lines:
        output.write(line)
    assert read_in(source, count * 1000).decode() == "".join(lines)
    output.finish()
    output.write("after\n")
    assert os.read(source, 100) == b"after\n"


def test_lines_beyond_the_limit_are_dropped_and_counted(pipe: tuple[int, TextIO]) -> None:
    source, stream = pipe
    output, count = LogOutput(stream), 2 * MAX_WAITING_BYTES // 1000
    for _ in range(count):
        output.write(LINE)
    found: list[bytes] = []
    with os.fdopen(os.dup(source), "rb") as reader:
        for line in reader:
            found.append(line)
            if line != LINE.encode():
                break
    note = json.loads(found[-1])
    assert note["message"].startswith("log lines were dropped")
    assert note["lines"] + len(found) - 1 == count


def test_a_process_that_ends_waits_for_its_lines() -> None:
    source = (
        "import logging, sys\nfrom services.process import end_past_held_threads\n"
        "from services.telemetry.logs import configure_logs\nconfigure_logs('info')\n"
        "for number in range(900): logging.info('x' * 900)\nprint('logged', flush=True)\n"
        "end_past_held_threads()"
    )
    command, pipe = [sys.executable, "-c", source], subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe) as program:
        assert program.stdout is not None
        assert program.stderr is not None
        assert program.stdout.readline() == b"logged\n"
        assert len(program.stderr.readlines()) == 900


@pytest.mark.parametrize("waits", [True, False])
def test_a_socket_and_a_shared_mode_that_does_not_wait(waits: bool) -> None:
    near, far = socket.socketpair()
    with near, far, open(os.dup(near.fileno()), "w") as stream:
        near.setblocking(waits)
        output, lines = LogOutput(stream), [f"{number:0999}\n" for number in range(700)]
        for line in lines:
            output.write(line)
        assert read_in(far.fileno(), 700_000).decode() == "".join(lines)


def test_a_reader_that_left_is_no_error(pipe: tuple[int, TextIO]) -> None:
    source, stream = pipe
    output = LogOutput(stream)
    there, gone = os.pipe()
    os.dup2(there, source)  # closes the only reader
    os.close(there)
    output.write("nobody reads it\n")
    os.close(gone)


def test_the_descriptor_of_others_stays_one_that_waits(pipe: tuple[int, TextIO]) -> None:
    stream = pipe[1]
    LogOutput(stream).write("one\n")
    assert os.get_blocking(stream.fileno())


def test_many_threads_write_whole_lines(pipe: tuple[int, TextIO]) -> None:
    source, stream = pipe
    output = LogOutput(stream)

    def write(text: str) -> None:
        for _ in range(50):
            output.write(text)

    threads = [threading.Thread(target=write, args=(f"{n}" * 99 + "\n",)) for n in range(8)]
    for thread in threads:
        thread.start()
    lines = read_in(source, 8 * 50 * 100).decode().splitlines()
    for thread in threads:
        thread.join()
    assert sorted(lines) == sorted(f"{n}" * 99 for n in range(8) for _ in range(50))


def test_files_and_streams_of_python_need_none() -> None:
    with tempfile.TemporaryFile("w") as file:
        assert not may_wait(file)
    assert not may_wait(io.StringIO())
    assert isinstance(may_wait(sys.__stderr__ or sys.stderr), bool)
