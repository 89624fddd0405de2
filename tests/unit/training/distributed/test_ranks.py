"""The end of a rank's process."""

import subprocess
import sys

PROGRAM = """
import atexit, os
from training.distributed.ranks import exit_rank
atexit.register(os.abort)  # finalization would call it
print("all is written")
exit_rank(3)
"""


def test_a_rank_exits_with_its_output_and_without_finalization() -> None:
    found = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=100, check=False
    )
    assert (found.returncode, found.stdout) == (3, "all is written\n")
