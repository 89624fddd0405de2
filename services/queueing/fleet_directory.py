"""Applies the versions that other processes serve to the directory and the queue of a gateway."""

import logging
from collections.abc import Callable

from services.queueing.directory import Directory
from services.queueing.fleet import FleetView
from services.queueing.memory_queue import Intake, MemoryQueue
from services.queueing.records import Lane, ServedVersion

logger = logging.getLogger("flambeau.fleet")


class FleetDirectory:
    """Applies the workers' announcements to a gateway's directory and queue.

    Args:
        directory: directory of the gateway.
        queue: queue with the open lanes.
        intake_of: function that returns the intake of a lane.
        forgets: True if a model that no worker announces is not to be served, as with the one model
            process of a machine; else it may come back, and its requests are told so.

    Attributes:
        started: True once any worker has read its whole store.
    """

    def __init__(
        self,
        directory: Directory,
        queue: MemoryQueue,
        intake_of: Callable[[Lane], Intake],
        *,
        forgets: bool = False,
    ) -> None:
        self._forgets = forgets
        self._directory = directory
        self._queue = queue
        self._intake_of = intake_of
        self.started = False

    def apply(self, view: FleetView) -> None:
        """Applies the announcements."""
        directory = self._directory
        self.started = self.started or view.started
        models = {lane.model for lane in view.versions}
        known = {served.lane: served for served in directory.all_versions()}
        for lane, served in view.versions.items():
            if known.get(lane) != served:
                directory.announce(served)
                self._change_lanes(known.get(lane), served)
        make_live(directory, view)
        for model in models:
            directory.set_aliases(model, view.aliases.get(model, {}))
            if model in view.traffic:
                directory.set_traffic(model, view.traffic[model])
        for lane, served in known.items():
            if lane in view.versions:
                continue
            forgets = view.is_chosen or (self._forgets and view.started)
            if lane.model in models or forgets:
                directory.withdraw(lane)
                self._change_lanes(served, None)
            else:
                gone = _unserved(served)
                directory.announce(gone)
                self._change_lanes(served, gone)

    def _change_lanes(self, before: ServedVersion | None, after: ServedVersion | None) -> None:
        """Opens the lanes that a version has gained, and closes those that it has lost."""
        had, has = _lanes_of(before), _lanes_of(after)
        for lane in has:
            if lane not in had:
                self._queue.open(lane, self._intake_of(lane))
        for lane in had:
            if lane not in has:
                self._queue.close(lane)


def make_live(directory: Directory, view: FleetView) -> None:
    """Makes the versions live that the fleet has switched to, if they are known here."""
    known = {served.lane for served in directory.all_versions()}
    for model, version in view.live.items():
        lane = Lane(model, version)
        if lane in known and directory.live_version(model) != version:
            directory.make_live(lane)
            logger.info("version live", extra={"model": model, "version": version})


def _lanes_of(served: ServedVersion | None) -> list[Lane]:
    """The default lane of a version, and one for each artifact with a lane of its own."""
    if served is None:
        return []
    return list(dict.fromkeys([served.lane, *(known.lane for known in served.artifacts)]))


def _unserved(served: ServedVersion) -> ServedVersion:
    """Returns a version without workers."""
    reason = "no worker serves it at present; try again"
    return ServedVersion(lane=served.lane, state="unloaded", reason=reason)
