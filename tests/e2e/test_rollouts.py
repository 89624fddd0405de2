"""Rollouts, shadows and splits under a running server: which version answers, and who is harmed."""

from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest

from model_store.pointers import Pointers
from model_store.rollouts.traffic import Arm, Rollout, Shadow, Split, Traffic
from model_store.rollouts.transitions import begun
from model_store.store import ModelStore
from services.gateway.traffic.draw import point_of
from tests.e2e.grpc_calls import linear_request
from tests.e2e.rest_calls import infer, linear_input, post
from tests.fixtures import misbehaving_models
from tests.fixtures.misbehaving_models import TRIGGER, WIDTH
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.redis_setups import wait_until
from tests.fixtures.servers import ServerProcess, running_processes, running_server
from tests.fixtures.split_servers import running_split
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

ROW = [1.0, 2.0, 3.0, 4.0]
CALLERS = 8
SHAPES: dict[str, Any] = {
    "all-in-one": running_server,
    "several processes": running_processes,
    "split": running_split,
}
SHAPE_PARAMS = [
    "all-in-one", pytest.param("several processes", marks=pytest.mark.long), "split",
]  # fmt: skip


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    """Returns versions 1 and 2 of `linear`, y = version * x, and production on 1."""
    store = ModelStore(str(tmp_path))
    for scale in (1, 2):
        publish(store.url, "linear", linear(scale))
    store.promote("linear", 1)
    return store


@pytest.fixture(params=SHAPE_PARAMS)
def server(request: pytest.FixtureRequest, store: ModelStore) -> Iterator[ServerProcess]:
    with SHAPES[request.param](Path(store.url)) as server:
        yield server


def start(store: ModelStore, share: float, model: str = "linear", **fields: Any) -> Rollout:
    """Begins a rollout of version 2."""
    rollout = Rollout(candidate=2, baseline=1, steps=(share,), **fields)
    store.point(model, begun(store.pointers(model), rollout, "test", "a test"))
    return rollout


def share_traffic(store: ModelStore, traffic: Traffic, model: str = "linear") -> None:
    pointers = store.pointers(model)
    assert pointers is not None
    store.point(model, Pointers.after(pointers, pointers.aliases, "test", "a test", traffic))


def answering(server: ServerProcess, headers: dict[str, str] | None = None, **fields: Any) -> int:
    """Returns the version that answers a request without one; checks its numbers."""
    reply = infer(server, "linear", linear_input(ROW), headers=headers or {}, **fields)
    version = int(reply.json()["model_version"])
    assert reply.outputs() == {"y": [version * x for x in ROW]}
    return version


def test_candidate_gets_its_share_and_a_named_version_is_kept(
    server: ServerProcess, store: ModelStore
) -> None:
    start(store, 0.5, mirrored=0)
    wait_until(lambda: answering(server) == 2)
    counted = Counter(answering(server) for _ in range(60))
    assert 10 <= counted[2] <= 50
    assert {int(infer(server, "linear", linear_input(ROW), version="1").json()["model_version"])
            for _ in range(20)} == {1}  # fmt: skip
    with grpc.insecure_channel(server.grpc) as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        found = {stub.ModelInfer(linear_request(ROW)).model_version for _ in range(40)}
        aliased = {
            stub.ModelInfer(linear_request(ROW, model_version="production")).model_version
            for _ in range(40)
        }
    assert found == aliased == {"1", "2"}


def test_version_of_predict_is_in_a_header(server: ServerProcess, store: ModelStore) -> None:
    start(store, 0.5, mirrored=0)
    wait_until(lambda: answering(server) == 2)
    for _ in range(20):
        reply = post(server, "/v1/models/linear:predict", {"instances": [ROW]})
        version = int(reply.headers["x-model-version"])
        assert reply.json() == {"predictions": [[version * x for x in ROW]]}


def test_sticky_header_keeps_its_version(server: ServerProcess, store: ModelStore) -> None:
    start(store, 0.5, sticky="header:X-User", mirrored=0)
    wait_until(lambda: answering(server) == 2)
    users = [f"user-{number}" for number in range(12)]
    first = {user: answering(server, {"x-user": user}) for user in users}
    assert set(first.values()) == {1, 2}
    for _ in range(3):
        assert {user: answering(server, {"x-user": user}) for user in users} == first
    with grpc.insecure_channel(server.grpc) as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        for user, version in first.items():
            response = stub.ModelInfer(linear_request(ROW), metadata=[("x-user", user)])
            assert int(response.model_version) == version


