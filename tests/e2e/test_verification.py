"""Verifying a version on the machine of a running server, in both shapes."""

import json
import subprocess
import sys
from pathlib import Path

from tests.fixtures.servers import ServerProcess
from tests.fixtures.split_servers import SplitServer


def test_a_server_verifies_what_it_serves(server: ServerProcess, store: Path) -> None:
    # A process of its own: tritonclient's messages, which others here use, are called the same.
    done = subprocess.run(
        [sys.executable, "-m", "flambeau", "verify", "linear", "1", "--json", "--on", server.grpc],
        capture_output=True,
        text=True,
        timeout=60,
    )
    if isinstance(server, SplitServer):
        assert done.returncode == 1
        assert "this server is a gateway and runs no models" in done.stderr
        return
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert [(one["artifact"], one["outcome"]) for one in document["artifacts"]] == [
        ("onnx", "passed")
    ]
    (recorded,) = (store / "linear" / "certificates" / "1").iterdir()
    assert json.loads(recorded.read_bytes()) == document
    log = server.wait_for_log(message="version verified")
    assert (log["model"], log["version"], log["holds"]) == ("linear", 1, True)
