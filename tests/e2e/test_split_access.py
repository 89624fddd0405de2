"""Two locked gateways before one worker: the same keys at both, and one shared rate limit."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import pytest
from redis.asyncio import Redis
from redis.asyncio.client import PubSub

from services.access.api_keys import ApiKey, add_key, digest_of, new_key, revoke_key
from services.access.rates import BURST_S
from tests.e2e.grpc_calls import outputs, raw_request
from tests.e2e.rest_calls import Reply, infer, linear_input
from tests.fixtures.redis_servers import RedisProcess, redis_process
from tests.fixtures.servers import ServerProcess
from tests.fixtures.split_servers import SplitServer, running_gateway, running_worker
from tests.fixtures.triton_messages import GRPCInferenceServiceStub

ROW, ANSWER = [1.0, 2.0, 3.0, 4.0], [2.0, 4.0, 6.0, 8.0]
WAIT_S = 10.0
RATE = 2.0
BURST = RATE * BURST_S
RATE_KEY = "flambeau:rate:{key:greedy requests}"
"""Key where the gateways report the spent requests of that API key."""
FENCE = "fence"
"""A channel of the test; its message arrives after all earlier ones."""


@dataclass(frozen=True, slots=True)
class Fleet:
    """Two gateways, the key file, and the Redis between all."""

    gateways: tuple[SplitServer, SplitServer]
    file: Path
    keys: Mapping[str, str]
    """Initial keys, by name."""
    redis: RedisProcess

    def change(self, change: Callable[[], None]) -> None:
        """Changes the file, and waits until each gateway has read it."""
        counts = [sum(map(is_reload, gateway.errors.all())) for gateway in self.gateways]
        change()
        for gateway, before in zip(self.gateways, counts, strict=True):
            gateway.errors.wait_for(nth_reload(before + 1), WAIT_S)


def is_reload(line: str) -> bool:
    return '"API keys read"' in line


def nth_reload(number: int) -> Callable[[str], bool]:
    """Returns a matcher for the log line of the n-th reload; it must see all lines in turn."""
    counted = itertools.count(1)
    return lambda line: is_reload(line) and next(counted) >= number


def give_out(file: Path, name: str, *grants: str, requests_per_s: float = 0) -> str:
    """Adds a new key."""
    key = new_key()
    record = ApiKey(
        name=name,
        sha256=digest_of(key).hex(),
        grants=grants,
        requests_per_s=requests_per_s,
        rows_per_s=0,
    )
    add_key(file, record)
    return key


@pytest.fixture(scope="module")
def fleet(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    file = tmp_path_factory.mktemp("keys") / "keys.yaml"
    keys = {
        "ci": give_out(file, "ci", "infer:lin*"),
        "ops": give_out(file, "ops", "manage:linear"),
        "greedy": give_out(file, "greedy", "infer", requests_per_s=RATE),
    }
    with ExitStack() as stack:
        redis = stack.enter_context(redis_process())
        worker = running_worker(store, redis.url, models=["linear", "pair"])
        gateways = [running_gateway(redis.url, api_keys_file=str(file)) for _ in range(2)]
        with ThreadPoolExecutor(3) as side_by_side:
            starting = side_by_side.submit(stack.enter_context, worker)
            first, second = side_by_side.map(stack.enter_context, gateways)
            starting.result()
        for gateway in (first, second):
            gateway.wait_for_metric(1, "flambeau_fleet_workers")
        yield Fleet((first, second), file, keys, redis)


def over_rest(gateway: ServerProcess, key: str, model: str = "linear") -> Reply:
    """Returns the response to an inference."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    return infer(gateway, model, linear_input(ROW), headers=headers)


def code_of(channel: grpc.Channel, key: str, model: str = "linear") -> str:
    """Returns the status of an inference over gRPC."""
    stub = GRPCInferenceServiceStub(channel)
    request = raw_request(model, {"x": ("FP32", np.array([ROW], np.float32))})
    metadata = [("x-api-key", key)] if key else []
    try:
        answer = stub.ModelInfer(request, metadata=metadata, timeout=WAIT_S)
    except grpc.RpcError as error:
        return str(error.code().name)
    assert outputs(answer)["y"].tolist() == [ANSWER]
    return "OK"


