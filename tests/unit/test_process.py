"""The end of a server process while threads of its models run native code."""

import subprocess
import sys

import pytest

from tests.fixtures.onnx_models import lookup

OPENING_FOR_EVER = """
import sys, threading
import onnxruntime
from services.process import end_past_held_threads

model, opened = sys.stdin.buffer.read(), threading.Event()

def open_for_ever():
    while True:
        onnxruntime.InferenceSession(model)
        opened.set()

for _ in range(2):
    threading.Thread(target=open_for_ever, daemon=True).start()
opened.wait()
print("served")
end_past_held_threads()
"""
NO_THREADS = """
import atexit
from services.process import end_past_held_threads

atexit.register(print, "at exit")
end_past_held_threads()
"""


@pytest.mark.parametrize(
    ("program", "said"), [(OPENING_FOR_EVER, b"served\n"), (NO_THREADS, b"at exit\n")]
)
def test_a_process_ends_well_whatever_its_threads_do(program: str, said: bytes) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", program], input=lookup(), capture_output=True, timeout=60
    )
    assert (ended.returncode, ended.stdout) == (0, said), ended.stderr
