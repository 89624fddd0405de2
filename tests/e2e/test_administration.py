"""The calls beside inference, by tritonclient over HTTP and gRPC, in every shape of a server."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.store import ModelStore
from tests.e2e.conftest import SHAPES
from tests.e2e.rest_calls import call
from tests.fixtures import onnx_models
from tests.fixtures.servers import ServerProcess, running_processes, running_server
from tests.fixtures.triton_client import TritonClient, TritonError

KINDS = ("http", "grpc")


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def client(kind: str, server: ServerProcess) -> Iterator[TritonClient]:
    address = server.http if kind == "http" else server.grpc
    with TritonClient(kind, address) as client:
        yield client


def config_of(client: TritonClient, *names: str) -> dict[str, Any]:
    """Returns a configuration; gRPC's has a message around it."""
    found: dict[str, Any] = client.call("get_model_config", *names)
    config: dict[str, Any] = found.get("config", found)
    return config


def test_config(client: TritonClient) -> None:
    found = config_of(client, "linear", "1")
    assert (found["name"], found["max_batch_size"]) == ("linear", 8)
    (x,) = found["input"]
    assert (x["name"], x["data_type"], [int(size) for size in x["dims"]]) == ("x", "TYPE_FP32", [4])
    assert found["default_model_filename"].endswith(".onnx")
    assert "dynamic_batching" in found
    assert not found["model_transaction_policy"].get("decoupled", False)
    assert [group["kind"] for group in found["instance_group"]] == ["KIND_CPU"]
    assert list(map(int, found["version_policy"]["specific"]["versions"])) == [1, 2]


@pytest.mark.parametrize(
    ("names", "status", "words"),
    [
        (("nowhere",), ("404", "StatusCode.NOT_FOUND"), "model 'nowhere' is not served"),
        (("linear", "9"), ("404", "StatusCode.NOT_FOUND"), "no served version '9'"),
        (("refused",), ("503", "StatusCode.UNAVAILABLE"), "golden"),
    ],
)
def test_config_of_what_is_not_served(
    client: TritonClient, kind: str, names: tuple[str, ...], status: tuple[str, str], words: str
) -> None:
    with pytest.raises(TritonError) as caught:
        client.call("get_model_config", *names)
    assert words in caught.value.message
    assert caught.value.status == status[kind == "grpc"]


def statistics(client: TritonClient, *names: str) -> list[dict[str, Any]]:
    """Returns the statistics of versions; whole numbers are texts over gRPC, and 0 is left out."""
    found: dict[str, Any] = client.call("get_inference_statistics", *names)
    told: list[dict[str, Any]] = found.get("model_stats", [])
    return told


def number(found: dict[str, Any], *path: str) -> int:
    """Returns a whole number."""
    inside: Any = found
    for name in path:
        inside = inside.get(name, {})
    return int(inside or 0)


def until(is_so: Callable[[], bool]) -> None:
    """Asks until something is so: workers behind Redis tell their figures twice a second."""
    ends_at = time.monotonic() + 20
    while not is_so():
        assert time.monotonic() < ends_at, "it is never so"
        time.sleep(0.05)


def test_statistics_agree_with_requests_and_metrics(
    client: TritonClient, server: ServerProcess
) -> None:
    before: dict[str, Any] = {}

    def is_settled() -> bool:
        (found,) = statistics(client, "pair")
        before.update(found)
        counts = (number(found, "inference_stats", part, "count") for part in ("success", "queue"))
        return len({*counts}) == 1

    until(is_settled)
    x = np.ones((3, 4), np.float32)
    for _ in range(4):
        client.infer("pair", {"a": x, "b": x})
    with pytest.raises(TritonError):
        client.infer("pair", {"a": x})

    def grown(*path: str) -> int:
        return number(after, *path) - number(before, *path)

    after = before

    def has_arrived() -> bool:
        nonlocal after
        (after,) = statistics(client, "pair", "1")
        return grown("execution_count") >= 4

    until(has_arrived)
    assert grown("inference_stats", "success", "count") == 4
    assert grown("inference_stats", "fail", "count") == 1
    assert grown("inference_count") == 12
    assert grown("execution_count") == 4
    for part in ("queue", "compute_input", "compute_infer", "compute_output"):
        assert grown("inference_stats", part, "count") == 4, part
    spent = [
        grown("inference_stats", part, "ns")
        for part in ("queue", "compute_input", "compute_infer", "compute_output")
    ]
    assert all(spent[1:])
    assert sum(spent) <= grown("inference_stats", "success", "ns")
    sizes = {number(one, "batch_size"): one for one in after["batch_stats"]}
    assert number(sizes[3], "compute_infer", "count") >= 4
    assert abs(number(after, "last_inference") / 1000 - time.time()) < 60


