"""Verifying a version on the machine of a running server, in both shapes."""

import json
import subprocess
import sys
from pathlib import Path

from tests.fixtures.servers import ServerProcess


def test_a_server_verifies_what_it_serves(server: ServerProcess, store: Path) -> None:
    # In a split server the worker verifies, on request through Redis.
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", "verify", "linear", "1", "--json", "--on", server.grpc],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(one["artifact"], one["outcome"]) for one in document["artifacts"]] == [
        ("onnx", "passed")
    ]
    (recorded,) = (store / "linear" / "certificates" / "1").iterdir()
    assert json.loads(recorded.read_bytes()) == document
    log = server.wait_for_log(message="version verified")
    assert (log["model"], log["version"], log["holds"]) == ("linear", 1, True)