def test_nobody_comes_in_without_a_key_by_any_way(fleet: Fleet) -> None:
    for gateway in fleet.gateways:
        counted = gateway.metric("flambeau_access_refusals_total", reason="unauthenticated")
        with grpc.insecure_channel(gateway.grpc) as channel:
            for key in ("", new_key()):
                assert over_rest(gateway, key).status == 401
                assert code_of(channel, key) == "UNAUTHENTICATED"
        after = gateway.metric("flambeau_access_refusals_total", reason="unauthenticated")
        assert after - counted == 4


def test_a_key_is_good_for_what_it_names_at_each_gateway(fleet: Fleet) -> None:
    ci, ops = fleet.keys["ci"], fleet.keys["ops"]
    for gateway in fleet.gateways:
        assert over_rest(gateway, ci).outputs() == {"y": ANSWER}
        # A model outside its pattern looks like one that does not exist; others are served both.
        assert over_rest(gateway, ci, "pair").status == 404
        assert over_rest(gateway, ops).status == 403
        with grpc.insecure_channel(gateway.grpc) as channel:
            assert code_of(channel, ci) == "OK"
            assert code_of(channel, ci, "pair") == "NOT_FOUND"
            assert code_of(channel, ops) == "PERMISSION_DENIED"


def test_what_is_spent_at_one_gateway_is_spent_at_the_other(fleet: Fleet) -> None:
    spent, let_in, took_s = asyncio.run(spend_at_both(fleet, fleet.keys["greedy"]))
    assert spent >= BURST
    # One on credit, and one more before the update arrives; alone it would have admitted its
    # whole burst.
    assert 1 <= let_in <= 2 + RATE * took_s
    for gateway in fleet.gateways:
        assert over_rest(gateway, fleet.keys["ci"]).status == 200, "others are not held up"
        assert gateway.metric("flambeau_access_refusals_total", reason="rate_limited") == 1


async def pass_over_told(redis: Redis, told: PubSub) -> None:
    """Discards all messages so far, so that the next one is new."""
    await redis.publish(FENCE, "")
    while True:
        message = await told.get_message(timeout=WAIT_S)
        assert message, "the fence comes behind what was told before"
        if (message["type"], message["channel"]) == ("message", FENCE.encode()):
            return


async def spend_at_both(fleet: Fleet, key: str) -> tuple[int, int, float]:
    """Sends to each gateway until it refuses; the second one after it can know the first's count.

    Returns:
        Requests admitted by the first, requests admitted by the second, and the seconds
        between their refusals.
    """
    spent = let_in = 0
    async with Redis.from_url(fleet.redis.url) as redis, redis.pubsub() as told:
        await redis.config_set("notify-keyspace-events", "Kh")
        await told.subscribe(f"__keyspace@0__:{RATE_KEY}", FENCE)
        assert await told.get_message(timeout=WAIT_S), "that it listens"
        began = time.monotonic()
        while (reply := over_rest(fleet.gateways[0], key)).status == 200:
            spent += 1
        refused_at = time.monotonic()
        assert (reply.status, int(reply.headers["retry-after"])) == (429, 1)
        while True:
            left = float(await redis.hget(RATE_KEY, "tokens") or BURST)
            if left <= BURST - spent + RATE * (time.monotonic() - began):
                break
            assert await told.get_message(timeout=WAIT_S), "the first tells what it has let in"
        await pass_over_told(redis, told)
        with grpc.insecure_channel(fleet.gateways[1].grpc) as channel:
            while (code := code_of(channel, key)) == "OK":
                let_in += 1
                assert await told.get_message(timeout=WAIT_S), "the second tells, and hears"
                await pass_over_told(redis, told)
        assert code == "RESOURCE_EXHAUSTED"
    return spent, let_in, time.monotonic() - refused_at


def test_a_key_given_out_and_taken_back_is_noticed_by_both(fleet: Fleet) -> None:
    made: list[str] = []
    with ExitStack() as stack:
        channels = [
            stack.enter_context(grpc.insecure_channel(gateway.grpc)) for gateway in fleet.gateways
        ]
        fleet.change(lambda: made.append(give_out(fleet.file, "new", "infer:linear")))
        (key,) = made
        for gateway, channel in zip(fleet.gateways, channels, strict=True):
            assert over_rest(gateway, key).status == 200
            assert code_of(channel, key) == "OK"
        fleet.change(lambda: revoke_key(fleet.file, "new"))
        for gateway, channel in zip(fleet.gateways, channels, strict=True):
            assert over_rest(gateway, key).status == 401
            assert code_of(channel, key) == "UNAUTHENTICATED", "on an open connection, too"
            assert over_rest(gateway, fleet.keys["ci"]).status == 200
