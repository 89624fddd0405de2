"""A server of several processes: together as one, and each of them may be killed."""

import os
import resource
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from typer.testing import CliRunner

from flambeau.commands.access import access_app
from model_store.store import ModelStore
from services.standalone.supervisor import COLLECT_WITHIN_S
from tests.e2e.grpc_calls import linear_request, outputs
from tests.e2e.rest_calls import call, infer, linear_input, lookup_inputs
from tests.e2e.test_memory import LARGE_MIB, MEBIBYTE, publish_large
from tests.e2e.test_tls import calling
from tests.fixtures.certificates import Authority
from tests.fixtures.command_forker import run_flambeau
from tests.fixtures.onnx_models import linear, publish, slow_lookup
from tests.fixtures.redis_servers import until_true
from tests.fixtures.servers import FREE_PORTS, ServerProcess, processes, running_server, serving
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

ROW = [1.0, 2.0, 3.0, 4.0]
SLOW = 100_000
"""Matrix products of a request that takes a second or so."""


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns versions 1 and 2 of `linear`, each y = version * x, production on 1; and `lookup`."""
    store = ModelStore(str(tmp_path))
    for scale in (1, 2):
        publish(store.url, "linear", linear(scale))
    store.promote("linear", 1)
    publish(store.url, "lookup", slow_lookup())
    return store


@pytest.fixture
def server(store: ModelStore) -> Iterator[ServerProcess]:
    with running_server(Path(store.url), "--processes=2", drain_timeout_s=60) as server:
        yield server


class Load:
    """Callers that each open a connection for every request, and count what comes of it."""

    def __init__(self, server: ServerProcess, version: str = "") -> None:
        self.outcomes: Counter[str] = Counter()
        self._server, self._version = server, version
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call) for _ in range(4)]

    def _call(self) -> None:
        while not self._over.is_set():
            try:
                reply = infer(self._server, "linear", linear_input(ROW), version=self._version)
                outcome = str(reply.status)
                if reply.status == 200:
                    scale = int(reply.json()["model_version"])
                    assert reply.outputs() == {"y": [scale * x for x in ROW]}
            except OSError as error:
                outcome = type(error).__name__
            self.outcomes[outcome] += 1

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def wait_for(self, count: int, outcome: str = "200") -> None:
        """Waits for so many more outcomes of a kind."""
        wanted = self.outcomes[outcome] + count
        until_true(lambda: self.outcomes[outcome] >= wanted)


def in_background(function: Callable[[], Any]) -> "list[Any]":
    """Calls a function in a thread; its result appears in the list."""
    results: list[Any] = []
    threading.Thread(target=lambda: results.append(function()), daemon=True).start()
    return results


def slow_call(server: ServerProcess) -> "list[Any]":
    """Sends a request that takes a while; returns where its reply appears."""
    return in_background(lambda: infer(server, "lookup", *lookup_inputs(3, SLOW)))


def is_live(server: ServerProcess, version: int) -> bool:
    """Returns True if a version answers requests without one."""
    reply = infer(server, "linear", linear_input(ROW))
    return bool(reply.json()["model_version"] == str(version))


def test_both_protocols_answer_and_one_scrape_has_all_of_them(server: ServerProcess) -> None:
    assert len(processes(server, "edge")) == 2
    for _ in range(20):
        assert infer(server, "linear", linear_input(ROW)).outputs() == {"y": ROW}
        with grpc.insecure_channel(server.grpc) as channel:
            stub: Any = GRPCInferenceServiceStub(channel)
            assert outputs(stub.ModelInfer(linear_request(ROW)))["y"].tolist() == [ROW]
    assert server.metric("flambeau_requests_total", protocol="rest", code="200") == 20
    assert server.metric("flambeau_requests_total", protocol="grpc", code="OK") == 20
    assert server.metric("flambeau_batch_size_sum", model="linear") == 40
    assert server.metric("flambeau_in_flight_requests") == 0
    assert server.metric("flambeau_build_info") == 1
    with urllib.request.urlopen(f"http://127.0.0.1:{server.metrics_port}/v2/health/ready"):
        pass


def test_versions_are_swapped_under_load_and_no_request_fails(store: ModelStore) -> None:
    with (
        running_server(Path(store.url), "--processes=2", newest_versions=0) as server,
        Load(server) as load,
    ):
        for version in (2, 1, 2):
            load.wait_for(20)
            store.promote("linear", version)
            until_true(partial(is_live, server, version))
        load.wait_for(20)
    assert set(load.outcomes) == {"200"}


def test_killed_edge_is_replaced_and_the_others_go_on(server: ServerProcess) -> None:
    victim, other = processes(server, "edge")
    with Load(server) as load:
        load.wait_for(400)
        answered = server.metric("flambeau_requests_total")
        os.kill(victim, signal.SIGKILL)
        assert server.metric("flambeau_requests_total") >= answered, "a counter never falls"
        load.wait_for(40)
        until_true(lambda: len(processes(server, "edge")) == 2)
        server.wait_for_metric(1, "flambeau_process_restarts_total", kind="edge")
    assert victim not in processes(server, "edge")
    assert other in processes(server, "edge")
    (model,) = processes(server, "model")
    maps = Path(f"/proc/{model}/maps")
    until_true(lambda: maps.read_text().count("/memfd:flambeau-link") == 2, timeout_s=5)
    lost = {name for name in load.outcomes if name != "200"}
    assert lost <= {"ConnectionResetError", "RemoteDisconnected", "ConnectionRefusedError"}
    assert sum(load.outcomes[name] for name in lost) <= 20, "what the edge held, and no more"


def test_killed_model_process_is_replaced_and_what_it_held_is_refused_at_once(
    server: ServerProcess,
) -> None:
    (victim,) = processes(server, "model")
    held = slow_call(server)
    server.wait_for_metric(1, "flambeau_in_flight_requests")
    os.kill(victim, signal.SIGKILL)
    until_true(lambda: held, timeout_s=5)
    assert held[0].status == 503
    assert "the model process ended while it had this request" in held[0].error()
    reasons = []
    while infer(server, "linear", linear_input(ROW)).status == 503:
        reasons.append(call(server, "GET", "/v2/health/ready").status)
        time.sleep(0.01)
    assert not reasons or reasons[0] == 503
    until_true(lambda: call(server, "GET", "/v2/health/ready").status == 200)
    assert infer(server, "linear", linear_input(ROW)).outputs() == {"y": ROW}
    assert processes(server, "model") != [victim]
    assert server.metric("flambeau_process_restarts_total", kind="model") == 1


def test_drain_answers_what_was_accepted_and_ends_all_processes(server: ServerProcess) -> None:
    held = [slow_call(server) for _ in range(3)]
    server.wait_for_metric(3, "flambeau_in_flight_requests")
    pids = [*processes(server, "edge"), *processes(server, "model")]
    server.ask_to_stop()
    assert server.wait() == 0
    until_true(lambda: all(held))
    assert [
        (replies[0].status, replies[0].body[:300]) for replies in held if replies[0].status != 200
    ] == []
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]


def test_drain_that_takes_too_long_refuses_what_is_left(store: ModelStore) -> None:
    with running_server(Path(store.url), "--processes=2", drain_timeout_s=0.2) as server:
        held = in_background(lambda: infer(server, "lookup", *lookup_inputs(3, 20 * SLOW)))
        server.wait_for_metric(1, "flambeau_in_flight_requests")
        server.ask_to_stop()
        assert server.wait() == 0
    until_true(lambda: held)
    assert held[0].status == 503
    assert "had no answer within 0.2 s" in held[0].error()


def test_processes_end_when_their_supervisor_was_killed(server: ServerProcess) -> None:
    pids = [*processes(server, "edge"), *processes(server, "model")]
    server.expected_code = -signal.SIGKILL
    held = slow_call(server)
    server.wait_for_metric(1, "flambeau_in_flight_requests")
    os.kill(server.pid, signal.SIGKILL)
    until_true(lambda: held)
    assert held[0].status == 200, "the edges drain"
    until_true(lambda: not [pid for pid in pids if Path(f"/proc/{pid}").exists()])


def test_requests_in_flight_are_limited_over_all_processes(store: ModelStore) -> None:
    """Each edge alone would let as many pass."""
    limit = 4
    with running_server(Path(store.url), "--processes=2", max_in_flight_requests=limit) as server:
        held = []
        for number in range(12):
            held.append(in_background(lambda: infer(server, "lookup", *lookup_inputs(3, 2 * SLOW))))
            refused = max(0, number - limit)
            until_true(lambda refused=refused: sum(map(bool, held)) >= refused, every_s=0.005)  # type: ignore[misc]
            if number < limit:
                server.wait_for_metric(number + 1, "flambeau_in_flight_requests")
        until_true(lambda: all(held), timeout_s=90)  # four slow runs, one after the other
    errors = [replies[0].error() for replies in held if replies[0].status == 503]
    answered = 12 - len(errors)
    assert limit <= answered <= limit + 1, "an edge that was idle has not read the count of others"
    assert all(f"{limit} requests are in flight here, the limit" in error for error in errors)


def test_rate_of_a_caller_is_that_of_all_processes_together(
    store: ModelStore, tmp_path: Path
) -> None:
    """Each edge alone would let the burst pass, and then the rate."""
    keys = tmp_path / "keys.yaml"
    options = ["--grant", "infer", "--requests-per-s", "20", "--file", str(keys)]
    added = CliRunner().invoke(access_app, ["add", "ci", *options])
    assert added.exit_code == 0, added.output
    headers = {"x-api-key": added.stdout.strip()}
    statuses: Counter[int] = Counter()
    with running_server(Path(store.url), "--processes=2", api_keys_file=str(keys)) as server:
        began = time.monotonic()
        while time.monotonic() < began + 3:
            reply = infer(server, "linear", linear_input(ROW), headers=headers)
            statuses[reply.status] += 1
    burst, passed = 40, 3 * 20
    assert set(statuses) == {200, 429}
    assert burst <= statuses[200] <= burst + passed + 20


def test_port_that_is_in_use_is_named(server: ServerProcess, store: ModelStore) -> None:
    for setting, port in (("http", server.http_port), ("grpc", server.grpc_port)):
        ports = (f"--{setting}-port={port}", "--metrics-port=0")
        other = run_flambeau(*serving(store.url, "--processes=2", *ports))
        assert other.returncode == 1
        assert f"cannot listen on port {port} ({setting}_port)" in other.stderr


def test_store_that_cannot_be_opened_is_named(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    other = run_flambeau(*serving(file, "--processes=2", *FREE_PORTS))
    assert other.returncode == 1, other.stderr
    assert str(file) in other.stderr


def test_process_that_cannot_be_started_just_now_is_started_later(server: ServerProcess) -> None:
    """The supervisor has no descriptor left when it replaces an edge."""
    soft, hard = resource.prlimit(server.pid, resource.RLIMIT_NOFILE)
    victim, _ = processes(server, "edge")
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (3, hard))
    os.kill(victim, signal.SIGKILL)
    server.wait_for_log(message="a process cannot be started; trying again")
    resource.prlimit(server.pid, resource.RLIMIT_NOFILE, (soft, hard))
    until_true(lambda: len(processes(server, "edge")) == 2)


def test_start_says_how_many_processes_there_are(server: ServerProcess) -> None:
    assert "  runs as  2 edge processes and a model process" in server.output.all()


@contextmanager
def without_descriptors(*pids: int) -> Iterator[None]:
    """Lets processes open nothing within the block."""
    limits = {pid: resource.prlimit(pid, resource.RLIMIT_NOFILE) for pid in pids}
    for pid, (_, hard) in limits.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (3, hard))
    yield
    for pid, both in limits.items():
        resource.prlimit(pid, resource.RLIMIT_NOFILE, both)


def test_edge_without_descriptors_gets_its_link_when_it_has_some(server: ServerProcess) -> None:
    edges, (model,) = processes(server, "edge"), processes(server, "model")
    with without_descriptors(*edges):
        os.kill(model, signal.SIGKILL)
        server.wait_for_log(message="no link to the model process; trying again")
    until_true(lambda: [infer(server, "lookup", *lookup_inputs(3)).status for _ in range(8)]
               == [200] * 8)  # fmt: skip


def test_scrape_that_an_edge_could_not_answer_costs_only_that_one(server: ServerProcess) -> None:
    edges = processes(server, "edge")
    with without_descriptors(*edges):
        server.metrics_text()
    before = server.metric("flambeau_requests_total", code="200")
    for _ in range(8):
        infer(server, "lookup", *lookup_inputs(3))
    began = time.monotonic()
    assert server.metric("flambeau_requests_total", code="200") == before + 8
    assert time.monotonic() - began < COLLECT_WITHIN_S


def test_stop_of_the_whole_group_while_it_starts_is_no_error(store: ModelStore) -> None:
    """Service managers signal every process of a server."""
    process = subprocess.Popen(
        [sys.executable, "-m", "flambeau", "serve", "--store", store.url, "--processes", "2",
         "--http-port", "0", "--grpc-port", "0", "--metrics-port", "0"],
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    until_true(lambda: len(children.read_text().split()) == 3)
    os.killpg(process.pid, signal.SIGTERM)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert "error" not in said
    assert "Traceback" not in said


def test_all_processes_use_a_renewed_certificate_and_no_call_fails(
    store: ModelStore, tmp_path_factory: pytest.TempPathFactory
) -> None:
    authority = Authority(tmp_path_factory.mktemp("tls"))
    pair = authority.issue("server")
    tls = {"tls_certificate_file": str(pair.certificate), "tls_key_file": str(pair.key)}
    trusted = ssl.create_default_context(cafile=str(authority.file))
    reloads = "flambeau_tls_reloads_total"

    def shown(port: int) -> str:
        """Returns the serial number of the certificate that a new connection gets."""
        address = "127.0.0.1", port
        with (
            socket.create_connection(address, timeout=30) as plain,
            trusted.wrap_socket(plain, server_hostname="127.0.0.1") as secure,
        ):
            certificate = secure.getpeercert()
        assert certificate
        return str(certificate["serialNumber"])

    def seen(server: ServerProcess) -> set[str]:
        """Returns the serial numbers that any edge shows: each connection goes to one of two."""
        return {shown(port) for _ in range(16) for port in (server.http_port, server.grpc_port)}

    with running_server(Path(store.url), "--processes=2", **tls) as server:
        (first,) = seen(server)
        with calling(lambda: shown(server.http_port)), calling(lambda: shown(server.grpc_port)):
            authority.issue("server")
            server.wait_for_metric(2, reloads, outcome="taken")
        (second,) = seen(server)
        assert second != first
        pair.key.write_text("nonsense")
        server.wait_for_metric(2, reloads, outcome="refused")
        assert seen(server) == {second}
        authority.issue("server")
        server.wait_for_metric(4, reloads, outcome="taken")
        assert len(seen(server) - {first, second}) == 1


def test_idle_model_makes_room_and_comes_back_at_every_edge(tmp_path: Path) -> None:
    models = {"one", "two"}
    for model in models:
        publish_large(tmp_path, model)
    with running_server(tmp_path, "--processes=2", max_memory_mib=2**30) as server:
        (pid,) = processes(server, "model")
        status = Path(f"/proc/{pid}/status").read_text()
        resident_mib = int(status.partition("VmRSS:")[2].split()[0]) // 1024
        assert server.metric("flambeau_model_memory_bytes") >= 2 * LARGE_MIB * MEBIBYTE
    room = {"max_memory_mib": resident_mib - LARGE_MIB // 2, "when_memory_full": "unload_idle"}
    with running_server(tmp_path, "--processes=2", store_poll_interval_s=0.1, **room) as server:

        def ready(model: str) -> set[int]:
            """Asks any edge whether a model is ready, without requesting it."""
            path = f"/v2/models/{model}/ready"
            return {call(server, "GET", path).status for _ in range(16)}

        for _ in models:
            (out,) = [model for model in models if ready(model) != {200}]
            (kept,) = models - {out}
            assert (ready(kept), ready(out)) == ({200}, {503})
            no_time = {"x-request-timeout-ms": "1"}
            reply = infer(server, out, linear_input(ROW), headers=no_time)
            assert (reply.status, reply.headers["retry-after"]) == (503, "1")
            assert f"unloaded to make room for model '{kept}' version 1" in reply.error()
            until_true(lambda out=out: ready(out) == {200})  # type: ignore[misc]
            for _ in range(16):
                assert infer(server, out, linear_input(ROW)).outputs() == {"y": ROW}
            assert ready(kept) == {503}
