"""Processes that start while the volume of their store is not mounted: none creates the folder."""

import os
import signal
from contextlib import ExitStack
from pathlib import Path

import pytest

from model_store.store import ModelStore
from services.settings import command_line
from tests.e2e.rest_calls import call, infer, linear_input, post
from tests.fixtures.command_forker import ForkedCommand
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.redis_servers import redis_process, until_true
from tests.fixtures.servers import ServerProcess, processes, running_processes
from tests.fixtures.split_servers import Part, running_gateway

ROW = [1.0, 2.0, 3.0, 4.0]
MOVE, AS_JSON = {"version": 1}, {"content-type": "application/json"}
SAMPLES = {"*": {"share": 1}}
AWAY = "store is unreachable; serving the loaded versions"
BACK = "store is back; following it again"


def replace_all(server: ServerProcess) -> None:
    """Kills the model process and an edge, and waits for those that replace them."""
    before = {*processes(server, "model"), *processes(server, "edge")}
    victims = {*processes(server, "model"), processes(server, "edge")[0]}
    for victim in victims:
        os.kill(victim, signal.SIGKILL)

    def are_replaced() -> bool:
        now = {*processes(server, "model"), *processes(server, "edge")}
        return len(now) == len(before) and not now & victims

    until_true(are_replaced)


@pytest.mark.parametrize("leaves_a_folder", [False, True])
def test_replaced_processes_wait_for_the_folder(tmp_path: Path, leaves_a_folder: bool) -> None:
    place, gone = tmp_path / "store", tmp_path / "gone"
    with running_processes(place, registry="open", payload_samples=SAMPLES) as server:
        told = f"there was no folder {place}, so an empty store was created there"
        assert server.wait_for_log(message="store created")["reason"] == told
        assert f"warning: {told}" in server.output.all()
        publish(str(place), "linear", linear(1))
        server.wait_for_log(message="version live", model="linear")
        place.rename(gone)
        if leaves_a_folder:
            place.mkdir()
        replace_all(server)
        reason = server.wait_for_log(message=AWAY)["reason"]
        assert reason.startswith(f"the store's folder is gone: {place} was moved or deleted")
        until_true(
            lambda: reason in str(call(server, "GET", "/v2/health/ready").json().get("reason"))
        )
        server.wait_for_metric(1, "flambeau_store_away")
        for _ in range(8):  # either edge
            asked = post(server, "/v1/registry/models/linear/aliases/production", MOVE, AS_JSON)
            assert asked.status == 503
        assert place.exists() == leaves_a_folder
        assert not leaves_a_folder or not any(place.iterdir())
        if leaves_a_folder:
            place.rmdir()
        gone.rename(place)
        server.wait_for_log(message=BACK)
        until_true(lambda: infer(server, "linear", linear_input(ROW)).status == 200)
        server.wait_for_metric(0, "flambeau_store_away")


def test_an_empty_store_is_there_for_processes_that_start_again(tmp_path: Path) -> None:
    place = tmp_path / "store"
    with running_processes(place) as server:
        replace_all(server)
        until_true(lambda: call(server, "GET", "/v2/health/ready").status == 200)
        publish(str(place), "linear", linear(1))
        until_true(lambda: infer(server, "linear", linear_input(ROW)).status == 200)


def test_the_parts_of_a_split_server_wait_for_the_folder(tmp_path: Path) -> None:
    place = tmp_path / "volume" / "store"
    samples = {"payload_samples": SAMPLES, "payload_sample_store": str(place)}
    with redis_process() as redis, running_gateway(redis.url, **samples) as gateway:
        common = {"queue": redis.url, "store": str(place), "metrics_port": 0}
        ports = {"http_port": 0, "grpc_port": 0, "registry": "open"}
        with ExitStack() as stack:
            worker = Part(ForkedCommand("services.inference", command_line(common)))
            registry = Part(
                ForkedCommand("services.registry_server", command_line({**common, **ports}))
            )
            for part in (worker, registry):
                stack.callback(part.wait)
                stack.callback(part.process.kill)
            said = f"the store's folder is not there: {place} was not made yet"
            for part, message in (
                (worker, AWAY),
                (registry, "store is away; the registry waits for it"),
            ):
                assert part.wait_for_log(message=message)["reason"].startswith(said)
            assert not place.parent.exists()
            publish(ModelStore(str(place)).url, "linear", linear(1))
            for part in (worker, registry):
                part.await_ports()
                assert part.metric("flambeau_store_away") == 0
            until_true(lambda: infer(gateway, "linear", linear_input(ROW)).status == 200)
            listed = call(registry, "GET", "/v1/registry/models").json()
            assert [one["name"] for one in listed["models"]] == ["linear"]
            until_true(lambda: any(place.glob("linear/samples/**/*.jsonl")))
