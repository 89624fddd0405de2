"""The controller of `ModelRollout`s: lists and watches them, and looks at each when it is due.

In: the API of Kubernetes, and a registry. Out: rollouts, and the status of the objects.

Rules:
- an object is due when the watch tells of a new generation of it or of its deletion, when its last
  look asked for another, and after each list; so a lost event costs time and nothing else;
- the controller's own writes of a status make no object due: its failures would have no pauses;
- failures are tried again, each object's and the watch's after pauses that double to `PAUSE_S`;
- several controllers may run at once: `reconciliation` makes that harmless, not cheap;
- calls block, so they run in threads, `AT_ONCE` at a time.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable

from flambeau.registry.errors import RegistryError
from services.kubernetes.object_api import GONE, KubernetesError, Object, ObjectApi, WatchStop
from services.kubernetes.reconciliation import Reconciliation

logger = logging.getLogger("flambeau.model_rollouts")

AT_ONCE = 8
WATCH_S = 240
"""Seconds of one watch; the next one goes on where it ended."""
FIRST_PAUSE_S, PAUSE_S = 1.0, 60.0
"""Pauses after the first failure, and after many."""


class ModelRolloutController:
    """The controller.

    Args:
        objects: the API of the objects.
        reconciliation: what a look does.

    Attributes:
        why_not_ready: reason why the objects are not known; empty once they are.
    """

    def __init__(self, objects: ObjectApi, reconciliation: Reconciliation) -> None:
        self._objects, self._reconciliation = objects, reconciliation
        self._due: dict[str, float] = {}
        """Times of the next looks, by name, on the clock of the event loop."""
        self._failures: dict[str, int] = {}
        self._seen: dict[str, tuple[str, int]] = {}
        """Uid and generation of each object as the last list or event had it."""
        self._woken = asyncio.Event()
        self._stop = WatchStop()
        self.why_not_ready = "the ModelRollouts are not listed yet"

    async def run(self, asked: asyncio.Event) -> None:
        """Works until the event is set; calls that run are finished."""
        async with asyncio.TaskGroup() as tasks:
            following = tasks.create_task(self._follow(), name="watch")
            looking = tasks.create_task(self._look_on(asked), name="looks")
            await asked.wait()
            self._stop.set()
            self._woken.set()
            await looking
            following.cancel()

    async def _follow(self) -> None:
        """Lists and watches, again and again."""
        failures, version = 0, ""
        while not self._stop.is_set:
            try:
                if not version:
                    found, version = await asyncio.to_thread(self._objects.list)
                    self._listed(found)
                version = await self._watched(version)
                failures = 0
            except KubernetesError as error:
                version = ""
                if error.status == GONE:
                    continue
                self.why_not_ready = str(error)
                logger.warning("no watch of ModelRollouts", extra={"reason": str(error)})
                await asyncio.sleep(pause_s(failures))
                failures += 1

    def _listed(self, found: list[Object]) -> None:
        names = {one["metadata"]["name"] for one in found}
        for name in self._failures.keys() - names:
            del self._failures[name]
        self._seen = {one["metadata"]["name"]: _generation(one["metadata"]) for one in found}
        self._due = dict.fromkeys(names | self._due.keys(), 0.0)  # a start of one may be open
        self.why_not_ready = ""
        self._woken.set()

    async def _watched(self, version: str) -> str:
        """Watches once; returns the version at which the next watch goes on.

        Raises:
            KubernetesError: as `ObjectApi.watch`.
        """
        loop = asyncio.get_running_loop()

        def watch() -> str:
            newest = version
            for event in self._objects.watch(version, WATCH_S, self._stop):
                metadata = event["object"].get("metadata", {})
                newest = str(metadata.get("resourceVersion", newest))
                if event["type"] != "BOOKMARK":
                    loop.call_soon_threadsafe(self._changed, event["type"], metadata)
            return newest

        return await asyncio.to_thread(watch)

    def _changed(self, kind: str, metadata: Object) -> None:
        name, seen = str(metadata.get("name", "")), _generation(metadata)
        if kind == "DELETED":
            self._seen.pop(name, None)
        elif self._seen.get(name) == seen and "deletionTimestamp" not in metadata:
            return
        else:
            self._seen[name] = seen
        self._due[name] = 0.0
        self._woken.set()

    async def _look_on(self, asked: asyncio.Event) -> None:
        """Looks at the objects that are due, `AT_ONCE` at a time."""
        now = asyncio.get_running_loop().time
        while not asked.is_set():
            self._woken.clear()
            due = [name for name, at in self._due.items() if at <= now()][:AT_ONCE]
            for name in due:
                del self._due[name]
            await asyncio.gather(*(self._look(name, now) for name in due))
            if not due:
                first = min(self._due.values(), default=None)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if first is None else first - now()):
                        await self._woken.wait()

    async def _look(self, name: str, now: Callable[[], float]) -> None:
        try:
            after_s = await asyncio.to_thread(self._reconciliation.look, name)
            self._failures.pop(name, None)
        except (KubernetesError, RegistryError) as error:
            after_s = 0.0 if error.status == 409 else pause_s(self._failures.get(name, 0))
            self._failures[name] = self._failures.get(name, 0) + 1
            logger.warning("no look", extra={"model_rollout": name, "reason": str(error)})
            if isinstance(error, RegistryError):
                await self._tell(name, str(error))
        if after_s is not None:
            self._due.setdefault(name, now() + after_s)

    async def _tell(self, name: str, trouble: str) -> None:
        with contextlib.suppress(KubernetesError):  # the next look tells it
            await asyncio.to_thread(self._reconciliation.tell, name, trouble)


def _generation(metadata: Object) -> tuple[str, int]:
    return str(metadata.get("uid", "")), int(metadata.get("generation", 0))


def pause_s(failures: int) -> float:
    """Returns the pause after some failures in a row."""
    return float(min(FIRST_PAUSE_S * 2 ** min(failures, 10), PAUSE_S))
