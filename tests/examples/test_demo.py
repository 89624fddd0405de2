"""`make demo-bring`: five models are brought, and a difference beyond its bound is a failure."""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
STRICTER = """
import sys
sys.path.insert(0, "examples")
import demo
demo.ROUNDING = -1.0
demo.publish_texts = lambda *_: []
sys.exit(demo.main())
"""


def run(*arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-W", "ignore", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_five_models_are_published_and_answer_as_they_did() -> None:
    done = run("examples/demo.py")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = re.findall(r"^(.+?)  +(\S+) +(\S+) +(\S+) +(\S+)  ok$", done.stdout, re.MULTILINE)
    assert len(rows) == 5, done.stdout
    for _, _, rest, grpc, bound in rows:
        assert max(float(rest), float(grpc)) <= float(bound) <= 1e-5
    assert re.search(r"^5 models published in \d+ s", done.stdout, re.MULTILINE)


def test_a_difference_beyond_its_bound_is_a_failure() -> None:
    done = run("-c", STRICTER)
    assert done.returncode == 1, done.stdout + done.stderr
    assert done.stdout.count("BEYOND ITS BOUND") == 2
