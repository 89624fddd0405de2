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
from functools import partial

from model_store.archives.registrations import RegisteredVersion
from services.errors import (
    DeadlineExceededError,
    ModelNotReadyError,
    ServingError,
    ShuttingDownError,
)
from services.gateway.inference import Inference
from services.gateway.load_waits import LoadWaits
from services.gateway.torchserve.archive_registry import target
from services.queueing.directory import Directory
from services.queueing.records import Lane
from services.wire.body import Body

MAX_LOADING = 1000
"""Requests that wait for one version, whatever its job queue has room for."""

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
        self._waits: LoadWaits[tuple[str, str]] = LoadWaits()
        """By model and TorchServe's version."""
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
        key = inference.model, version
        places = self._waits.by_key.get(key, ())
        if one is None or len(places) >= min(one.job_queue_size, MAX_LOADING):
            return False
        seconds, error = _patience(one)
        wait = self._waits.add(
            key,
            time.monotonic() + seconds,
            again=partial(self._begin, inference, body, version),
            late=partial(inference.fail, error),
        )
        inference.hold(wait)
        return wait is not None

    def close(self) -> None:
        """Refuses them all, and takes no more: the server is about to leave."""
        self._is_closed = True
        self._waits.end_all()

    def _begin(self, inference: Inference, body: Body, version: str) -> None:
        inference.hold(None)
        if self._is_closed:
            words = "this server is shutting down; send the request to another"
            inference.fail(ShuttingDownError(words))
        else:
            self._start(inference, body, version)

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
        if self._waits.by_key and not self._is_asked:
            self._is_asked = True
            asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._is_asked = False
        for key in list(self._waits.by_key):
            if self._is_decided(*key):
                self._waits.end(key)

    def _is_decided(self, model: str, version: str) -> bool:
        """Returns True if the requests of a version can begin, or have to be refused."""
        try:
            self._directory.resolve(*target(model, version))
        except ServingError:
            try:
                return self._coming(model, version) is None
            except ServingError:
                return True
        return True


def _patience(one: RegisteredVersion) -> tuple[float, ServingError]:
    """Returns the seconds that requests wait for a version, and the error after them."""
    seconds = float(one.response_timeout_s)
    if one.client_timeout_ms and one.client_timeout_ms < seconds * 1000:
        error = DeadlineExceededError("the workers of its model have not started in time")
        return one.client_timeout_ms / 1000, error
    return seconds, ModelNotReadyError("its workers have not started in time")
