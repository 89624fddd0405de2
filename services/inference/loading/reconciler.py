"""Reconciles the models that this process serves with the store, in a loop.

In: the store's versions and pointers. Out: loaded workers, and announcements in the directory.

One pass, in order:
1. list the store;
2. for each model separately, read its pointers if they moved;
3. load the versions that should be served and are not: read, check, replay, warm up;
4. make the wanted version live, once it is ready;
5. withdraw the versions that should no longer be served, drain their workers, and unload them;
6. concurrently, load the further artifacts to keep of the versions that are served;
7. open the pipelines whose parts are loaded by now, and load the versions that the others need;
8. after the first pass, measure in the background the fastest artifact of each version.

Rules: a version becomes live only when it is ready, and the old one is unloaded only after that, so
moving a pointer fails no request; a version that failed is announced with its reason and retried
after `retry_failed_s`; a store that is unavailable changes nothing. An exception of a model, of any
type, affects only that model: its files are untrusted.
"""

import asyncio
import functools
import logging
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from model_store.errors import StorageError
from model_store.listing import ModelListing
from model_store.pointers import PRODUCTION, Pointers, switched, unaliased
from model_store.store import ModelStore
from services.errors import BackendError, ServingError, UnknownModelError
from services.inference.loading.background_choice import BackgroundChoice
from services.inference.loading.kept_loads import KeptLoads
from services.inference.loading.lanes import Lanes
from services.inference.loading.load_turns import VersionLoads
from services.inference.loading.loader import LoadError
from services.inference.loading.memory_admission import OutOfMemoryError
from services.inference.loading.model_failure import Complaints, Failures, in_thread, reason_of
from services.inference.loading.pipelines import Pipelines
from services.inference.loading.policy import ServingPolicy, load_niceness
from services.inference.loading.unserved_models import foreign_layout, missing_models, refusal
from services.inference.model_control import ModelControl
from services.inference.store_view import StoreView
from services.queueing.directory import Directory
from services.queueing.lane_queue import LaneQueue
from services.queueing.records import Lane, ServedVersion
from services.readiness import Look
from services.telemetry.metrics import Metrics
from services.tracing.tracer import Tracer

logger = logging.getLogger("flambeau.reconciler")

MAX_GENERATIONS_TRIED = 8
"""Most generations of a model's pointers that one pass reads, the newest first: if all are invalid,
the store was edited manually, and reading more at every pass would delay the other models."""


@dataclass(slots=True)
class _Model:
    """State of one model after the last pass."""

    pointers: Pointers | None = None
    wanted: list[int] = field(default_factory=list)
    """Versions that should be served."""
    loads: VersionLoads = field(default_factory=VersionLoads)
    failures: Failures = field(default_factory=Failures)

    @property
    def is_withdrawn(self) -> bool:
        """True if nothing names a version any more, on purpose, and none is wanted."""
        return self.pointers is not None and not self.pointers.aliases and not self.wanted


