"""Pipelines of a real store with tiny real ONNX models: which versions they load and use."""

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.tensors import Array
from model_store.errors import PipelinePartError
from model_store.store import ModelStore
from services.errors import ModelNotReadyError, ServingError
from services.inference.certifying.certification import CertifyOptions, certify
from services.inference.loading.loader import LoadOptions
from services.inference.loading.policy import LanePolicy, ServingPolicy
from services.inference.loading.reconciler import Reconciler
from services.inference.trust import Trust
from services.queueing.directory import Directory
from services.queueing.memory_queue import MemoryQueue, Outcome
from services.queueing.records import InferReply, InferRequest
from services.telemetry.metrics import Metrics
from tests.fixtures import shaped_models
from tests.fixtures.onnx_models import finder, linear, publish, scorer, slow_identity
from tests.fixtures.pipelines import ROWS, publish_graph, publish_parts, right

POLICY = ServingPolicy(newest_versions=1, poll_interval_s=0.01, retry_failed_s=30)


class Running:
    """A reconciler with its queue and directory."""

    def __init__(self, folder: Path, policy: ServingPolicy) -> None:
        self.store = ModelStore(str(folder))
        self.directory, self.queue = Directory(), MemoryQueue(100)
        self.metrics = Metrics("test")
        self.reconciler = Reconciler(self.store, self.queue, self.directory, self.metrics, policy)
        self.passed = asyncio.Event()

    async def until(self, holds: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not holds():
                self.passed.clear()
                await self.passed.wait()

    async def ask(self, inputs: Mapping[str, Array] = ROWS, model: str = "reader") -> InferReply:
        """Sends a request. Raises the error that answers it."""
        served, _ = self.directory.resolve(model)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        request = InferRequest(
            request_id="r",
            lane=served.lane,
            inputs=inputs,
            rows=len(next(iter(inputs.values()))),
            deadline=time.monotonic() + 20,
        )
        self.queue.submit(request, answer.set_result)
        outcome = await answer
        if isinstance(outcome, ServingError):
            raise outcome
        return outcome

    def state(self, model: str = "reader") -> tuple[str, str]:
        """Returns state and reason of the only version of a model."""
        (served,) = self.directory.of_model(model)
        return served.state, served.reason


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    async with contextlib.AsyncExitStack() as stack:

        async def begin(**policy: Any) -> Running:
            running, stop = (
                Running(tmp_path, dataclasses.replace(POLICY, **policy)),
                asyncio.Event(),
            )
            task = asyncio.create_task(running.reconciler.run(stop, running.passed.set))

            async def end() -> None:
                stop.set()
                await task

            stack.push_async_callback(end)
            await running.until(lambda: running.reconciler.converged_once)
            return running

        yield begin


async def test_a_pipeline_answers_with_the_outputs_of_its_steps(
    tmp_path: Path, start: Start
) -> None:
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    running = await start()
    reply = await running.ask()
    np.testing.assert_array_equal(reply.outputs["scores"], right(ROWS["x"]))
    np.testing.assert_array_equal(reply.outputs["found"], ROWS["x"] > 0)
    assert reply.datatypes == {"scores": "FP32", "found": "BOOL"}


async def test_a_server_of_the_pipeline_alone_loads_its_parts(tmp_path: Path, start: Start) -> None:
    publish_parts(str(tmp_path))
    publish(str(tmp_path), "other", linear())
    publish_graph(str(tmp_path))
    running = await start(models=("reader",))
    await running.ask()
    assert {s.lane.model for s in running.directory.all_versions()} == {
        "reader", "finder", "scorer",
    }  # fmt: skip


@pytest.mark.parametrize("poll_interval_s", [0.004, 0.007, 0.01, 0.013, 0.02, 0.2])
async def test_a_part_in_production_of_another_range_is_loaded_beside_the_one_that_fits(
    tmp_path: Path, start: Start, poll_interval_s: float
) -> None:
    # The pipeline is read before, while or after the part in production loads.
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    store = ModelStore(str(tmp_path))
    second = publish(str(tmp_path), "finder", finder(("items", "found")))
    assert second.semver == "2.0.0"
    store.promote("finder", 2)
    running = await start(newest_versions=0, poll_interval_s=poll_interval_s)
    await running.ask()
    assert running.directory.versions("finder") == [1, 2]
    assert running.directory.live_version("finder") == 2


async def test_a_part_that_takes_larger_batches_fits(tmp_path: Path, start: Start) -> None:
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    assert publish(str(tmp_path), "finder", finder(), max_batch_size=64).semver == "1.1.0"
    running = await start()
    np.testing.assert_array_equal((await running.ask()).outputs["scores"], right(ROWS["x"]))
    assert running.directory.versions("finder") == [2]


async def test_an_optional_input_that_a_step_leaves_out_fits(tmp_path: Path, start: Start) -> None:
    shaped_models.publish(str(tmp_path), "biased")  # y = x + 1, 2, 3
    graph = {
        "steps": [{"name": "bias", "model": "biased@^1", "inputs": {"x": "input.x"}}],
        "outputs": {"y": "bias.y"},
    }
    rows = {"x": np.ones((2, 3), np.float32)}
    publish_graph(str(tmp_path), "reader", graph, rows)
    running = await start()
    outputs = (await running.ask(rows)).outputs
    np.testing.assert_array_equal(outputs["y"], [[2, 3, 4]] * 2)


async def test_a_newer_part_in_the_range_is_used_once_it_is_in_production(
    tmp_path: Path, start: Start
) -> None:
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    store = ModelStore(str(tmp_path))
    store.promote("scorer", 1)
    running = await start()
    assert publish(str(tmp_path), "scorer", scorer(100.0), max_batch_size=8).semver == "1.1.0"
    await running.until(lambda: running.directory.versions("scorer") == [1, 2])
    np.testing.assert_array_equal((await running.ask()).outputs["scores"], right(ROWS["x"]))
    store.promote("scorer", 2)
    await running.until(lambda: running.directory.live_version("scorer") == 2)
    scores = (await running.ask()).outputs["scores"]
    np.testing.assert_array_equal(scores, right(ROWS["x"], 100.0))


async def test_no_request_fails_while_parts_move(tmp_path: Path, start: Start) -> None:
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    store = ModelStore(str(tmp_path))
    store.promote("scorer", 1)
    running = await start(newest_versions=0)
    publish(str(tmp_path), "scorer", scorer(100.0), max_batch_size=8)
    seen: list[float] = []

    async def ask_until(last: float) -> None:
        while not seen or seen[-1] != last:
            scores = (await running.ask()).outputs["scores"]
            seen.append(float(scores[0, 0, 0]))
            assert scores[2, 3, 0] == (seen[-1] - 1) * 4 + 1  # of one version

    async with asyncio.timeout(20):
        await ask_until(11.0)
        store.promote("scorer", 2)
        await ask_until(101.0)
    await running.until(lambda: running.directory.versions("scorer") == [2])
    assert (await running.ask()).outputs["scores"][0, 0, 0] == 101.0


async def test_golden_outputs_that_the_parts_do_not_give_are_refused(
    tmp_path: Path, start: Start
) -> None:
    publish_parts(str(tmp_path))
    wrong = {"scores": right(ROWS["x"], 9.0), "found": ROWS["x"] > 0}
    publish_graph(str(tmp_path), golden_outputs=wrong)
    running = await start()
    state, reason = running.state()
    assert state == "failed"
    assert "replaying the golden rows through the steps" in reason
    with pytest.raises(ModelNotReadyError, match="golden rows"):
        await running.ask()


async def test_parts_with_other_weights_than_recorded_give_other_outputs(
    tmp_path: Path, start: Start
) -> None:
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    publish(str(tmp_path), "scorer", scorer(100.0), max_batch_size=8)
    running = await start()
    scores = (await running.ask()).outputs["scores"]
    np.testing.assert_array_equal(scores, right(ROWS["x"], 100.0))


async def test_a_pipeline_without_a_part_says_which_and_is_ready_when_it_comes(
    tmp_path: Path, start: Start
) -> None:
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    hidden = tmp_path.parent / f"{tmp_path.name}-scorer"
    (tmp_path / "scorer").rename(hidden)
    running = await start()
    state, reason = running.state()
    assert state == "failed"
    assert "step 'score' needs scorer@^1" in reason
    hidden.rename(tmp_path / "scorer")
    await running.until(lambda: running.state()[0] == "ready")
    await running.ask()


async def test_a_pipeline_whose_part_is_unloaded_is_not_ready_until_it_is_back(
    tmp_path: Path, start: Start
) -> None:
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    running = await start()
    hidden = tmp_path.parent / f"{tmp_path.name}-scorer"
    (tmp_path / "scorer").rename(hidden)
    await running.until(lambda: running.state()[0] == "failed")
    with pytest.raises(ModelNotReadyError, match="scorer@"):
        await running.ask()
    hidden.rename(tmp_path / "scorer")
    await running.until(lambda: running.state()[0] == "ready")
    await running.ask()


async def test_the_parts_of_an_unloaded_pipeline_stay_until_its_requests_are_answered(
    tmp_path: Path, start: Start
) -> None:
    url, store = str(tmp_path), ModelStore(str(tmp_path))
    publish(url, "slow", slow_identity(20_000))  # takes 0.2 s
    publish(url, "last", linear(2.0))
    steps = [
        {"name": "slow", "model": "slow@1", "inputs": {"x": "input.x"}},
        {"name": "last", "model": "last@1", "inputs": {"x": "slow.y"}},
    ]
    publish_graph(url, "reader", {"steps": steps, "outputs": {"y": "last.y"}})
    publish_parts(url)
    publish_graph(url)
    publish(url, "last", linear(3.0))
    for model, version in (("last", 2), ("slow", 1), ("reader", 1)):
        store.promote(model, version)
    running = await start(newest_versions=0)
    assert running.directory.versions("last") == [1, 2]
    answer = asyncio.create_task(running.ask())
    await asyncio.sleep(0)
    store.promote("reader", 2)
    await running.until(lambda: running.directory.versions("reader") == [2])
    for _ in range(3):  # passes in which no served pipeline names the part
        running.passed.clear()
        await running.passed.wait()
    assert not answer.done()
    np.testing.assert_array_equal((await answer).outputs["y"], 2 * ROWS["x"])
    await running.until(lambda: running.directory.versions("last") == [2])


async def test_a_deleted_pipeline_is_withdrawn(tmp_path: Path, start: Start) -> None:
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    running = await start()
    (tmp_path / "reader").rename(tmp_path.parent / f"{tmp_path.name}-reader")
    await running.until(lambda: not running.directory.of_model("reader"))
    assert running.directory.versions("scorer") == [1]


async def test_many_requests_share_the_batches_of_each_step(tmp_path: Path, start: Start) -> None:
    publish_parts(str(tmp_path), max_batch_size=64)
    publish_graph(str(tmp_path))
    running = await start()
    row = {"x": ROWS["x"][2:]}
    replies = await asyncio.gather(*(running.ask(row) for _ in range(40)))
    for reply in replies:
        np.testing.assert_array_equal(reply.outputs["scores"], right(row["x"]))
    for model, rows in (("finder", 40), ("scorer", 160)):
        name, labels = "flambeau_batch_size", {"model": model, "version": "1"}
        batches = running.metrics.registry.get_sample_value(f"{name}_count", labels)
        total = running.metrics.registry.get_sample_value(f"{name}_sum", labels)
        assert batches is not None
        assert total is not None
        assert total >= rows
        assert batches <= 20, model


async def test_a_pipeline_gets_no_certificate(tmp_path: Path) -> None:
    publish_parts(str(tmp_path))
    manifest = publish_graph(str(tmp_path))
    with pytest.raises(PipelinePartError, match=r"verify its models: finder@\^1, scorer@\^1"):
        certify(ModelStore(str(tmp_path)), manifest, CertifyOptions())


async def test_a_server_that_wants_all_signed_refuses_an_unsigned_pipeline(
    tmp_path: Path, start: Start
) -> None:
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    load = LoadOptions(trust=Trust(signature_needed_for="everything"))
    running = await start(by_model={"reader": LanePolicy(load=load)})
    state, reason = running.state()
    assert state == "failed"
    assert "is not signed" in reason