@pytest.mark.parametrize(
    ("names", "status", "words"),
    [
        (("nowhere",), ("404", "StatusCode.NOT_FOUND"), "model 'nowhere' is not served"),
        (("linear", "9"), ("404", "StatusCode.NOT_FOUND"), "no served version '9'"),
        (("refused",), ("503", "StatusCode.UNAVAILABLE"), "golden"),
    ],
)
def test_statistics_of_what_is_not_served(
    client: TritonClient, kind: str, names: tuple[str, ...], status: tuple[str, str], words: str
) -> None:
    with pytest.raises(TritonError) as caught:
        client.call("get_inference_statistics", *names)
    assert words in caught.value.message
    assert caught.value.status == status[kind == "grpc"]


def test_statistics_of_all_models(client: TritonClient) -> None:
    found = [(one["name"], one["version"]) for one in statistics(client)]
    assert found == sorted(found)
    assert {("linear", "1"), ("linear", "2"), ("pair", "1")} <= set(found)
    assert "refused" not in dict(found)


def test_two_clients_see_the_same_statistics(server: ServerProcess) -> None:
    """Each connection may be at another edge process."""
    x = np.ones((1, 4), np.float32)
    clients = [TritonClient("http", server.http) for _ in range(6)]
    before = number(statistics(clients[0], "linear", "1")[0], "inference_stats", "success", "count")
    for client in clients:
        client.infer("linear", {"x": x}, model_version="1")
    for client in clients:
        (after,) = statistics(client, "linear", "1")
        assert number(after, "inference_stats", "success", "count") == before + len(clients)
        client.__exit__()


def index(client: TritonClient) -> list[tuple[str, str, str]]:
    """Returns the names, versions and states of the index."""
    found: Any = client.call("get_model_repository_index")
    models = found if isinstance(found, list) else found.get("models", [])
    return [(one["name"], one.get("version", ""), one.get("state", "")) for one in models]


def test_index(client: TritonClient) -> None:
    found = index(client)
    assert found == sorted(found)
    assert {
        ("linear", "1", "READY"),
        ("linear", "2", "READY"),
        ("refused", "1", "UNAVAILABLE"),
    } <= (set(found))


def test_models_that_follow_pointers_are_not_loaded_by_callers(
    client: TritonClient, kind: str
) -> None:
    for act in ("load_model", "unload_model"):
        with pytest.raises(TritonError) as caught:
            client.call(act, "linear")
        assert caught.value.message.startswith(
            "explicit model load / unload is not allowed if polling is enabled"
        )
        assert caught.value.status == ("503" if kind == "http" else "StatusCode.UNAVAILABLE")


