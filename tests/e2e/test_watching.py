"""Observability of a server: metrics for Prometheus, logs as JSON lines."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.grpc_calls import linear_request
from tests.e2e.rest_calls import call, infer, infer_path, linear_input
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

ROW = [1.0, 2.0, 3.0, 4.0]
LANE = {"model", "version"}

FAMILIES: dict[str, tuple[str, set[str]]] = {
    "flambeau_requests": ("counter", LANE | {"protocol", "code"}),
    "flambeau_degraded_requests": ("counter", LANE),
    "flambeau_refusals": ("counter", {"reason"}),
    "flambeau_request_duration_seconds": ("histogram", LANE | {"protocol"}),
    "flambeau_queue_duration_seconds": ("histogram", LANE),
    "flambeau_execution_duration_seconds": ("histogram", LANE),
    "flambeau_batch_size": ("histogram", LANE),
    "flambeau_loop_batches": ("counter", LANE),
    "flambeau_dropped_requests": ("counter", LANE | {"reason"}),
    "flambeau_mirrored_pairs": ("counter", LANE | {"result"}),
    "flambeau_dropped_mirrors": ("counter", LANE | {"reason"}),
    "flambeau_drawn_fallbacks": ("counter", LANE | {"reason"}),
    "flambeau_worker_restarts": ("counter", LANE | {"reason"}),
    "flambeau_open_sequences": ("gauge", LANE),
    "flambeau_ended_sequences": ("counter", LANE | {"reason"}),
    "flambeau_event_loop_lag_seconds": ("histogram", set()),
    "flambeau_model_memory_bytes": ("gauge", LANE),
    "flambeau_in_flight_requests": ("gauge", set()),
    "flambeau_link_bytes": ("gauge", set()),
    "flambeau_queue_depth": ("gauge", LANE),
    "flambeau_model_ready": ("gauge", LANE),
    "flambeau_model_load_duration_seconds": ("histogram", LANE),
    "flambeau_stream_waiting_requests": ("gauge", LANE),
    "flambeau_stream_taken_requests": ("gauge", LANE),
    "flambeau_stream_oldest_age_seconds": ("gauge", LANE),
    "flambeau_waiting_jobs": ("gauge", LANE),
    "flambeau_running_jobs": ("gauge", LANE),
    "flambeau_failed_loads": ("counter", LANE),
    "flambeau_failed_verifications": ("counter", LANE),
    "flambeau_dead_letters": ("counter", LANE),
    "flambeau_finished_jobs": ("counter", LANE | {"state"}),
    "flambeau_fleet_workers": ("gauge", set()),
    "flambeau_lost_workers": ("counter", set()),
    "flambeau_spans": ("counter", {"outcome"}),
    "flambeau_payload_samples": ("counter", LANE),
    "flambeau_dropped_payload_samples": ("counter", {"reason"}),
    "flambeau_tls_certificate_not_after_timestamp_seconds": ("gauge", {"use"}),
    "flambeau_tls_reloads": ("counter", {"outcome"}),
    "flambeau_tls_handshake_failures": ("counter", set()),
    "flambeau_http2_floods": ("counter", {"reason"}),
    "flambeau_buffered_bytes": ("gauge", set()),
    "flambeau_access_refusals": ("counter", {"reason"}),
    "flambeau_access_reloads": ("counter", {"source", "outcome"}),
    "flambeau_access_source_stale": ("gauge", {"source"}),
    "flambeau_rollout_step": ("gauge", LANE),
    "flambeau_rollout_moves": ("counter", {"model", "result"}),
    "flambeau_served_from_cache": ("gauge", set()),
    "flambeau_store_away": ("gauge", set()),
    "flambeau_store_cache_reads": ("counter", {"outcome"}),
    "flambeau_build_info": ("gauge", {"version", "python"}),
}
"""Type and labels of every metric of ours."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Runs a server for this module only, so that no other requests are counted."""
    store = tmp_path_factory.mktemp("watched")
    publish(str(store), "linear", linear(2))
    publish(str(store), "quiet", linear(2))
    wrong = {"y": np.full((8, 4), 1000, np.float32)}
    publish(str(store), "refused", linear(), golden_outputs=wrong)
    with running_server(store, access_log=True) as server:
        yield server


@pytest.fixture(scope="module")
def stub(server: ServerProcess) -> Iterator[Any]:
    with grpc.insecure_channel(server.grpc) as channel:
        yield GRPCInferenceServiceStub(channel)


