"""schemathesis, unchanged, over our OpenAPI document: requests made from its schemas.

It runs in the environment of clients, like any other program of others that tests drive.
"""

import subprocess
import tempfile
from pathlib import Path

from tests.fixtures.client_environment import PYTHON
from tests.fixtures.servers import ServerProcess

CHECKS = (
    "not_a_server_error", "status_code_conformance", "content_type_conformance",
    "response_schema_conformance",
)  # fmt: skip
SETTINGS = """
[[operations]]
include-path-regex = "^/v2/(repository|logging|trace|models/[^/]+/trace)|^/v1/"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501, 503]

[[operations]]
include-path-regex = "^/v2/models/(count|say)/.*infer$"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 501, 503, 504]

[[operations]]
include-path-regex = "^/v2/models/.+/(infer|generate|generate_stream)$"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", 503, 504]
"""
"""Where 501, 503 and 504 are deliberate: values that cannot be set, models that callers do not
load, deadlines of a millisecond, one answer of a model that gives several."""


def run(server: ServerProcess, seed: int, seconds: float) -> str:
    """Runs it for some time; returns what it complains of, empty for nothing.

    Raises:
        FileNotFoundError: it is not installed; `make clients` does that.
    """
    program = PYTHON.with_name("schemathesis")
    if not program.exists():
        raise FileNotFoundError(f"{program} is missing; make it with: make clients")
    command = [
        str(program), "run", f"http://{server.http}/openapi.json", "--no-color",
        "--checks", ",".join(CHECKS), "--seed", str(seed), "--max-time", str(int(seconds) or 1),
        "--continue-on-failure", "--phases", "examples,coverage,fuzzing",
    ]  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="schemathesis-") as folder:  # for what it writes
        Path(folder, "schemathesis.toml").write_text(SETTINGS)
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            timeout=seconds + 300, check=False,
        )  # fmt: skip
    return "" if done.returncode == 0 else done.stdout