@pytest.fixture(scope="module", params=[running_server, running_processes])
def explicit(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """Runs a server whose callers choose the models, of which one is there at the start."""
    store = tmp_path_factory.mktemp("explicit")
    for name in ("first", "second", "third"):
        onnx_models.publish(str(store), name, onnx_models.linear(2.0))
    wrong = {"y": np.full((8, 4), 1000, np.float32)}
    onnx_models.publish(str(store), "refused", onnx_models.linear(), golden_outputs=wrong)
    settings = {"model_control": "explicit", "models": ["first"]}
    with request.param(store, **settings) as server:
        server.wait_until_read_through()
        yield server


@pytest.fixture
def operator(kind: str, explicit: ServerProcess) -> Iterator[TritonClient]:
    address = explicit.http if kind == "http" else explicit.grpc
    with TritonClient(kind, address) as client:
        yield client


def test_callers_load_and_unload(operator: TritonClient) -> None:
    x = np.ones((1, 4), np.float32)
    unloaded = {(name, "", "UNAVAILABLE") for name in ("second", "third")}
    assert {("first", "1", "READY"), *unloaded} <= set(index(operator))
    with pytest.raises(TritonError, match="is not served"):
        operator.infer("second", {"x": x})
    for _ in range(2):
        operator.call("load_model", "second")
        assert ("second", "1", "READY") in index(operator)
        assert operator.call("is_model_ready", "second")
        operator.infer("second", {"x": x})
    for _ in range(2):
        operator.call("unload_model", "second")
        assert not operator.call("is_model_ready", "second")
        with pytest.raises(TritonError, match="is not served"):
            operator.infer("second", {"x": x})
    operator.infer("first", {"x": x})
    assert operator.call("is_server_ready")


@pytest.mark.parametrize(
    ("model", "status", "words"),
    [
        ("nowhere", ("404", "StatusCode.NOT_FOUND"), "failed to load 'nowhere'"),
        ("secnd", ("404", "StatusCode.NOT_FOUND"), "did you mean 'second'"),
        ("refused", ("500", "StatusCode.INTERNAL"), "golden"),
        ("", ("404", "StatusCode.NOT_FOUND"), ""),
        ("x" * 1000, ("404", "StatusCode.NOT_FOUND"), "failed to load 'x"),
    ],
)
def test_what_cannot_be_loaded(
    operator: TritonClient, kind: str, model: str, status: tuple[str, str], words: str
) -> None:
    with pytest.raises(TritonError) as caught:
        operator.call("load_model", model)
    assert words in caught.value.message
    assert len(caught.value.message) < 1000
    assert caught.value.status == status[kind == "grpc"]
    operator.call("unload_model", "refused")


@pytest.mark.parametrize("how", [{"config": "{}"}, {"config": "{}", "files": {"file:1/a": b"a"}}])
def test_no_configuration_is_taken(operator: TritonClient, kind: str, how: dict[str, Any]) -> None:
    with pytest.raises(TritonError) as caught:
        operator.call("load_model", "second", **how)
    assert "immutable" in caught.value.message
    assert caught.value.status == ("501" if kind == "http" else "StatusCode.UNIMPLEMENTED")
    assert not operator.call("is_model_ready", "second")


def test_a_storm_of_loads_and_unloads_fails_no_request_of_others(
    explicit: ServerProcess,
) -> None:
    x = np.ones((1, 4), np.float32)
    names = ["second", "third", "nowhere", "refused"]
    failures: list[str] = []

    def storm(number: int) -> None:
        with TritonClient("http", explicit.http) as client:
            for turn in range(12):
                act = ("load_model", "unload_model")[(number + turn) % 2]
                try:
                    client.call(act, names[(number + turn) % 4])
                except TritonError as error:
                    if error.status not in ("404", "500", "503"):
                        failures.append(str(error))

    with TritonClient("grpc", explicit.grpc) as healthy, ThreadPoolExecutor(8) as pool:
        storms = [pool.submit(storm, number) for number in range(8)]
        while not all(one.done() for one in storms):
            healthy.infer("first", {"x": x})
        for one in storms:
            one.result()
        assert failures == []
        for name in names:
            healthy.call("unload_model", name)
        assert [name for name, _, state in index(healthy) if state == "READY"] == ["first"]


def test_a_server_that_follows_nothing(tmp_path: Path) -> None:
    onnx_models.publish(str(tmp_path), "linear", onnx_models.linear(1.0))
    with running_server(tmp_path, model_control="none", store_poll_interval_s=0.05) as server:
        server.wait_until_read_through()
        onnx_models.publish(str(tmp_path), "linear", onnx_models.linear(2.0))
        onnx_models.publish(str(tmp_path), "other", onnx_models.linear(2.0))
        with TritonClient("http", server.http) as client:
            for _ in range(10):
                assert index(client) == [("linear", "1", "READY")]
                time.sleep(0.05)
            with pytest.raises(TritonError, match="polling is enabled"):
                client.call("load_model", "other")


@pytest.mark.parametrize(
    ("path", "body", "status", "words"),
    [
        ("index", b"{", 400, "not JSON"),
        ("index", b"[]", 400, "give an object"),
        ("index", b'{"ready":1}', 400, "true or false"),
        ("index", b'{"ready":true}', 200, ""),
        ("index", b" ", 200, ""),
        ("index", b"[" * 8000, 400, "not JSON"),
        ("index", b"{" + b",".join(b'"%d":1' % n for n in range(900)) + b"}", 400, "members"),
        ("index", b'{"ready":' + b" " * 9000 + b"true}", 413, ""),
        ("models/first/load", b'{"parameters":[1]}', 400, "give an object"),
        ("models/first/load", b'{"parameters":{"a":{}}}', 400, "give text"),
        ("models/first/load", b'{"parameters":{"a":1e999}}', 400, ""),
        ("models/first/load", b'{"parameters":{"a":18446744073709551615}}', 400, "give text"),
        ("models/first/load", b'{"parameters":{"foo":"bar"}}', 400, "unknown parameter 'foo'"),
        ("models/first/load", b'{"parameters":{"config":"{}"}}', 501, "'config'"),
        ("models/first/load", b'{"parameters":{"file:1/m":"aGk="}}', 501, "'file:1/m'"),
        ("models/first/load", b'{"parameters":null}', 200, ""),
        ("models/first/load", b"", 200, ""),
        ("models/second/unload", b'{"parameters":{"unload_dependents":"x"}}', 400, "true or false"),
        ("models/second/unload", b'{"parameters":{"unload_dependents":true}}', 200, ""),
        ("models/second/unload", b'{"parameters":{"x":true}}', 400, "'unload_dependents'"),
        ("models/%00/load", b"", 404, "failed to load"),
        ("models/..%2f..%2fetc/load", b"", 404, "failed to load"),
    ],
)
def test_bodies(explicit: ServerProcess, path: str, body: bytes, status: int, words: str) -> None:
    reply = call(explicit, "POST", f"/v2/repository/{path}", body)
    assert reply.status == status, reply.body
    assert words in (reply.error() if status >= 400 else "")


@pytest.fixture(scope="module", params=SHAPES)
def aliased(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[ServerProcess, ModelStore]]:
    """Runs a server of a model whose versions have aliases."""
    folder = tmp_path_factory.mktemp("aliased")
    store = ModelStore(str(folder))
    for scale in (1.0, 2.0, 3.0):
        onnx_models.publish(str(folder), "linear", onnx_models.linear(scale))
    store.promote("linear", 1)
    store.promote("linear", 2, "canary")
    with SHAPES[request.param](folder) as server:
        server.wait_until_read_through()
        yield server, store


def test_a_request_may_name_an_alias(kind: str, aliased: tuple[ServerProcess, ModelStore]) -> None:
    server, store = aliased
    x = np.ones((1, 4), np.float32)
    with TritonClient(kind, server.http if kind == "http" else server.grpc) as client:

        def version(alias: str) -> int:
            answer = client.infer("linear", {"x": x}, model_version=alias)
            assert answer.outputs["y"][0, 0] == float(answer.model_version)
            return int(answer.model_version)

        assert [version(name) for name in ("", "production", "canary", "3")] == [1, 1, 2, 3]
        assert client.call("is_model_ready", "linear", "canary")
        assert not client.call("is_model_ready", "linear", "staging")
        client.call("get_model_metadata", "linear", "canary")
        found = config_of(client, "linear", "canary")
        assert found["name"] == "linear"
        (told,) = statistics(client, "linear", "canary")
        assert told["version"] == "2"
        with pytest.raises(TritonError, match="no served version 'staging'"):
            client.infer("linear", {"x": x}, model_version="staging")
        for target in (3, 2):
            store.promote("linear", target, "canary")
            until(lambda target=target: version("canary") == target)  # type: ignore[misc]
        assert version("production") == 1


def test_a_label_is_an_alias(aliased: tuple[ServerProcess, ModelStore]) -> None:
    server, _ = aliased
    body = b'{"instances":[[1,1,1,1]]}'
    for label, scale in (("canary", 2), ("production", 1)):
        reply = call(server, "POST", f"/v1/models/linear/labels/{label}:predict", body)
        assert reply.json() == {"predictions": [[scale] * 4]}
        status = call(server, "GET", f"/v1/models/linear/labels/{label}").json()
        assert [one["version"] for one in status["model_version_status"]] == [str(scale)]


def settings_of(found: Any) -> dict[str, Any]:
    """Returns settings by name; gRPC has a message around each value, and leaves defaults out."""
    inside = found.get("settings", found)
    return {
        name: next(iter(value.values()), None) if isinstance(value, dict) else value
        for name, value in inside.items()
    }


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
        others = [call(quiet, "GET", "/v2/logging").json() for _ in range(4)]
        assert [one["log_info"] for one in others] == [expected[0]] * 4, "of another edge process"


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


def triton_metrics(server: ServerProcess) -> dict[str, float]:
    lines = [one for one in server.metrics_text().splitlines() if one.startswith("nv_")]
    return {name: float(value) for name, value in (one.rsplit(" ", 1) for one in lines)}


def test_metrics_under_tritons_names_are_off_by_default(server: ServerProcess) -> None:
    assert "nv_inference" not in server.metrics_text()


def test_extensions(client: TritonClient) -> None:
    found = client.call("get_server_metadata")["extensions"]
    assert {"model_configuration", "statistics", "model_repository", "logging", "trace"} <= (
        set(found)
    )
    assert not {"system_shared_memory", "cuda_shared_memory"} & set(found)
