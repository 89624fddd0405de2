"""Versions that exceed the memory: refused with the figures, or loaded in turn.

The memory of a server and of a version depends on the machine, so it is measured first.
"""

import re
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from random import Random
from statistics import median
from threading import Event
from typing import Any

import grpc
import numpy as np
import pytest

from tests.e2e.grpc_calls import outputs, raw_request
from tests.e2e.rest_calls import call, infer, linear_input
from tests.fixtures.onnx_models import linear, publish
from tests.fixtures.servers import ServerProcess, processes, running_server
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

MEBIBYTE = 2**20
LARGE_WIDTH = 6000
LARGE_MIB = 4 * LARGE_WIDTH**2 // MEBIBYTE
"""137 MiB. Above 32 MiB, malloc returns memory as soon as it is freed (mallopt(3),
M_MMAP_THRESHOLD), and half of it exceeds what one server takes more than another (46 MiB seen)."""
LOADS = "flambeau_model_load_duration_seconds_count"
ROW = [1.0, 2.0, 3.0, 4.0]


@dataclass(frozen=True)
class Measured:
    """Memory in MiB."""

    two_loaded: float
    """Memory of a server that serves two large models."""
    large: float
    """Memory of one of them, without its runtime, which was loaded before."""


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    store = tmp_path_factory.mktemp("store")
    for model in ("one", "two"):
        publish_large(store, model)
    # Any limit serialises loading, so that each version is measured by itself.
    with running_server(store, max_memory_mib=2**30) as server:
        resident = server.metric("process_resident_memory_bytes")
        taken = [server.metric("flambeau_model_memory_bytes", model=m) for m in ("one", "two")]
    assert min(taken) >= LARGE_MIB * MEBIBYTE
    return Measured(resident / MEBIBYTE, min(taken) / MEBIBYTE)


def publish_large(store: Path, model: str) -> None:
    """Publishes a model with weights of `LARGE_MIB` and a negligible warm-up."""
    publish(str(store), model, linear(layers=1, width=LARGE_WIDTH), max_batch_size=1)


def test_what_does_not_fit_is_refused_with_the_figures(tmp_path: Path, measured: Measured) -> None:
    publish(str(tmp_path), "small", linear())
    publish_large(tmp_path, "large")
    limit_mib = int(measured.two_loaded - 2 * measured.large + LARGE_MIB / 2)
    with running_server(tmp_path, max_memory_mib=limit_mib) as server:
        assert infer(server, "small", linear_input(ROW)).outputs() == {"y": ROW}
        reply = infer(server, "large", linear_input(ROW))
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        found = re.search(
            r"model 'large' version 1 needs (\d+) MiB and does not fit: (\d+) MiB are the limit "
            r"\(max_memory_mib\), (\d+) MiB the server's own, (\d+) MiB taken by \d other "
            r"versions; raise the limit, serve fewer models or set when_memory_full=unload_idle",
            reply.error(),
        )
        assert found, reply.error()
        need, limit, own, others = map(int, found.groups())
        assert need >= LARGE_MIB
        assert limit == limit_mib
        assert 0 < own < limit < own + others + need
        assert call(server, "GET", "/v2/models/large/ready").status == 503
        refused = server.wait_for_log(message="version refused", model="large")
        assert refused["reason"] == found[0]
        taken = server.metric("flambeau_model_memory_bytes", model="small")
        assert 0 < taken < limit * MEBIBYTE
        assert server.metric("flambeau_model_memory_bytes", model="large") == 0


def test_the_idle_version_used_longest_ago_makes_room_and_comes_back(
    tmp_path: Path, measured: Measured
) -> None:
    for model in ("first", "second", "third"):
        publish_large(tmp_path, model)
    limit_mib = int(measured.two_loaded + 0.5 * measured.large)
    with running_server(
        tmp_path,
        max_memory_mib=limit_mib,
        when_memory_full="unload_idle",
        store_poll_interval_s=0.1,
    ) as server:
        (out,) = away(server)
        kept, used = sorted({"first", "second", "third"} - {out})
        assert infer(server, used, linear_input(ROW)).status == 200
        reply = infer(server, out, linear_input(ROW), headers={"x-request-timeout-ms": "1"})
        assert (reply.status, reply.headers["retry-after"]) == (503, "1")
        assert reply.error() == (
            f"model '{out}' version 1 is not ready: unloaded to make room for "
            f"model '{made_room(server, out)}' version 1; being loaded again, so retry"
        )
        server.wait_for_metric(2, LOADS, model=out)
        assert away(server) == {kept}, "not the one used longest ago"
        for model in (out, used):
            assert infer(server, model, linear_input(ROW)).outputs() == {"y": ROW}
        # A request with time waits for the load.
        assert infer(server, kept, linear_input(ROW)).outputs() == {"y": ROW}
        assert server.metric(LOADS, model=kept) == 2
        assert away(server) == {out}


