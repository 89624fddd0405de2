"""Models that callers load and unload at a gateway, in all workers of a Redis."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from services.errors import (
    BackendError,
    ControlModeError,
    ModelNotReadyError,
    QueueUnavailableError,
    ServingError,
    TooManyInFlightError,
    UnknownModelError,
)
from services.queueing.directory import Directory
from services.queueing.fleet import Announcement, FleetView, fleet_view
from services.queueing.fleet_directory import FleetDirectory
from services.queueing.memory_queue import MemoryQueue
from services.queueing.model_control import model_acts, model_set
from services.queueing.model_control.act_limit import MAX_ACTS
from services.queueing.model_control.model_acts import ModelActs
from services.queueing.model_control.model_set import ModelSet
from services.queueing.records import Execution, Lane, PipelineStep, ServedVersion
from services.queueing.redis_streams import registry
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import MODELS_KEY
from services.queueing.redis_streams.registry import Announcer, FleetWatch
from services.telemetry.metrics import Metrics
from tests.fixtures.queue_ends import Shelf
from tests.fixtures.redis_servers import RedisProcess, until
from tests.fixtures.signatures import one_to_one

SIGNATURE = one_to_one((1,), rows=4)
PART = PipelineStep(model="part", version=-1, inputs={}, outputs={})
PIPELINE = Execution(steps=(PART,))


class Worker:
    """A worker that loads models at once, unless it holds or refuses them."""

    def __init__(self, url: str, name: str, *models: str) -> None:
        clients = RedisClients(url)
        self.directory, self.log = Directory(), list[tuple[str, str]]()
        self.refuses: dict[str, ServingError] = {}
        self.holds: dict[str, asyncio.Future[None]] = {}
        self.announcer = Announcer(
            clients, name, self.directory, lambda _: True, models=lambda: self.set.announced(())
        )
        self.announcer.started = True
        self.set = ModelSet(clients, models, self._begin, self.announcer.announce_soon)
        for model in models:
            self._serve(model)
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def models(self) -> set[str]:
        return {served.lane.model for served in self.directory.all_versions()}

    def _serve(self, model: str) -> None:
        lane, execution = Lane(model, 1), PIPELINE if model == "pipe" else None
        self.directory.announce(
            ServedVersion(lane=lane, state="ready", signature=SIGNATURE, execution=execution)
        )
        self.announcer.go_live(lane, 1)

    def _begin(self, act: str, model: str) -> "asyncio.Future[None]":
        self.log.append((act, model))
        outcome = asyncio.get_running_loop().create_future()
        if act == "unload":
            self.directory.withdraw(Lane(model, 1))
        elif model in self.refuses:
            outcome.set_exception(self.refuses[model])
        else:
            self._serve(model)
        if model in self.holds:
            return self.holds[model]
        if not outcome.done():
            outcome.set_result(None)
        return outcome

    async def start(self) -> None:
        await self.set.look()
        self._tasks = [asyncio.create_task(run()) for run in (self.announcer.run, self.set.run)]

    async def end(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


class Gateway:
    def __init__(self, url: str) -> None:
        clients = RedisClients(url)
        self.directory = Directory()
        self._fleet = FleetDirectory(self.directory, MemoryQueue(9), lambda _: Shelf())
        self.acts = ModelActs(clients, self.directory)
        self.views: list[FleetView] = []
        self.watch = FleetWatch(clients, self._follow, Metrics("test"))

    def _follow(self, view: FleetView) -> None:
        self.views.append(view)
        self._fleet.apply(view)
        self.acts.learn(view)

    async def sees(self, workers: int) -> None:
        await until(lambda: self.views and len(self.views[-1].follow) == workers)


class World:
    """A gateway and workers of one Redis."""

    def __init__(self, redis: RedisProcess, stack: AsyncExitStack) -> None:
        self.redis, self._stack = redis, stack
        self.gateway = Gateway(redis.url)

    async def worker(self, name: str, *models: str) -> Worker:
        worker = Worker(self.redis.url, name, *models)
        await worker.start()
        self._stack.push_async_callback(worker.end)
        return worker


@asynccontextmanager
async def _world(redis: RedisProcess) -> AsyncIterator[World]:
    async with AsyncExitStack() as stack:
        world = World(redis, stack)
        watching = asyncio.create_task(world.gateway.watch.run())
        try:
            yield world
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            await world.gateway.acts.close()


@pytest.fixture
async def world(redis: RedisProcess, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[World]:
    for module in (registry, model_set):
        monkeypatch.setattr(module, "LOOK_EVERY_S", 0.02)
    async with _world(redis) as world:
        yield world


async def test_a_load_is_done_once_all_workers_have_the_model(world: World) -> None:
    one, two = await world.worker("one", "a"), await world.worker("two", "a")
    gateway = world.gateway
    await gateway.sees(2)
    held = two.holds["b"] = asyncio.get_running_loop().create_future()
    load = asyncio.create_task(gateway.acts.act("load", "b"))
    await until(lambda: any("b" in known.pending for known in gateway.views[-1].follow))
    await until(lambda: gateway.directory.live_version("b") == 1)
    await until(lambda: one.models == {"a", "b"})
    assert not load.done(), "the other worker is still loading it"
    held.set_result(None)
    await load
    await gateway.acts.act("unload", "a")
    assert one.models == two.models == {"b"}
    with pytest.raises(UnknownModelError):
        gateway.directory.find("a")
    gateway.directory.resolve("b")


async def test_a_worker_that_ends_is_not_awaited(world: World) -> None:
    await world.worker("one")
    two = await world.worker("two")
    two.holds["b"] = asyncio.get_running_loop().create_future()
    await world.gateway.sees(2)
    load = asyncio.create_task(world.gateway.acts.act("load", "b"))
    await until(lambda: two.log)
    await two.end()
    await load
    assert world.gateway.directory.live_version("b") == 1


async def test_a_later_worker_follows_the_set(world: World) -> None:
    one = await world.worker("one", "a", "z")
    await world.gateway.sees(1)
    await world.gateway.acts.act("load", "b")
    await world.gateway.acts.act("unload", "z")
    later = await world.worker("later", "own", "z")
    assert later.models == {"a", "b"} == one.models


async def test_what_is_loaded_is_loaded_again_where_asked(world: World) -> None:
    one = await world.worker("one", "a")
    await world.gateway.sees(1)
    for _ in range(2):
        await world.gateway.acts.act("load", "a")
    for _ in range(2):
        await world.gateway.acts.act("unload", "b")
    assert one.log == [("load", "a"), ("load", "a")]


@pytest.mark.parametrize("error", [UnknownModelError("no b here"), BackendError("golden " * 200)])
async def test_a_load_that_all_refuse_is_refused(world: World, error: ServingError) -> None:
    for name in ("one", "two"):
        (await world.worker(name)).refuses["b"] = error
    await world.gateway.sees(2)
    with pytest.raises(type(error), match=str(error)[:9]) as caught:
        await world.gateway.acts.act("load", "b")
    assert len(str(caught.value)) <= model_set.MAX_REASON
    is_kept = await world.redis.client.hexists(MODELS_KEY, "b")
    assert is_kept == isinstance(error, BackendError), "only unknown names are forgotten"


async def test_a_load_that_one_worker_can_do_is_done(world: World) -> None:
    one, two = await world.worker("one"), await world.worker("two")
    await world.gateway.sees(2)
    one.refuses["b"] = UnknownModelError("no b here")
    await world.gateway.acts.act("load", "b")
    assert (one.models, two.models) == (set(), {"b"})
    two.refuses["c"], one.refuses["c"] = BackendError("golden"), UnknownModelError("no c here")
    with pytest.raises(BackendError, match="golden"):
        await world.gateway.acts.act("load", "c")


async def test_a_refusal_is_forgotten_with_the_next_act(world: World) -> None:
    one = await world.worker("one")
    await world.gateway.sees(1)
    one.refuses["b"] = BackendError("golden")
    for _ in range(2):
        with pytest.raises(BackendError):
            await world.gateway.acts.act("load", "b")
    one.refuses.clear()
    await world.gateway.acts.act("load", "b")
    assert not one.set.announced(()).refused


async def test_parts_of_a_pipeline_are_unloaded_where_asked(world: World) -> None:
    one = await world.worker("one", "pipe", "part", "other")
    await world.gateway.sees(1)
    await world.gateway.acts.act("unload", "pipe", True)
    await until(lambda: one.models == {"other"})


async def test_workers_restore_what_redis_has_lost(world: World) -> None:
    one, two = await world.worker("one"), await world.worker("two")
    await world.gateway.sees(2)
    await world.gateway.acts.act("load", "b")
    await world.redis.client.delete(MODELS_KEY)
    later = await world.worker("later", "own")
    await until(lambda: later.models == {"b"})
    assert one.log == two.log == [("load", "b")]
    await world.gateway.acts.act("unload", "b")
    await until(lambda: not later.models)


async def test_an_act_on_a_set_that_was_lost_is_refused(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_set, "LOOK_EVERY_S", 60)
    await world.worker("one")
    await world.gateway.sees(1)
    await world.redis.client.delete(MODELS_KEY)
    with pytest.raises(QueueUnavailableError, match="call again to load 'b'"):
        await world.gateway.acts.act("load", "b")
    assert not await world.redis.client.exists(MODELS_KEY), "no worker unloads what it has"


async def test_a_load_that_another_caller_undoes_says_so(world: World) -> None:
    one = await world.worker("one")
    await world.gateway.sees(1)
    held = one.holds["b"] = asyncio.get_running_loop().create_future()
    load = asyncio.create_task(world.gateway.acts.act("load", "b"))
    await until(lambda: one.log)
    del one.holds["b"]
    await world.gateway.acts.act("unload", "b")
    with pytest.raises(ModelNotReadyError, match="unloaded it meanwhile"):
        await load
    held.cancel()


async def test_workers_that_follow_their_pointers_are_not_told(world: World) -> None:
    with pytest.raises(QueueUnavailableError, match="starting"):
        await Gateway(world.redis.url).acts.act("load", "b")
    await until(lambda: world.gateway.views)
    with pytest.raises(QueueUnavailableError, match="no worker to load 'b'"):
        await world.gateway.acts.act("load", "b")
    world.gateway.acts.learn(
        fleet_view([Announcement("polls", started=True, versions=(), live={})])
    )
    with pytest.raises(ControlModeError, match="explicit model load / unload is not allowed"):
        await world.gateway.acts.act("load", "b")


async def test_no_name_is_no_model(world: World) -> None:
    one = await world.worker("one", "a")
    await world.gateway.sees(1)
    with pytest.raises(UnknownModelError):
        await world.gateway.acts.act("load", "")
    await world.gateway.acts.act("unload", "")
    await world.gateway.acts.act("load", "b")
    assert one.models == {"a", "b"}


async def test_models_and_acts_have_limits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_acts, "MAX_MODELS", 2)
    one = await world.worker("one", "a")
    await world.gateway.sees(1)
    await world.gateway.acts.act("load", "b")
    with pytest.raises(TooManyInFlightError, match="unload others"):
        await world.gateway.acts.act("load", "c")
    await world.gateway.acts.act("load", "b")
    one.holds["b"] = asyncio.get_running_loop().create_future()
    acts = [asyncio.ensure_future(world.gateway.acts.act("load", "b")) for _ in range(MAX_ACTS)]
    await asyncio.sleep(0)
    with pytest.raises(TooManyInFlightError, match="retry later"):
        await world.gateway.acts.act("load", "b")
    one.holds["b"].set_result(None)
    await asyncio.gather(*acts)


async def test_an_act_without_redis_is_refused(world: World) -> None:
    await world.worker("one")
    await world.gateway.sees(1)
    world.redis.kill()
    with pytest.raises(QueueUnavailableError, match="call again"):
        await world.gateway.acts.act("load", "b")


async def test_the_set_expires_behind_the_last_look(world: World) -> None:
    one = await world.worker("one", "a")
    await world.redis.client.expire(MODELS_KEY, 5)
    await one.set.look()
    assert await world.redis.client.ttl(MODELS_KEY) > model_set.LIVES_S - 60


async def test_models_of_a_worker_that_ends_stay_known(world: World) -> None:
    one = await world.worker("one", "a")
    directory, views = world.gateway.directory, world.gateway.views
    await world.gateway.sees(1)
    await until(lambda: directory.live_version("a") == 1)
    await one.end()
    await until(lambda: not views[-1].versions)
    with pytest.raises(ModelNotReadyError, match="no worker serves it at present"):
        directory.resolve("a")
