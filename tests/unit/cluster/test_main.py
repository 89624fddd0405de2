"""`make e2e-cluster` where no cluster can be made: the run must not count as a success."""

import subprocess
import sys

SKIPPED = 77

WITHOUT_ENVOY = """
import sys
from tests.cluster import __main__ as command
command.why_no_cluster = lambda: "envoy is not installed"
sys.exit(command.main())
"""


def test_a_run_that_is_skipped_says_why_and_is_no_success() -> None:
    # In a process of its own: clients that others wrote have messages of the same names as ours.
    argv = (sys.executable, "-c", WITHOUT_ENVOY)
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == SKIPPED, done.stderr
    assert "skipped" in done.stdout
    assert "envoy is not installed" in done.stdout
