"""The fastest artifact on this machine is measured during serving, without effect on clients."""

import threading
from pathlib import Path

from tests.e2e.rest_calls import call, infer, linear_input
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.servers import ServerProcess, running_server

ROW = [1.0, 2.0, 3.0, 4.0]


def artifact_of(server: ServerProcess) -> str:
    return str(call(server, "GET", "/v2/models/linear").json()["properties"]["artifact"])


def test_a_version_goes_over_to_the_fastest_artifact_without_a_failed_request(
    tmp_path: Path,
) -> None:
    """The manifest says that the slow one is the fastest: it serves first."""
    publish(str(tmp_path / "store"), "linear", linear(2, layers=60), linear(2))
    choices = tmp_path / "choices.json"
    settings = {"choose_artifact_budget_s": 300, "choice_file": str(choices)}
    done, statuses = threading.Event(), []
    with running_server(tmp_path / "store", **settings) as server:
        assert artifact_of(server) == "onnx"

        def ask() -> None:
            while not done.is_set():
                reply = infer(server, "linear", linear_input(ROW))
                right = reply.status == 200 and reply.outputs() == {"y": [2, 4, 6, 8]}
                statuses.append(reply.status if right else -reply.status)

        callers = [threading.Thread(target=ask) for _ in range(4)]
        for caller in callers:
            caller.start()
        try:
            log = server.wait_for_log(timeout_s=120, message="artifact chosen")
            seen = len(statuses)
            while len(statuses) < seen + 20:
                done.wait(0.01)
        finally:
            done.set()
            for caller in callers:
                caller.join()
        assert set(statuses) == {200}
        assert (log["artifact"], log["exchanged"], log["remembered"]) == ("onnx-1", True, False)
        assert log["row_ms"]["onnx-1"] < log["row_ms"]["onnx"]
        assert artifact_of(server) == "onnx-1"
    with running_server(tmp_path / "store", **settings) as server:
        assert artifact_of(server) == "onnx-1"
