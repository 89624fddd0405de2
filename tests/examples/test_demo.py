"""`make demo-bring`: five models are brought, and a difference beyond its bound is a failure."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMPARE_TWICE = """
import sys
from dataclasses import replace
sys.path.insert(0, "examples")
import demo
compare = demo.compare

def twice(server, cases):
    within = compare(server, cases)
    print("with impossible bounds")
    assert not compare(server, [replace(case, bound=-1.0) for case in cases])
    return within

demo.compare = twice
sys.exit(demo.main())
"""


@pytest.mark.long
def test_five_models_are_published_and_answer_as_they_did() -> None:
    command = [sys.executable, "-W", "ignore", "-c", COMPARE_TWICE]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    right, _, wrong = done.stdout.partition("with impossible bounds")
    rows = re.findall(r"^(.+?)  +(\S+) +(\S+) +(\S+) +(\S+)  ok$", right, re.MULTILINE)
    assert len(rows) == 5, done.stdout
    for _, _, rest, grpc, bound in rows:
        assert max(float(rest), float(grpc)) <= float(bound) <= 1e-5
    assert wrong.count("BEYOND ITS BOUND") == 5
    assert re.search(r"^5 models published in \d+ s", wrong, re.MULTILINE)
