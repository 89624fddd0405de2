"""Figures of the statistics calls, where the models run in workers behind Redis.

In: the figures that each worker stores in Redis, and those of this gateway. Out: their sums:
requests as this gateway has answered them, runs and waits of all workers.
"""

from redis.exceptions import RedisError

from services.errors import QueueUnavailableError
from services.queueing.redis_streams.registry import FleetWatch
from services.shared_rounds import SharedRounds
from services.telemetry.metrics import Metrics
from services.telemetry.model_figures import Figures, VersionFigures, added

PAUSE_S = 0.1
"""Pause between two questions to Redis, however many calls there are."""


class FleetFigures:
    """The figures of a gateway and of the workers.

    Args:
        metrics: of the gateway.

    Attributes:
        watch: knows the workers; None until the gateway has begun.
    """

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._rounds = SharedRounds(self._ask, PAUSE_S)
        self.watch: FleetWatch | None = None

    async def of(self, model: str) -> Figures:
        """Returns the figures of a model, or of all for an empty name.

        Raises:
            QueueUnavailableError: Redis is out of reach.
        """
        try:
            found = await self._rounds.answer()
        except RedisError as error:
            raise QueueUnavailableError(f"the queue is unreachable: {error}; try again") from error
        return added([one for one in each if not model or one.model == model] for each in found)

    async def _ask(self) -> list[list[VersionFigures]]:
        workers = [] if self.watch is None else await self.watch.figures()
        return [[*self._metrics.figures.all()], *workers]