def test_sticky_parameter_keeps_its_version(server: ServerProcess, store: ModelStore) -> None:
    start(store, 0.5, sticky="parameter:user", mirrored=0)
    wait_until(lambda: answering(server) == 2)
    users = [f"user-{number}" for number in range(12)]
    first = {user: answering(server, parameters={"user": user}) for user in users}
    assert set(first.values()) == {1, 2}
    assert {user: answering(server, parameters={"user": user}) for user in users} == first
    request = linear_request(ROW)
    with grpc.insecure_channel(server.grpc) as channel:
        stub: Any = GRPCInferenceServiceStub(channel)
        for user, version in first.items():
            request.parameters["user"].string_param = user
            assert int(stub.ModelInfer(request).model_version) == version


def test_split_sends_shares_to_its_arms(server: ServerProcess, store: ModelStore) -> None:
    arms = (Arm(version=1, share=0.5), Arm(version=2, share=0.5))
    share_traffic(store, Traffic(split=Split(name="colours", arms=arms)))
    wait_until(lambda: answering(server) == 2)
    assert {answering(server) for _ in range(40)} == {1, 2}


def test_shadow_compares_answers_and_answers_nobody(
    server: ServerProcess, store: ModelStore
) -> None:
    share_traffic(store, Traffic(shadow=Shadow(candidate=2, sample=1.0)))

    def mirrored() -> bool:
        assert answering(server) == 1
        labels = {"model": "linear", "version": "2", "result": "differed"}
        return bool(server.metric("flambeau_mirrored_pairs_total", **labels))

    wait_until(mirrored)


@pytest.mark.parametrize("shape", ["several processes", "split"])
def test_mirrored_requests_yield_to_callers_of_all_processes(tmp_path: Path, shape: str) -> None:
    """The edge or gateway that mirrors a request does not know what waits for the device."""
    store = ModelStore(str(tmp_path))
    for scale in (1, 2):
        publish(store.url, "linear", linear(scale, layers=100), max_batch_size=1)
    store.promote("linear", 1)
    share_traffic(store, Traffic(shadow=Shadow(candidate=2, sample=1.0)))
    with SHAPES[shape](tmp_path) as server, ThreadPoolExecutor(CALLERS) as callers:
        labels = {"model": "linear", "version": "2"}

        def dropped() -> bool:
            assert set(callers.map(lambda _: answering(server), range(4 * CALLERS))) == {1}
            return bool(server.metric("flambeau_dropped_mirrors_total", reason="busy", **labels))

        wait_until(dropped)
        assert not server.metric("flambeau_mirrored_pairs_total", result="failed", **labels)


CANDIDATES = {
    "raises": (misbehaving_models.raising, 1.0),
    "hangs": (misbehaving_models.blocking, 1.0),
}


@pytest.mark.parametrize("shape", SHAPE_PARAMS)
@pytest.mark.parametrize("how", CANDIDATES)
def test_mirrored_requests_fail_no_caller(tmp_path: Path, shape: str, how: str) -> None:
    make, timeout_s = CANDIDATES[how]
    store = ModelStore(str(tmp_path))
    misbehaving_models.publish(store.url, "m", misbehaving_models.well_behaved())
    misbehaving_models.publish(store.url, "m", make())
    store.promote("m", 1)
    share_traffic(store, Traffic(shadow=Shadow(candidate=2, sample=1.0)), "m")
    settings = {"m": {"execution_timeout_s": timeout_s}}
    row = linear_input([TRIGGER] * WIDTH)
    with SHAPES[shape](tmp_path, model_settings=settings) as server:
        failed = {"model": "m", "version": "2", "result": "failed"}

        def compared() -> bool:
            reply = infer(server, "m", row)
            assert reply.outputs() == {"y": [2 * TRIGGER] * WIDTH}
            return bool(server.metric("flambeau_mirrored_pairs_total", **failed))

        wait_until(compared)


@pytest.mark.parametrize("shape", SHAPE_PARAMS)
def test_requests_of_the_baseline_go_on_beside_a_candidate_that_hangs(
    tmp_path: Path, shape: str
) -> None:
    """Requests with the candidate's keys fail by its time limit; all others are answered."""
    store = ModelStore(str(tmp_path))
    misbehaving_models.publish(store.url, "m", misbehaving_models.well_behaved())
    misbehaving_models.publish(store.url, "m", misbehaving_models.blocking())
    store.promote("m", 1)
    rollout = start(store, 0.3, "m", sticky="header:x-user", mirrored=0)
    users = [f"user-{number}" for number in range(40)]
    own = [user for user in users if point_of(rollout.id, user) < 0.3]
    row = linear_input([TRIGGER] * WIDTH)
    settings = {"m": {"execution_timeout_s": 1.0}}
    with SHAPES[shape](tmp_path, model_settings=settings) as server:

        def answer(user: str) -> int:
            return infer(server, "m", row, headers={"x-user": user}).status

        wait_until(lambda: answer(own[0]) == 500)
        assert {answer(user) for user in users if user not in own} == {200}
