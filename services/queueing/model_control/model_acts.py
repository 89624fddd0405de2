"""Loads and unloads models in all workers of a Redis, for the callers of a gateway.

In: the acts of callers, and the announcements of the workers. Out: the set of models in Redis;
the outcome of each act, once every worker that follows the set has carried it out or refused it.
"""

import asyncio

from redis.exceptions import RedisError

from services.errors import (
    ControlModeError,
    ModelNotReadyError,
    QueueUnavailableError,
    ServingError,
    TooManyInFlightError,
    UnknownModelError,
)
from services.queueing.directory import Directory
from services.queueing.fleet import FleetView
from services.queueing.model_control.act_limit import check_acts
from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import MODELS_KEY
from services.queueing.redis_streams.scripts import Script
from services.queueing.redis_streams.wire import error_of_kind

MAX_MODELS = 4096
"""Models that callers may have loaded: every worker keeps the set, and reads it when it changes."""
NO_MODELS_OF_ITS_OWN = (
    "explicit model load / unload is not allowed if polling is enabled: the models of a gateway "
    "are those that its workers serve, which follow the pointers of their store (flambeau models "
    "promote), and no worker was started with model_control=explicit"
)
"""Begins with Triton's words."""


class ModelActs:
    """The acts of one gateway.

    Args:
        clients: clients of the Redis that all processes share.
        directory: of the gateway; it follows a view of the fleet before `learn` gets that view.
    """

    def __init__(self, clients: RedisClients, directory: Directory) -> None:
        self._redis = clients.open()
        self._directory = directory
        self._act, self._forget = Script("act", __package__), Script("forget", __package__)
        self._view: FleetView | None = None
        self._learned = asyncio.Event()
        self._acts = 0

    def learn(self, view: FleetView) -> None:
        """Learns what the workers announce."""
        self._view = view
        self._learned.set()
        self._learned = asyncio.Event()

    async def close(self) -> None:
        """Closes the client."""
        await self._redis.close()

    async def act(self, act: str, model: str, dependents: bool = False) -> None:
        """Loads or unloads a model, and waits until that is done.

        Args:
            act: `load` or `unload`.
            model: its name.
            dependents: True to unload the models that its pipeline runs, too.

        Raises:
            ServingError: no worker can load it, too many acts or models, or Redis is out of reach.
        """
        if self._view is None:
            raise QueueUnavailableError(
                "this gateway is starting and does not know its workers yet; call again soon"
            )
        if not self._view.follow:
            if self._view.started:
                raise ControlModeError(NO_MODELS_OF_ITS_OWN)
            raise QueueUnavailableError(
                f"there is no worker to {act} '{model}'; start one, or call again soon"
            )
        check_acts(self._acts)
        self._acts += 1
        try:
            await self._carry_out(act, model, dependents)
        except RedisError as error:
            raise QueueUnavailableError(
                f"the {act} of '{model}' may be lost, for the queue is unreachable: {error}; "
                "call again"
            ) from error
        finally:
            self._acts -= 1

    async def _carry_out(self, act: str, model: str, dependents: bool) -> None:
        if not model:  # its field has the revision
            if act == "load":
                raise UnknownModelError("failed to load '': give the name of a model")
            return
        models = [model, *(self._parts(model) if dependents else ())]
        found = await self._act(self._redis, (MODELS_KEY,), act, MAX_MODELS, *models)
        if found == b"full":
            raise TooManyInFlightError(
                f"{MAX_MODELS} models are loaded, the limit; unload others first"
            )
        if not found:
            raise QueueUnavailableError(
                "the queue has lost the models that are loaded, and no worker has told it of them "
                f"again yet; call again to {act} '{model}'"
            )
        while not self._is_done(model, int(found)):
            await self._learned.wait()
        if act == "load" and self._directory.live_version(model) is None:
            raise await self._refusal(model, found)

    def _parts(self, model: str) -> list[str]:
        """Returns the models that the pipelines of a name run."""
        runs = [one.execution for one in self._directory.of_model(model) if one.execution]
        return list(dict.fromkeys(step.model for execution in runs for step in execution.steps))

    def _is_done(self, model: str, revision: int) -> bool:
        assert self._view is not None
        return all(
            known.revision >= revision and model not in known.pending for known in self._view.follow
        )

    async def _refusal(self, model: str, revision: bytes) -> ServingError:
        """Returns why no worker has a model; one that all of them do not know is forgotten."""
        assert self._view is not None
        said = [known.refused[model] for known in self._view.follow if model in known.refused]
        errors = [error_of_kind(kind, words) for kind, words in said]
        others = [error for error in errors if not isinstance(error, UnknownModelError)]
        if errors and not others:
            await self._forget(self._redis, (MODELS_KEY,), model, revision)
        if errors:
            return (others or errors)[0]
        return ModelNotReadyError(
            f"model '{model}' is not loaded: another caller has unloaded it meanwhile, or its "
            "workers have ended; call again"
        )
