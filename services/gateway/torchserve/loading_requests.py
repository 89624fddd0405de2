"""Requests that wait while the first workers of their version start; on an event loop.

In: inferences of versions that are registered, and not served yet. Out: each begins once its
version is served, or is refused once that is not to be expected.

Rules: a version has as many such requests as its job queue has places, in each process and for each
protocol; none waits longer than its time for an answer; one whose caller leaves is dropped at once.
Source: TorchServe 0.12, whose job queues take requests before the workers have started.
"""

import asyncio
import time
from collections.abc import Callable

from model_store.archives.registrations import RegisteredVersion
from services.errors import (
    DeadlineExceededError,
    ModelNotReadyError,
    ServingError,
    ShuttingDownError,
)
from services.gateway.inference import Inference
from services.queueing.directory import Directory
from services.queueing.records import Lane
from services.wire.body import Body

MAX_LOADING = 1000
"""Requests that wait for one version, whatever its job queue has room for."""
BEGUN_AT_ONCE = 8
"""Requests that begin in one turn of the event loop, each some 0.1 ms."""

_Start = Callable[[Inference, Body, str], None]
_Registration = Callable[[str, str], RegisteredVersion | None]


class LoadingRequests:
    """The requests of one protocol that wait for workers.

    Args:
        directory: versions that are served.
        registration: returns a registered version, as callers name it.
        start: begins an inference of a version that is served, or refuses it.
    """

    def __init__(self, directory: Directory, registration: _Registration, start: _Start) -> None:
        self._directory, self._registration, self._start = directory, registration, start
        self._waiting: dict[tuple[str, str], dict[_Place, None]] = {}
        """By model and version of the directory, in the order in which they came."""
        self._is_asked = self._is_closed = False
        directory.watch(self._changed)

    def take(self, inference: Inference, body: Body, version: str) -> bool:
        """Has an inference wait, if its version is to be served soon.

        Args:
            inference: opened, and not begun.
            body: of the request.
            version: TorchServe's version, as the caller named it; empty for the default one.

        Returns:
            False if it has to be refused.

        Raises:
            BackendError: the registrations cannot be read.
        """
        one = None if self._is_closed else self._coming(inference.model, version)
        key = inference.model, inference.version
        waiting = self._waiting.get(key, {})
        if one is None or len(waiting) >= min(one.job_queue_size, MAX_LOADING):
            return False
        place = _Place(inference, body, version, waiting)
        place.limit(one)
        self._waiting[key] = waiting
        waiting[place] = None
        inference.hold(place)
        return True

    def close(self) -> None:
        """Refuses them all, and takes no more: the server is about to leave."""
        self._is_closed = True
        error = ShuttingDownError("this server is shutting down; send the request to another")
        for waiting in self._waiting.values():
            for place in tuple(waiting):
                place.inference.fail(error)
        self._waiting.clear()

    def _coming(self, model: str, version: str) -> RegisteredVersion | None:
        """Returns a version whose workers start, or are to start soon; None for others."""
        one = self._registration(model, version)
        if one is None or one.number is None:
            return None
        lane = Lane(model, one.number)
        found = next((it for it in self._directory.of_model(model) if it.lane == lane), None)
        if found is None:  # the model process has not looked yet
            return one if time.time() - one.started_at < one.startup_timeout_s else None
        return None if found.state == "failed" else one

    def _changed(self) -> None:
        """Looks again in a later turn: what is changed together is then complete."""
        if self._waiting and not self._is_asked:
            self._is_asked = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_asked = False
        left = BEGUN_AT_ONCE
        for key, waiting in list(self._waiting.items()):
            while waiting and left and self._is_decided(key, next(iter(waiting)).version):
                place = next(iter(waiting))
                place.cancel()
                place.inference.hold(None)
                self._start(place.inference, place.body, place.version)
                left -= 1
            if not waiting:
                del self._waiting[key]
        if not left:
            self._changed()

    def _is_decided(self, key: tuple[str, str], version: str) -> bool:
        """Returns True if the requests of a version can begin, or have to be refused."""
        try:
            self._directory.resolve(*key)
        except ServingError:
            try:
                return self._coming(key[0], version) is None
            except ServingError:
                return True
        return True


class _Place:
    """The place of a request among those that wait.

    Args:
        inference: of the request.
        body: its body.
        version: as the caller named it.
        waiting: the others of its version.
    """

    __slots__ = ("_timer", "_waiting", "body", "inference", "version")

    def __init__(
        self, inference: Inference, body: Body, version: str, waiting: "dict[_Place, None]"
    ) -> None:
        self.inference, self.body, self.version = inference, body, version
        self._waiting = waiting
        self._timer: asyncio.TimerHandle | None = None

    def limit(self, one: RegisteredVersion) -> None:
        """Ends the wait with the time for an answer, or with that of the caller."""
        error: ServingError = ModelNotReadyError("its workers have not started in time")
        seconds = float(one.response_timeout_s)
        if one.client_timeout_ms and one.client_timeout_ms < seconds * 1000:
            seconds = one.client_timeout_ms / 1000
            error = DeadlineExceededError("the workers of its model have not started in time")
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(seconds, self.inference.fail, error)

    def cancel(self) -> None:
        """Leaves: the request begins, is refused, or has lost its caller."""
        self._waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
