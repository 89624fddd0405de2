"""Settings of logs and traces, shared memory, and metrics under Triton's names."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.rest_calls import call
from tests.fixtures import onnx_models
from tests.fixtures.administration_calls import settings_of, statistics, triton_metrics
from tests.fixtures.redis_servers import redis_process, until_true
from tests.fixtures.servers import ServerProcess, running_processes, running_server
from tests.fixtures.split_servers import running_gateway, running_worker
from tests.fixtures.triton_client import TritonClient, TritonError


@pytest.fixture(scope="module", params=[running_server, running_processes])
def quiet(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a server without traces, whose logs tests change, with Triton's metrics."""
    store = tmp_path_factory.mktemp("quiet")
    onnx_models.publish(str(store), "linear", onnx_models.linear(2.0))
    with request.param(store, triton_metrics=True) as server:
        server.wait_until_read_through()
        yield server


@pytest.fixture
def setter(kind: str, quiet: ServerProcess) -> Iterator[TritonClient]:
    with TritonClient(kind, quiet.http if kind == "http" else quiet.grpc) as client:
        yield client


def test_settings_of_logs(setter: TritonClient, quiet: ServerProcess) -> None:
    def now() -> tuple[bool, bool, int]:
        found = settings_of(setter.call("get_log_settings"))
        assert found["log_error"] is True
        assert found["log_format"] == "ISO8601"
        verbose = int(found["log_verbose_level"] or 0)
        return bool(found["log_info"]), bool(found["log_warning"]), verbose

    assert now() == (True, True, 0)
    for change, expected in (
        ({"log_verbose_level": 1}, (True, True, 1)),
        ({"log_verbose_level": 0}, (True, True, 0)),
        ({"log_info": False}, (False, True, 0)),
        ({"log_info": False, "log_warning": False}, (False, False, 0)),
        ({"log_info": True, "log_warning": True, "log_format": "ISO8601"}, (True, True, 0)),
    ):
        setter.call("update_log_settings", change)
        assert now() == expected
        # The other edge processes are told behind the answer.
        until_true(
            lambda wanted=expected[0]: all(  # type: ignore[misc]
                call(quiet, "GET", "/v2/logging").json()["log_info"] == wanted for _ in range(4)
            )
        )


def test_settings_reach_other_gateways_and_the_workers(tmp_path: Path) -> None:
    versions = count(2)
    onnx_models.publish(str(tmp_path), "linear", onnx_models.linear(1.0))
    with (
        redis_process() as redis,
        running_worker(tmp_path, redis.url, store_poll_interval_s=0.05) as worker,
        running_gateway(redis.url) as first,
        running_gateway(redis.url) as second,
    ):

        def is_told(server: ServerProcess, *, info: bool) -> bool:
            return bool(call(server, "GET", "/v2/logging").json()["log_info"] is info)

        def worker_logs_no_more() -> bool:
            """Returns True if the worker loads a version without a line of its logs."""
            before, version = len(worker.errors.all()), next(versions)
            onnx_models.publish(str(tmp_path), "linear", onnx_models.linear(2.0))
            path = f"/v2/models/linear/versions/{version}"
            until_true(lambda: call(second, "GET", path).status == 200)
            return len(worker.errors.all()) == before

        assert not worker_logs_no_more()
        reply = call(first, "POST", "/v2/logging", b'{"log_info":false,"log_warning":false}')
        assert (reply.status, reply.json()["log_info"]) == (200, False)
        until_true(lambda: is_told(second, info=False))
        until_true(worker_logs_no_more)
        body = b'{"log_info":true,"log_warning":true,"log_verbose_level":1}'
        assert call(second, "POST", "/v2/logging", body).status == 200
        with running_gateway(redis.url) as third:
            until_true(lambda: call(third, "GET", "/v2/logging").json()["log_verbose_level"] == 1)