def away(server: ServerProcess) -> set[str]:
    """Returns the models that are not ready, without requesting one."""
    models = ("first", "second", "third")
    return {m for m in models if call(server, "GET", f"/v2/models/{m}/ready").status != 200}


def made_room(server: ServerProcess, model: str) -> str:
    """Returns the model for which another one was unloaded."""
    log = server.wait_for_log(message="unloading an idle version to make room", model=model)
    return str(log["for"]).split("'")[1]


@dataclass(frozen=True)
class Many:
    """Models of which only some have room."""

    count: int
    room: int
    requests: int


FEW = Many(count=8, room=3, requests=48)
FIFTY = Many(count=50, room=10, requests=150)
CALLERS = 8
SEED = 31
SMALL_WIDTH = 3000
"""34 MiB of weights: malloc returns them at once, too."""


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("many", "options"),
    [
        pytest.param(FEW, (), id="few"),
        pytest.param(FEW, ("--processes=2",), id="few, several processes"),
        pytest.param(FIFTY, (), id="fifty", marks=pytest.mark.long),
        pytest.param(
            FIFTY, ("--processes=2",), id="fifty, several processes", marks=pytest.mark.long
        ),
    ],
)
def test_every_model_answers_though_only_some_have_room(
    tmp_path: Path, many: Many, options: tuple[str, ...]
) -> None:
    """Requests in a random order, over REST and gRPC, wait for the loads of their models."""
    models = [f"m{number}" for number in range(many.count)]

    def publish_all(chosen: Sequence[str]) -> None:
        for model in chosen:
            weights = linear(int(model[1:]), layers=1, width=SMALL_WIDTH)
            publish(str(tmp_path), model, weights, max_batch_size=1)

    publish_all(models[: many.room])
    with running_server(tmp_path, *options, max_memory_mib=2**30) as server:
        limit_mib = int(resident_mib(server) + 4 * SMALL_WIDTH**2 // MEBIBYTE // 2)
    room: dict[str, Any] = {"max_memory_mib": limit_mib, "when_memory_full": "unload_idle"}
    with running_server(tmp_path, *options, **room) as server, resident_of(server) as seen:
        publish_all(models[many.room :])  # each is loaded and verified once
        for model in models:
            server.wait_for_log(message="version ready", model=model)
        random = Random(SEED)
        asked = [random.choice(models) for _ in range(many.requests)]
        began = time.monotonic()
        with ThreadPoolExecutor(CALLERS) as callers:
            took_s = list(callers.map(partial(timed_answer, server), asked, range(len(asked))))
        whole_s = time.monotonic() - began
        ready = [m for m in models if call(server, "GET", f"/v2/models/{m}/ready").status == 200]
        loads = sum(server.metric(LOADS, model=model) for model in models)
        refusals = server.metric("flambeau_refusals_total")
    took_s.sort()
    print(
        f"{many}, {options}: {whole_s:.1f} s, {loads:.0f} loads, answers within "
        f"{took_s[len(took_s) // 2]:.2f} s in the median and {took_s[-1]:.2f} s at most; "
        f"{max(seen):.0f} MiB at most and {median(seen):.0f} MiB in the median of {limit_mib} MiB"
    )
    assert refusals == 0
    assert many.room - 1 <= len(ready) <= many.room + 1
    assert median(seen) <= limit_mib


def timed_answer(server: ServerProcess, model: str, number: int) -> float:
    """Asks one model, in either protocol; returns the seconds until its checked answer."""
    began, wanted = time.monotonic(), [int(model[1:]) * x for x in ROW]
    if number % 2:
        assert infer(server, model, linear_input(ROW)).outputs() == {"y": wanted}
    else:
        with grpc.insecure_channel(server.grpc) as channel:
            stub: Any = GRPCInferenceServiceStub(channel)
            request = raw_request(model, {"x": ("FP32", np.array([ROW], np.float32))})
            found = outputs(stub.ModelInfer(request, timeout=60))
            assert found["y"].tolist() == [wanted]
    return time.monotonic() - began


def resident_mib(server: ServerProcess) -> float:
    """Returns the memory of the process that has the models."""
    (pid,) = processes(server, "model") or [server.pid]
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


@contextmanager
def resident_of(server: ServerProcess) -> Iterator[list[float]]:
    """Samples that memory in the background."""
    seen, over = [resident_mib(server)], Event()

    def sample() -> None:
        while not over.wait(0.02):
            seen.append(resident_mib(server))

    with ThreadPoolExecutor(1) as thread:
        sampling = thread.submit(sample)
        try:
            yield seen
        finally:
            over.set()
            sampling.result()
