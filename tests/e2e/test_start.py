"""Server startup, and its error messages."""

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.rest_calls import call, infer, linear_input
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.servers import FREE_PORTS, ROOT, START_TIMEOUT_S, running_server, serving


def failed_start(store: Path, *arguments: str, **settings: object) -> tuple[int, str, str]:
    """Returns exit code, standard output and standard error of a server that must not start."""
    ended = run_flambeau(*serving(store, *arguments, **settings), timeout_s=START_TIMEOUT_S)
    return ended.returncode, ended.stdout, ended.stderr


@pytest.fixture
def taken_port() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield int(listener.getsockname()[1])


@pytest.mark.parametrize("setting", ["http_port", "grpc_port", "metrics_port"])
def test_port_in_use_is_one_clear_line(tmp_path: Path, taken_port: int, setting: str) -> None:
    option = f"--{setting.replace('_', '-')}={taken_port}"
    code, output, errors = failed_start(tmp_path, *FREE_PORTS, option)
    assert (code, output) == (1, "")
    assert len(errors.splitlines()) == 1, errors
    assert f"cannot listen on port {taken_port} ({setting})" in errors


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("max_queue_dept", 3, "unknown key 'max_queue_dept' (did you mean 'max_queue_depth'?)"),
        ("colour", "red", "unknown key 'colour'"),
        ("threads", 0, "'threads' is 0"),
        ("threads", "many", "'threads' is 'many'"),
        ("http_port", 70_000, "'http_port' is 70000"),
        ("log_level", "loud", "'log_level' is 'loud'"),
        ("request_timeout_s", -1, "'request_timeout_s' is -1"),
        (
            "when_overloaded",
            "wait",
            "'when_overloaded' is 'wait': write 'refuse' or 'degrade'",
        ),
        ("api_keys_file", "missing.yaml", "api_keys_file missing.yaml: "),
        ("host", "0.0.0.0", "it requires no credentials. Give out keys (flambeau access add"),
    ],
)
def test_setting_that_is_unknown_or_bad(
    tmp_path: Path, name: str, value: object, message: str
) -> None:
    others = [port for port in FREE_PORTS if name.replace("_", "-") not in port]
    code, output, errors = failed_start(tmp_path, *others, **{name: value})
    assert (code, output) == (2, "")
    assert len(errors.splitlines()) == 1, errors
    assert message in errors


def test_no_trainer_is_open_to_strangers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "services.trainer", "--host", "0.0.0.0"]
    for option, code, why in (
        ((), 2, "it requires no credentials. Give out keys (flambeau access add"),
        (("--open-to-strangers", "true"), 2, "unknown option '--open-to-strangers'"),
    ):
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        ended = subprocess.run(
            [*command, *option], cwd=tmp_path, env=environment, capture_output=True, text=True,
            timeout=START_TIMEOUT_S,
        )  # fmt: skip
        assert ended.returncode == code
        assert why in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_setting_without_a_value(tmp_path: Path) -> None:
    code, _, errors = failed_start(tmp_path, *FREE_PORTS, "--set=threads")
    assert code == 2
    assert "NAME=VALUE" in errors


def test_store_that_cannot_be_one(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    code, output, errors = failed_start(file, *FREE_PORTS)
    assert (code, output) == (1, "")
    assert len(errors.splitlines()) == 1, errors
    assert f"cannot open the store '{file}'" in errors


def test_a_mistyped_store_is_told_the_nearest_folder(tmp_path: Path) -> None:
    publish(str(tmp_path / "model_store"), "linear", linear())
    with running_server(tmp_path / "modelstore") as server:
        near = f"(did you mean '{tmp_path / 'model_store'}'?)"
        assert any(one.startswith("warning: ") and near in one for one in server.output.all())
    with running_server(tmp_path / "model_store") as server:
        assert not any("warning" in line for line in server.output.all())


def test_empty_store_is_no_failure_and_fills_up(tmp_path: Path) -> None:
    store = tmp_path / "new"
    with running_server(store) as server:
        assert any("nothing to serve yet" in line for line in server.output.all())
        assert f"  store    {store}" in server.output.all()
        told = f"there was no folder {store}, so an empty store was created there"
        assert f"warning: {told}" in server.output.all()
        assert server.wait_for_log(message="store created")["reason"] == told
        (log,) = [log for log in server.logs() if log["message"] == "store"]
        assert (log["url"], log["is_new"]) == (str(store), True)
        assert call(server, "GET", "/v2/health/ready").status == 200
        assert infer(server, "linear", linear_input([1, 2, 3, 4])).status == 404
        publish(str(store), "linear", linear(2))
        server.wait_for_log(message="version live", model="linear")
        assert infer(server, "linear", linear_input([1, 2, 3, 4])).outputs() == {"y": [2, 4, 6, 8]}


def test_what_is_printed_names_every_version_and_port(tmp_path: Path) -> None:
    publish(str(tmp_path), "one", linear())
    publish(str(tmp_path), "two", linear())
    publish(str(tmp_path), "two", linear())
    with running_server(tmp_path) as server:
        lines = server.output.all()
        for line in (
            "serving one 1 (onnx)",
            f"  store    {tmp_path}",
            "serving two 1 (onnx)",
            "serving two 2 (onnx)",
            f"  REST     http://{server.http}/v2",
            f"  docs     http://{server.http}/docs",
            f"  gRPC     {server.grpc}",
            f"  metrics  http://127.0.0.1:{server.metrics_port}/metrics",
        ):
            assert line in lines
