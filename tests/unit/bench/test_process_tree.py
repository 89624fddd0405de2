"""A tree of real processes: measured as a whole, and ended as a whole."""

import subprocess
import sys

from bench.peers.process_tree import cpu_seconds, end_tree, parse_stat, resident_mebibytes, tree_of

STAT = (
    "4711 (a name) with (signs) S 17 4711 4700 0 -1 4194560 900 0 0 0 "
    "11 22 33 44 20 0 1 0 987654 4096 1 2 3 4"
)
# A parent that ignores SIGTERM, a child in a session of its own, and a grandchild.
STUBBORN = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = "import sys; print('up', flush=True); sys.stdin.read()"
child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}])"
subprocess.run([sys.executable, "-c", child], start_new_session=True)
"""


def test_a_line_of_stat_whose_name_holds_signs() -> None:
    state = parse_stat(STAT)
    assert (state.pid, state.parent, state.session) == (4711, 17, 4700)
    assert state.ticks == 11 + 22 + 33 + 44
    assert state.started == 987654
    assert not state.ended
    assert parse_stat(STAT.replace(" S ", " Z ")).ended


def test_a_tree_is_measured_and_ended_to_the_last_process() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", STUBBORN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process, process.stdin, process.stdout:
        assert process.stdout.readline() == b"up\n"
        members = tree_of(process.pid)
        assert len(members) == 3
        assert cpu_seconds(process.pid) > 0
        assert resident_mebibytes(process.pid) > 3
        end_tree(process.pid, patience_s=0.1)
        # The pipe ends only when all three have let go of it.
        assert process.stdout.read() == b""
    assert tree_of(process.pid) == []