def ask(server: ServerProcess, stub: Any) -> None:
    """Sends three valid requests, 1 + 2 over REST and 4 rows over gRPC, and two invalid ones."""
    for count in (1, 2):
        assert infer(server, "linear", linear_input(*[ROW] * count)).status == 200
    assert infer(server, "linear", linear_input(ROW), outputs=[{"name": "z"}]).status == 400
    stub.ModelInfer(linear_request(*[ROW] * 4))
    with pytest.raises(grpc.RpcError):
        stub.ModelInfer(linear_request(*[ROW] * 65))


def test_metrics_have_their_names_types_and_labels(server: ServerProcess, stub: Any) -> None:
    ask(server, stub)
    families = server.metric_families()
    ours = {name: family for name, family in families.items() if name.startswith("flambeau_")}
    assert set(ours) == set(FAMILIES)
    for name, (kind, labels) in FAMILIES.items():
        assert ours[name].type == kind
        assert ours[name].documentation
        for sample in ours[name].samples:
            assert set(sample.labels) - {"le"} == labels
    assert {"process_resident_memory_bytes", "process_open_fds", "python_info"} <= set(families)


def test_requests_are_counted_by_model_version_protocol_and_code(
    server: ServerProcess, stub: Any
) -> None:
    def counted() -> dict[tuple[str, str], float]:
        return {
            (protocol, code): server.metric(
                "flambeau_requests_total",
                model="linear", version="1", protocol=protocol, code=code,
            )
            for protocol, code in (
                ("rest", "200"), ("rest", "400"), ("grpc", "OK"), ("grpc", "INVALID_ARGUMENT"),
            )
        }  # fmt: skip

    before = counted()
    ask(server, stub)
    after = counted()
    assert [after[key] - before[key] for key in before] == [2, 1, 1, 1]


def test_histograms_count_each_request_and_batch_once(server: ServerProcess, stub: Any) -> None:
    samples = (
        ("flambeau_request_duration_seconds_count", 5),
        ("flambeau_queue_duration_seconds_count", 3),
        ("flambeau_execution_duration_seconds_count", 3),
        ("flambeau_batch_size_count", 3),
        ("flambeau_batch_size_sum", 7),
    )
    before = [server.metric(name, model="linear") for name, _ in samples]
    seconds = server.metric("flambeau_execution_duration_seconds_sum", model="linear")
    ask(server, stub)
    after = [server.metric(name, model="linear") for name, _ in samples]
    growth = [int(new - old) for new, old in zip(after, before, strict=True)]
    assert growth == [expected for _, expected in samples]
    spent = server.metric("flambeau_execution_duration_seconds_sum", model="linear") - seconds
    assert 0 < spent < 10


def test_gauges(server: ServerProcess) -> None:
    assert server.metric("flambeau_in_flight_requests") == 0
    assert server.metric("flambeau_queue_depth", model="linear") == 0
    for model, ready, loads in (("linear", 1, 1), ("quiet", 1, 1), ("refused", 0, 0)):
        assert server.metric("flambeau_model_ready", model=model, version="1") == ready
        load_count = server.metric("flambeau_model_load_duration_seconds_count", model=model)
        assert load_count == loads


def test_event_loop_lag_is_sampled(server: ServerProcess) -> None:
    sampled = server.metric("flambeau_event_loop_lag_seconds_count")
    server.wait_until_metric(lambda found: found > sampled, "flambeau_event_loop_lag_seconds_count")
    assert server.metric("flambeau_event_loop_lag_seconds_sum") > 0


def test_memory_of_a_loaded_version_is_measured(server: ServerProcess) -> None:
    for model in ("linear", "quiet"):
        assert server.metric("flambeau_model_memory_bytes", model=model, version="1") > 0
    memory = server.metric_families()["flambeau_model_memory_bytes"]
    assert {sample.labels["model"] for sample in memory.samples} == {"linear", "quiet"}


def test_build_info(server: ServerProcess) -> None:
    version = call(server, "GET", "/v2").json()["version"]
    assert server.metric("flambeau_build_info", version=version) == 1


@pytest.mark.parametrize(("model", "version"), [("made-up", ""), ("linear", "99")])
def test_callers_cannot_invent_label_values(
    server: ServerProcess, model: str, version: str
) -> None:
    before = server.metric("flambeau_requests_total", model="unknown", version="unknown")
    assert infer(server, model, linear_input(ROW), version=version).status == 404
    after = server.metric("flambeau_requests_total", model="unknown", version="unknown")
    assert after == before + 1
    text = server.metrics_text()
    assert "made-up" not in text
    assert '"99"' not in text


