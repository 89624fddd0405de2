"""Cost of a pipeline: two models in a row, as a pipeline and as two calls by the caller, in turns.

In: two models that double their input, on workers in this process. Out: CPU time of the event loop
for each request, and requests a second, with 1 and 16 callers. No store and no wire: what both ways
have in common beyond the queue is left out.

    python -m bench.importing.pipelines
"""

import argparse
import asyncio
import time
from collections.abc import Callable, Mapping
from functools import partial
from statistics import median

import numpy as np
import uvloop

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import Array
from model_store.pipelines.graph import Pipeline
from services.errors import ServingError
from services.inference.backends.backend import Backend
from services.inference.pipelines.held_bytes import HeldBytes
from services.inference.pipelines.pipeline_lane import PipelineLane
from services.inference.pipelines.plan import Planner
from services.inference.pipelines.step_gate import StepGates
from services.inference.scheduling.batch_rules import batch_rules
from services.inference.scheduling.device_turns import DeviceTurns
from services.inference.scheduling.latency import LatencyModel
from services.inference.scheduling.worker import Worker, WorkerPlan
from services.queueing.directory import Directory
from services.queueing.memory_queue import Done, MemoryQueue, Outcome
from services.queueing.records import InferRequest, Lane, ServedVersion
from services.telemetry.metrics import Metrics

CALLERS = (1, 16)
ROUNDS = 11
REQUESTS = 4000
WIDTH = 64
FIRST, SECOND, WHOLE = Lane("first", 1), Lane("second", 1), Lane("whole", 1)
SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", datatype="FP32", shape=(-1, WIDTH)),),
    outputs=(TensorSpec(name="y", datatype="FP32", shape=(-1, WIDTH)),),
    max_batch_size=32,
)
GRAPH = Pipeline.model_validate(
    {
        "steps": [
            {"name": "one", "model": "first@1", "inputs": {"x": "input.x"}},
            {"name": "two", "model": "second@1", "inputs": {"x": "one.y"}},
        ],
        "outputs": {"y": "two.y"},
    }
)
ROW = np.ones((1, WIDTH), np.float32)

Ask = Callable[[Done], None]
"""Sends one request; the function gets its last outcome."""


class Doubling(Backend):
    """`y = 2 x`."""

    platform = "numpy"

    def run(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Doubles a batch."""
        return {"y": inputs["x"] * 2}

    def close(self) -> None:
        """Has nothing to free."""


class Served:
    """The two models and the pipeline of them, behind one queue."""

    def __init__(self, tasks: asyncio.TaskGroup) -> None:
        self.queue, directory = MemoryQueue(1000), Directory()
        turns, metrics = DeviceTurns(1), Metrics("bench")
        self.workers: dict[Lane, Worker] = {}
        for lane in (FIRST, SECOND):
            plan = WorkerPlan(
                lane=lane,
                signature=SIGNATURE,
                rules=batch_rules(SIGNATURE),
                latency=LatencyModel(SIGNATURE.max_batch_size, {1: 1e-5}, WIDTH),
                backends=[Doubling()],
                reopen=Doubling,
                execution_timeout_s=60.0,
            )
            worker = self.workers[lane] = Worker(plan, turns, metrics)
            tasks.create_task(worker.run())
            self.queue.open(lane, worker)
            directory.announce(ServedVersion(lane=lane, state="ready", signature=SIGNATURE))
        planner = Planner(
            GRAPH, SIGNATURE, directory, self.workers.get, StepGates(1000), HeldBytes(2**30)
        )
        self.queue.open(WHOLE, PipelineLane(WHOLE, planner))

    def close(self) -> None:
        """Ends the workers."""
        for worker in self.workers.values():
            worker.close()

    def ask_pipeline(self, done: Done) -> None:
        """Sends one request to the pipeline."""
        self.queue.submit(_request(WHOLE, ROW), done)

    def ask_twice(self, done: Done) -> None:
        """Sends one request to the first model, and its answer to the second."""

        def go_on(outcome: Outcome) -> None:
            assert not isinstance(outcome, ServingError), outcome
            self.queue.submit(_request(SECOND, outcome.outputs["y"]), done)

        self.queue.submit(_request(FIRST, ROW), go_on)


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.importing.pipelines", description=__doc__
    )
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    uvloop.run(_measure_all(parser.parse_args().rounds))


async def _measure_all(rounds: int) -> None:
    async with asyncio.TaskGroup() as tasks:
        served = Served(tasks)
        ways: dict[str, Ask] = {"two calls": served.ask_twice, "pipeline": served.ask_pipeline}
        for callers in CALLERS:
            found: dict[str, list[tuple[float, float]]] = {how: [] for how in ways}
            for _ in range(rounds):
                for how, ask in ways.items():
                    found[how].append(await _measure(ask, callers))
            for how, figures in found.items():
                cpu_us, per_s = (median(column) for column in zip(*figures, strict=True))
                print(f"{callers:>2} callers, {how:>9}: {cpu_us:5.1f} µs CPU, {per_s:7,.0f} /s")
        served.close()


async def _measure(ask: Ask, callers: int) -> tuple[float, float]:
    """Returns the loop's CPU microseconds for each request, and requests a second."""
    left, answered = REQUESTS, asyncio.Event()
    waiting = callers

    def again(outcome: Outcome) -> None:
        nonlocal left, waiting
        assert not isinstance(outcome, ServingError), outcome
        if left:
            left -= 1
            asyncio.get_running_loop().call_soon(partial(ask, again))
            return
        waiting -= 1
        if not waiting:
            answered.set()

    cpu, began = time.thread_time(), time.monotonic()
    for _ in range(callers):
        left -= 1
        ask(again)
    await answered.wait()
    took_s = time.monotonic() - began
    return (time.thread_time() - cpu) / REQUESTS * 1e6, REQUESTS / took_s


def _request(lane: Lane, x: Array) -> InferRequest:
    deadline = time.monotonic() + 60
    return InferRequest(request_id="r", lane=lane, inputs={"x": x}, rows=1, deadline=deadline)


if __name__ == "__main__":
    main()