def test_settings_of_traces(setter: TritonClient) -> None:
    found = settings_of(setter.call("get_trace_settings"))
    levels = found["trace_level"]
    assert levels == ["OFF"]
    assert found["trace_mode"] in ("opentelemetry", ["opentelemetry"])
    setter.call("get_trace_settings", "linear")
    setter.call("update_trace_settings", settings={"trace_level": ["OFF"]})
    with pytest.raises(TritonError, match="without trace_endpoint"):
        setter.call("update_trace_settings", settings={"trace_level": ["TIMESTAMPS"]})
    with pytest.raises(TritonError, match="is not served"):
        setter.call("get_trace_settings", "nowhere")


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("logging", b'{"log_file":"x"}', 501, "log file location can not be updated"),
        ("logging", b'{"log_file":""}', 200, ""),
        ("logging", b'{"log_error":false}', 501, "always logged"),
        ("logging", b'{"log_format":"default"}', 501, "'ISO8601'"),
        ("logging", b'{"log_info":"x"}', 400, "true or false"),
        ("logging", b'{"log_info":true,"log_warning":false}', 400, "thresholds"),
        ("logging", b'{"log_verbose_level":-1}', 400, "whole number"),
        ("logging", b'{"log_verbose_level":true}', 400, "whole number"),
        ("logging", b'{"log_verbose_level":1e400}', 400, ""),
        ("logging", b'{"log_verbose_level":{"a":[]}}', 400, "whole number"),
        ("logging", b'{"foo":1}', 400, "no logging setting 'foo'"),
        ("logging", b"[1]", 400, "give an object"),
        ("logging", b"{", 400, "not JSON"),
        ("logging", b"", 200, ""),
        ("trace/setting", b'{"trace_rate":"100"}', 200, ""),
        ("trace/setting", b'{"trace_rate":100}', 400, "give text"),
        ("trace/setting", b'{"trace_rate":"0"}', 400, "from 1 to"),
        ("trace/setting", b'{"trace_rate":"1e9"}', 400, "whole number"),
        ("trace/setting", '{"trace_rate":"¹"}'.encode(), 400, "whole number"),
        ("trace/setting", b'{"trace_rate":null}', 200, ""),
        ("trace/setting", b'{"trace_level":["TENSORS"]}', 501, "'TENSORS'"),
        ("trace/setting", b'{"trace_level":["ZZ"]}', 400, "'ZZ' is unknown"),
        ("trace/setting", b'{"trace_level":[1]}', 400, "list of texts"),
        ("trace/setting", b'{"trace_count":"5"}', 501, "'-1'"),
        ("trace/setting", b'{"trace_file":"a"}', 501, "trace file location can not be updated"),
        ("trace/setting", b'{"trace_mode":"triton"}', 501, "'opentelemetry'"),
        ("trace/setting", b'{"foo":"1"}', 400, "no trace setting 'foo'"),
        ("models/linear/trace/setting", b'{"trace_rate":"5"}', 501, "whole server"),
        ("models/linear/trace/setting", b"", 200, ""),
        ("models/nowhere/trace/setting", b"", 404, "is not served"),
    ],
)
def test_settings_that_are_not_taken(
    quiet: ServerProcess, path: str, body: bytes, status: int, words: str
) -> None:
    reply = call(quiet, "POST", f"/v2/{path}", body)
    assert reply.status == status, reply.body
    assert words in (reply.error() if status >= 400 else "")
    assert call(quiet, "GET", "/v2/logging").json()["log_info"] is True


def test_a_refused_change_of_traces_changes_nothing(quiet: ServerProcess) -> None:
    before = call(quiet, "GET", "/v2/trace/setting").json()
    body = b'{"trace_level":["TIMESTAMPS"],"trace_rate":"10"}'
    assert call(quiet, "POST", "/v2/trace/setting", body).status == 501
    assert call(quiet, "GET", "/v2/trace/setting").json() == before


def test_shared_memory(setter: TritonClient, kind: str) -> None:
    unimplemented = "501" if kind == "http" else "StatusCode.UNIMPLEMENTED"
    for name in ("system", "cuda"):
        status = setter.call(f"get_{name}_shared_memory_status")
        assert status in ([], {})
        setter.call(f"unregister_{name}_shared_memory")
        setter.call(f"unregister_{name}_shared_memory", "r")
        with pytest.raises(TritonError, match=f"Unable to find {name} shared memory region: 'r'"):
            setter.call(f"get_{name}_shared_memory_status", "r")
    with pytest.raises(TritonError, match="takes no tensors from shared memory") as caught:
        setter.call("register_system_shared_memory", "r", "/x", 10)
    assert caught.value.status == unimplemented
    with pytest.raises(TritonError, match="takes no tensors from shared memory") as caught:
        setter.call("register_cuda_shared_memory", "r", b"aGVsbG8=", 0, 10)
    assert caught.value.status == unimplemented


def test_metrics_under_tritons_names(quiet: ServerProcess) -> None:
    body = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[3,4],"data":[%b]}]}' % (
        b",".join([b"1"] * 12)
    )
    before = triton_metrics(quiet)
    for _ in range(3):
        assert call(quiet, "POST", "/v2/models/linear/infer", body).status == 200
    assert call(quiet, "POST", "/v2/models/linear/infer", b"{").status == 400
    after = triton_metrics(quiet)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    labels = 'model="linear",version="1"'
    assert grown(f"nv_inference_request_success{{{labels}}}") == 3
    assert grown('nv_inference_request_failure{model="linear",reason="OTHER",version="1"}') == 1
    assert grown(f"nv_inference_count{{{labels}}}") == 9
    assert grown(f"nv_inference_exec_count{{{labels}}}") == 3
    for part in ("request", "queue", "compute_infer"):
        assert grown(f"nv_inference_{part}_duration_us{{{labels}}}") > 0
    assert f"nv_inference_pending_request_count{{{labels}}}" in after
    with TritonClient("http", quiet.http) as client:
        (found,) = statistics(client, "linear")
    assert after[f"nv_inference_count{{{labels}}}"] == found["inference_count"]
    text = quiet.metrics_text()
    assert f"flambeau_batch_size_sum{{{labels}}} {found['inference_count']}.0" in text
    assert f"flambeau_batch_size_count{{{labels}}} {found['execution_count']}.0" in text


def test_metrics_under_tritons_names_are_off_by_default(server: ServerProcess) -> None:
    assert "nv_inference" not in server.metrics_text()


def test_a_rate_that_is_kept_for_later_is_that_of_all_processes(quiet: ServerProcess) -> None:
    def rates() -> set[str]:
        found = (call(quiet, "GET", "/v2/trace/setting").json() for _ in range(8))
        return {one["trace_rate"] for one in found}

    body = b'{"trace_rate":"7"}'
    assert call(quiet, "POST", "/v2/trace/setting", body).status == 200
    until_true(lambda: rates() == {"7"})