def test_promtool_finds_nothing_wrong(server: ServerProcess, stub: Any) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed here (it comes with Prometheus)")
    ask(server, stub)
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=server.metrics_text(),
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_metrics_are_behind_their_own_port_only(server: ServerProcess) -> None:
    assert call(server, "GET", "/metrics").status == 404


def test_every_answered_request_is_logged(server: ServerProcess, stub: Any) -> None:
    infer(server, "linear", linear_input(ROW), id="over-rest")
    stub.ModelInfer(linear_request(ROW, ROW, id="over-grpc"))
    for request_id, protocol, code, rows in (
        ("over-rest", "rest", "200", 1), ("over-grpc", "grpc", "OK", 2),
    ):  # fmt: skip
        log = server.wait_for_log(request_id=request_id)
        assert log.pop("duration_ms") > 0
        assert re.fullmatch(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", log.pop("time"))
        assert log == {
            "level": "info",
            "logger": "flambeau.request",
            "message": "request",
            "request_id": request_id,
            "protocol": protocol,
            "model": "linear",
            "version": "1",
            "code": code,
            "batch_rows": rows,
        }


def test_request_id_of_the_reply_is_in_the_log(server: ServerProcess, stub: Any) -> None:
    reply = infer(server, "linear", linear_input(ROW))
    assert server.wait_for_log(request_id=reply.headers["x-request-id"])["protocol"] == "rest"
    _, over_grpc = stub.ModelInfer.with_call(linear_request(ROW))
    (given,) = [m.value for m in over_grpc.trailing_metadata() if m.key == "x-request-id"]
    assert server.wait_for_log(request_id=given)["protocol"] == "grpc"


def test_failed_request_is_logged_with_its_reason(server: ServerProcess, stub: Any) -> None:
    reply = call(server, "POST", infer_path("linear"), b"nonsense", {"x-request-id": "bad-rest"})
    log = server.wait_for_log(request_id="bad-rest")
    assert (log["level"], log["message"], log["code"]) == ("warning", "request failed", "400")
    assert log["error"] == reply.error()
    with pytest.raises(grpc.RpcError) as caught:
        stub.ModelInfer(linear_request(ROW[:3], id="bad-grpc"))
    log = server.wait_for_log(request_id="bad-grpc")
    assert (log["level"], log["code"]) == ("warning", "INVALID_ARGUMENT")
    assert log["error"] == caught.value.details()


def test_no_log_line_can_be_forged(server: ServerProcess) -> None:
    forged = 'x\n{"level":"error","message":"forged"}'
    infer(server, "linear", linear_input(ROW), id=forged)
    infer(server, forged.replace("\n", "%0A").replace(" ", "%20"), linear_input(ROW))
    infer(server, "linear", linear_input(ROW), id="after-the-forgery")
    server.wait_for_log(request_id="after-the-forgery")
    assert not [log for log in server.logs() if log["message"] == "forged"]


def test_load_and_refusal_are_logged(server: ServerProcess) -> None:
    ready = server.wait_for_log(message="version ready", model="linear", version=1)
    assert (ready["artifact"], ready["golden_rows"], ready["agreement"]) == ("onnx", 8, 1)
    refused = server.wait_for_log(message="version refused", model="refused", version=1)
    assert (refused["level"], "golden" in refused["reason"]) == ("error", True)


def test_only_failures_are_logged_unless_asked(tmp_path: Path) -> None:
    """`access_log` is off: a line for each request costs as much as a small request."""
    publish(str(tmp_path), "linear", linear())
    with running_server(tmp_path) as server:
        assert infer(server, "linear", linear_input(ROW), id="good").status == 200
        call(server, "POST", infer_path("linear"), b"", {"x-request-id": "bad"})
        server.wait_for_log(request_id="bad")
        assert [log for log in server.logs() if log.get("request_id") == "good"] == []


def test_log_level(tmp_path: Path) -> None:
    publish(str(tmp_path), "linear", linear())
    with running_server(tmp_path, log_level="warning") as server:
        call(server, "POST", infer_path("linear"), b"", {"x-request-id": "bad"})
        server.wait_for_log(request_id="bad")
        assert {log["level"] for log in server.logs()} == {"warning"}
