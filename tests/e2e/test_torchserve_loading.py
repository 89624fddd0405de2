"""A server with TorchServe's API while workers start, and where a default version has none."""

from pathlib import Path

from tests.fixtures.model_archives import write_archive
from tests.fixtures.torchserve_server import running_torchserve

SLOW = """
    import time

    time.sleep(4)  # as an import of a large library

    def handle(data, context):
        return ["answered" for _ in data or ()]
"""

ECHO = """
    def handle(data, context):
        return ["echoed" for _ in data or ()]
"""


def test_requests_wait_for_a_load_and_a_stop_does_not(tmp_path: Path) -> None:
    (tmp_path / "archives").mkdir()
    write_archive(tmp_path / "archives", SLOW)
    options = ("--disable-token-auth", "--enable-model-api")
    with running_torchserve(tmp_path, *options) as server:
        added = server.manage("POST", "/models?url=m.mar&initial_workers=1&synchronous=false")
        assert added.status == 202
        assert server.call("GET", "/ping").document == {"status": "Healthy"}
        assert server.predict("m").body == b"answered"
        assert server.manage("PUT", "/models/m?min_worker=2").status == 202
        assert server.call("GET", "/ping").status == 200
        assert server.predict("m").body == b"answered", "the present worker does"


def test_default_version_without_workers_stays_the_default(tmp_path: Path) -> None:
    (tmp_path / "archives").mkdir()
    for version in ("1.0", "2.0"):
        write_archive(tmp_path / "archives", ECHO, name=f"m-{version}", modelVersion=version)
    options = ("--disable-token-auth", "--enable-model-api")
    with running_torchserve(tmp_path, *options) as server:
        for version, workers in (("1.0", 0), ("2.0", 1)):
            asked = f"url=m-{version}.mar&model_name=m&initial_workers={workers}"
            assert server.manage("POST", f"/models?{asked}&synchronous=true").status == 200
        assert server.predict("m/2.0").body == b"echoed"
        assert server.predict("m").status == 503
        assert server.manage("DELETE", "/models/m/1.0").status == 403
        assert server.manage("DELETE", "/models/m/2.0").status == 200
        assert server.manage("DELETE", "/models/m").status == 200