class Reconciler:
    """Loads, switches and unloads versions. Runs on the event loop; blocking work in threads."""

    def __init__(
        self,
        store: ModelStore,
        queue: LaneQueue,
        directory: Directory,
        metrics: Metrics,
        policy: ServingPolicy,
        go_live: Callable[[Lane, int], None] | None = None,
        tracer: Tracer | None = None,
        control: ModelControl | None = None,
    ) -> None:
        self._store = store
        self._view = StoreView(store, metrics)
        self._control = control or ModelControl(policy.control, policy.models)
        self._lanes = Lanes(store, queue, directory, metrics, policy, tracer)
        self._pipelines = Pipelines(store, queue, directory, metrics, policy, self._lanes.worker_of)
        self._control.parts_of = self._pipelines.parts_of
        self._lanes.drained = lambda lane: self._control.nudge(directory.is_awaited(lane))
        directory.missing = self._control.missed
        self._background_choice = BackgroundChoice(store, self._lanes)
        self._choosing: asyncio.Task[None] | None = None
        self._keeping: asyncio.Task[None] | None = None
        self._directory = directory
        self._metrics = metrics
        self._policy = policy
        self._go_live = go_live or self._go_live_at_once
        """Called at every pass with the ready version that should be live, and its generation."""
        self._models: dict[str, _Model] = {}
        self._converging: dict[str, asyncio.Task[None]] = {}
        self._begun: set[str] = set()  # models that began to converge in this pass
        self._complaints = Complaints()
        self._kept = KeptLoads(self._lanes, self._complaints)
        self._fault = ""  # why the last pass could not follow the store; empty if it did
        self.converged_once = False
        """True if one pass has finished, and loaded further artifacts, which requests may name.
        Before that the server is not ready, unless any model suffices."""
        self.look = Look(started=False)
        """Models that should be served and are not, as of the last pass."""
        self._listings: dict[str, ModelListing] = {}
        self._unknown: Mapping[str, str] = {}  # models with settings that are not there, and why

    async def run(self, stop: asyncio.Event, after_pass: Callable[[], None]) -> None:
        """Makes passes until `stop` is set, then drains every worker.

        Args:
            stop: event that is set when the process drains.
            after_pass: callback after every pass, when readiness may have changed.
        """
        if message := self._store.storage.how_new():
            logger.warning("store created", extra={"reason": message})
        async with asyncio.TaskGroup() as workers:
            while not stop.is_set():
                self._control.begin_pass()
                self._fault = await self._pass(workers)
                after_pass()
                self._control.end_pass(self._settled)
                self._choose(workers)
                await self._control.pause(stop, self._policy.poll_interval_s)
            single = (self._choosing, self._keeping, self._view.asked)
            for task in (*self._converging.values(), *filter(None, single)):
                task.cancel()
            for lane in self._served():
                self._unload(lane)

    def abandon_runs(self) -> None:
        """Abandons all running batches: the drain has timed out and every request is answered."""
        self._lanes.abandon_runs()

    def row_s(self) -> dict[Lane, float]:
        """Returns by lane the seconds by which each waiting row delays the next; 0 if unknown."""
        return self._lanes.row_s()

    async def _pass(self, tasks: asyncio.TaskGroup) -> str:
        """Lists the store and converges every model that is not converging already.

        Returns:
            Why the store could not be followed; empty if it was.
        """
        is_fixed = self._policy.control == "none" and self.converged_once and not self._view.notice
        try:
            listings = self._listings if is_fixed else await self._view.listings(tasks)
        except Exception as error:
            self._complaints.failed("store", "is unreachable; serving the loaded versions", error)
            if not self.converged_once:
                self.look = Look(started=False, fault=reason_of(error))
            return reason_of(error)
        if self._served() and not listings:
            # An unmounted folder looks like an empty one, and a store is not emptied on purpose.
            self._complaints.log(
                "store", "is empty or deleted; serving the loaded versions", self._store.url
            )
            return f"the store {self._store.url} is empty or deleted"
        self._complaints.settle("store")
        self._listings = listings
        anew = self._models if self._view.take_return() else self._control.take_anew()
        for name in self._models.keys() & anew:
            self._models[name].failures.at.clear()
            self._models[name].loads.tried.clear()
        self._log_unknown(listings)
        self._begun.clear()
        await self._converge_all(tasks)
        for lane in self._served():
            if lane.model not in listings or not self._is_wanted(lane.model):
                self._unload(lane)
        await self._settle_pipelines(tasks)
        await self._keep(tasks)
        self.look = await self._look()
        return ""

    def _settled(self, model: str) -> ServingError | bool:
        """Returns whether a model that a caller has loaded is served, or why not; see `Settled`."""
        if self._fault:
            return BackendError(f"failed to load '{model}': {self._fault}")
        if missing := missing_models((model,), self._listings, self._store.url):
            self._control.forget(model)
            return UnknownModelError(f"failed to load '{model}': {missing[model]}")
        if model in self._converging:
            return False
        if self._directory.live_version(model) is not None:
            return True
        why = self.look.refused.get(model, "")
        awaits_parts = any(lane.model == model for lane in self._pipelines.unsettled())
        if not why and model in self._begun and not awaits_parts:
            why = "none of its versions is to be served; have a pointer name one"
        return BackendError(f"failed to load '{model}': {why}") if why else False

    async def _converge_all(self, tasks: asyncio.TaskGroup) -> None:
        """Converges every model that is not converging already, and waits a while for them."""
        listings = self._listings
        for name in self._converging.keys() & listings.keys():
            await self._guarded(name, self._follow(name, listings[name]))
        for name in self._wanted_models(listings):
            before = self._converging.get(name)  # it may just have converged
            if name in listings and (before is None or before.done()):
                work = self._guarded(name, self._converge(name, listings[name], tasks))
                task = tasks.create_task(work)
                self._converging[name] = task
                self._begun.add(name)
                task.add_done_callback(functools.partial(self._has_converged, name))
        # A model that loads for minutes must not delay the others, nor the next pass.
        begun = [self._converging[name] for name in self._begun & self._converging.keys()]
        if waits := begun if begun and self.converged_once else [*self._converging.values()]:
            await asyncio.wait(waits, timeout=self._policy.poll_interval_s)

    def _has_converged(self, model: str, task: asyncio.Task[None]) -> None:
        if self._converging.get(model) is task:
            del self._converging[model]
        self._control.nudge()

    async def _settle_pipelines(self, tasks: asyncio.TaskGroup) -> None:
        """Opens pipelines whose parts are loaded; loads the versions that others need."""
        if self._pipelines.take_news():
            await self._converge_all(tasks)
        for lane in self._pipelines.unsettled():
            model = self._models[lane.model]
            if self._pipelines.awaits(lane, self._converging, self._models_here()):
                continue
            if missing := self._pipelines.missing_part(lane):
                if model.failures.reasons.get(lane.version) != missing:
                    self._announce_failure(model, lane, LoadError(missing))
                continue
            if not model.failures.is_due(lane.version, self._policy.retry_failed_s):
                continue
            try:
                await self._pipelines.settle(lane)
            except Exception as error:
                self._fail(model, lane, error)
            else:
                model.failures.forget(lane.version)
            self._switch(model, lane.model)

    def _served(self) -> list[Lane]:
        """Returns the default lanes that accept requests, of models and of pipelines."""
        return [*self._lanes.loaded(), *self._pipelines.open_lanes()]

    def _unload(self, lane: Lane) -> None:
        if lane in self._pipelines:
            self._pipelines.unload(lane)
        else:
            self._lanes.unload(lane)

    async def _keep(self, tasks: asyncio.TaskGroup) -> None:
        """Starts to load further artifacts; until the first convergence, waits a while for them."""
        if self._keeping is None or self._keeping.done():
            self._keeping = tasks.create_task(self._kept.load_all(tasks), name="kept artifacts")
        if not self.converged_once and not self._converging:
            await asyncio.wait([self._keeping], timeout=self._policy.poll_interval_s)
            self.converged_once = (
                self._keeping.done()
                and self._kept.settled >= {*self._lanes.loaded()}
                and not any(
                    self._pipelines.awaits(lane, (), self._models_here())
                    for lane in self._pipelines.unsettled()
                )
            )

    def _log_unknown(self, listings: Mapping[str, ModelListing]) -> None:
        """Logs, only once, each model with own settings that is not in the store."""
        unknown = missing_models(tuple(self._policy.by_model), listings, self._store.url)
        for name in unknown.keys() - self._unknown.keys():
            extra = {"model": name, "reason": f"model_settings: {unknown[name]}"}
            logger.warning("settings for an unknown model", extra=extra)
        self._unknown = unknown

    async def _look(self) -> Look:
        """Returns the models that should be served and are not."""
        listings, refused, served = self._listings, {}, 0
        for name in self._wanted_models(listings):
            if name not in listings:
                continue
            pointers = self._models[name].pointers if name in self._models else None
            is_live = self._directory.live_version(name) is not None
            why = refusal(listings[name], pointers, self._directory.of_model(name))
            if not is_live:
                why = why or self._complaints.reason(_topic(name))
            if why:
                refused[name] = why
            served += is_live
        published = any(listing.versions for listing in listings.values())
        return Look(
            started=self.converged_once,
            served=served,
            missing=missing_models(self._named(), listings, self._store.url),
            refused=refused,
            fault="" if published else await foreign_layout(self._store),
            notice=self._view.notice,
            loading=() if self.converged_once else tuple(sorted(self._converging)),
            unloaded=self._unloaded(),
        )

    def _unloaded(self) -> tuple[str, ...]:
        """Returns the models of the store that should not be served."""
        if not self._control.is_explicit and not self._policy.models:
            return ()
        wanted = set(self._wanted_models(self._listings))
        there = (name for name, one in self._listings.items() if one.versions)
        return tuple(sorted(name for name in there if name not in wanted))

    def _named(self) -> tuple[str, ...]:
        """Returns the only models to serve, besides parts of pipelines; none if all are."""
        return tuple(self._control.asked) if self._control.is_explicit else self._policy.models

    def _choose(self, tasks: asyncio.TaskGroup) -> None:
        """Starts to measure, in the background, versions loaded by the publisher's figures."""
        idle = self._choosing is None or self._choosing.done()
        if self.converged_once and idle and self._lanes.next_unchosen() is not None:
            self._choosing = tasks.create_task(self._background_choice.run(tasks), name="choice")

    def _wanted_models(self, listings: dict[str, ModelListing]) -> Iterable[str]:
        if self._control.is_explicit or self._policy.models:
            return dict.fromkeys([*self._named(), *self._pipelines.models()])
        return [name for name, one in listings.items() if one.versions or one.unreadable]

    def _models_here(self) -> list[str]:
        """Returns the wanted models that the store has."""
        return [name for name in self._wanted_models(self._listings) if name in self._listings]

    def _is_wanted(self, model: str) -> bool:
        is_all = not self._control.is_explicit and not self._policy.models
        return is_all or model in self._wanted_models(self._listings)

    async def _guarded(self, name: str, work: Awaitable[None]) -> None:
        """Awaits work on one model; an exception changes nothing and affects no other model."""
        try:
            await work
        except Exception as error:
            fault = "cannot be read; serving the loaded versions"
            self._complaints.failed(_topic(name), fault, error)
        else:
            self._complaints.settle(_topic(name))

    async def _converge(self, name: str, listing: ModelListing, workers: asyncio.TaskGroup) -> None:
        model = await self._read(name, listing)
        # The wanted versions may change while some load: pointers move, pipelines need others.
        await model.loads.run(
            lambda: self._to_load(model, name),
            lambda version: self._load(model, Lane(name, version), workers),
            lambda: self._settle(model, name),
        )

    async def _follow(self, name: str, listing: ModelListing) -> None:
        """Obeys pointers that have moved while versions of the model load."""
        model = await self._read(name, listing)
        awaited = {one for one in model.wanted if self._directory.is_awaited(Lane(name, one))}
        model.loads.tried -= awaited
        model.loads.changed.set()
        self._settle(model, name)

    async def _read(self, name: str, listing: ModelListing) -> _Model:
        """Reads the pointers of a model, and determines the versions that should be served."""
        if listing.unreadable:
            raise StorageError(listing.unreadable)
        model = self._models.setdefault(name, _Model())
        await self._read_pointers(model, name, listing)
        model.wanted = await self._wanted_versions(name, model, listing)
        return model

    def _settle(self, model: _Model, name: str) -> None:
        """Makes the ready versions live that should be, and unloads those that nothing names."""
        left: set[int] = set()
        if model.pointers is not None and not self._policy.newest_versions:
            before = self._directory.aliases(name)
            left = unaliased(before, model.pointers.aliases) - {*model.wanted}
        self._switch(model, name, left)
        live = self._directory.live_version(name)
        named = {*model.wanted, *self._directory.aliases(name).values(), live} - left
        for served in self._directory.of_model(name):
            lane = served.lane
            is_kept = lane.version in named and not model.is_withdrawn
            if not is_kept and lane.version not in model.loads.loading:
                self._unload(lane)

    async def _read_pointers(self, model: _Model, name: str, listing: ModelListing) -> None:
        """Reads the newest valid generation, unless it has been read; skips invalid ones."""
        topic, reasons = f"pointers of {name}", []
        for generation in reversed(listing.generations[-MAX_GENERATIONS_TRIED:]):
            if model.pointers and model.pointers.generation >= generation:
                break
            try:
                found = await in_thread(self._store.pointers_at, name, generation)
                if model.pointers is None or found.generation > model.pointers.generation:
                    model.pointers = found  # a later pass may have read on meanwhile
            except Exception as error:
                reasons.append(reason_of(error))
        if reasons:
            self._complaints.log(topic, "are unreadable", reasons[0])
        else:
            self._complaints.settle(topic)

    async def _wanted_versions(self, name: str, model: _Model, listing: ModelListing) -> list[int]:
        """Returns versions to serve, first that which will be live, last those of pipelines."""
        pinned = self._policy.pinned.get(name)
        live = model.pointers.aliases.get(PRODUCTION) if model.pointers else None
        live = live if live in listing.versions and pinned is None else pinned
        needed = await self._pipelines.needed_versions(name, listing.versions, live)
        if pinned is not None:
            return list(dict.fromkeys([pinned, *needed]))
        pointed = model.pointers.versions if model.pointers else ()
        keep = max(self._policy.newest_versions, 0 if model.pointers else 1)
        newest = listing.versions[max(len(listing.versions) - keep, 0) :]
        found = [*([live] if live else ()), *sorted({*pointed, *newest}, reverse=True), *needed]
        return [version for version in dict.fromkeys(found) if version in listing.versions]

    def _to_load(self, model: _Model, name: str) -> Iterator[int]:
        """Yields the wanted versions that are neither here, nor away, nor refused lately."""
        for lane in (Lane(name, version) for version in model.wanted):
            is_here = lane in self._lanes
            if is_here and self._lanes.worker_of(lane) is None:
                self._begun.discard(name)  # it still drains: the pass behind that loads it
            is_away = self._directory.is_unloaded(lane) and not self._directory.is_awaited(lane)
            is_due = model.failures.is_due(lane.version, self._policy.retry_failed_s)
            if is_due and not (is_here or is_away or lane in self._pipelines):
                yield lane.version

    async def _load(self, model: _Model, lane: Lane, workers: asyncio.TaskGroup) -> None:
        self._directory.is_missed(lane)  # what was requested is loaded once
        comes_back = self._directory.is_unloaded(lane)
        niceness = load_niceness(not self.converged_once, comes_back)
        if lane.version not in model.failures.at:
            loading = ServedVersion(lane=lane, state="loading", comes_back=comes_back)
            self._directory.announce(loading)
        try:
            manifest = await in_thread(self._store.manifest, lane.model, lane.version)
            if any(artifact.folder for artifact in manifest.artifacts):
                model.loads.apart.add(lane.version)
            if manifest.pipeline is not None:
                await self._pipelines.read(manifest)
                return  # it is settled once all models have converged
            await self._lanes.load(manifest, workers, niceness=niceness)
        except Exception as error:
            if comes_back and isinstance(error, OutOfMemoryError) and error.is_passing:
                self._put_off(model, lane, error)
            else:
                self._fail(model, lane, error)
        else:
            model.failures.forget(lane.version)

    def _fail(self, model: _Model, lane: Lane, error: Exception) -> None:
        model.failures.at[lane.version] = time.monotonic()
        self._announce_failure(model, lane, error)

    def _put_off(self, model: _Model, lane: Lane, error: OutOfMemoryError) -> None:
        """Tries a requested version again soon: those that would make room are at work."""
        self._control.look_in(model.failures.put_off(lane.version, self._policy.retry_failed_s))
        self._directory.announce(
            ServedVersion(lane=lane, state="unloaded", reason=reason_of(error), comes_back=True)
        )
        self._directory.miss(lane)

    def _announce_failure(self, model: _Model, lane: Lane, error: Exception) -> None:
        """Announces that a version is refused; logs it if the reason is new."""
        reason, labels = reason_of(error), (lane.model, str(lane.version))
        self._metrics.model_ready.labels(*labels).set(0)
        self._metrics.expect_lane(lane.model, lane.version)
        self._metrics.failed_loads.labels(*labels).inc()
        if isinstance(error, LoadError):
            self._metrics.failed_verifications.labels(*labels).inc(error.failed_replays)
        self._directory.announce(ServedVersion(lane=lane, state="failed", reason=reason))
        model.failures.log(lane, reason, error)

    def _switch(self, model: _Model, name: str, left: Collection[int] = ()) -> None:
        """Makes production's version live, or the newest if no pointer names production."""
        ready = [one.version for one in self._served() if one.model == name]
        ready = [version for version in ready if version not in left]
        pointed = model.pointers.aliases if model.pointers else {}
        self._directory.set_aliases(name, switched(self._directory.aliases(name), pointed, ready))
        self._directory.set_traffic(name, model.pointers.traffic if model.pointers else None)
        target = pointed.get(PRODUCTION)
        if target is None:
            target = max((one for one in ready if one in model.wanted), default=None)
        if target is not None and target in ready:
            self._go_live(Lane(name, target), model.pointers.generation if model.pointers else 0)

    def _go_live_at_once(self, lane: Lane, generation: int) -> None:
        """Makes a version live at once: the default in a process without a fleet."""
        if lane.version != self._directory.live_version(lane.model):
            self._directory.make_live(lane)
            logger.info("version live", extra={"model": lane.model, "version": lane.version})


def _topic(model: str) -> str:
    """Returns the key of the complaints about a model as a whole."""
    return f"model {model}"
