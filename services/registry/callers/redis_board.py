"""Reports of the gateways that share a Redis, which the registry of a split server reads.

In: reports by gateway and model. Out: the same, with their ages by the clock of Redis.

Rules: Redis keeps a report for an hour after its gateway has sent it, and the newest `MAX_REPORTS`
of a model. Redis is hostile input: a script there reads names of gateways alone, and limits the
bytes of a report and of all together; one that is too large is read as an empty, malformed one.
"""

from collections.abc import Mapping, Sequence

from redis.exceptions import RedisError

from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.keys import callers_keys
from services.queueing.redis_streams.scripts import Script
from services.registry.callers.caller_reports import MAX_REPORT_BYTES
from services.registry.callers.deployment_callers import (
    MAX_READ_BYTES,
    MAX_REPORTS,
    KeptReport,
    ReportsUnavailableError,
)
from services.registry.callers.recent_callers import WINDOW_S


class RedisBoard:
    """The reports of gateways, in Redis.

    Args:
        clients: clients of the Redis that the gateways and the registry share.
    """

    def __init__(self, clients: RedisClients) -> None:
        self._redis, self._outage = clients.open(), clients.outage
        self._put = Script("put_report", __package__)
        self._read = Script("read_reports", __package__)

    async def put(self, process: str, reports: Mapping[str, bytes]) -> None:
        """Replaces the reports of a gateway; see `ReportBoard.put`."""
        limits = int(WINDOW_S), MAX_REPORTS
        try:
            for model, report in reports.items():
                await self._put(self._redis, callers_keys(model), process, report, *limits)
        except RedisError as error:
            raise self._unreachable(error) from error

    async def read(self, model: str) -> Sequence[KeptReport]:
        """Returns the reports of all gateways; see `ReportBoard.read`."""
        limits = MAX_REPORTS, int(WINDOW_S), MAX_REPORT_BYTES, MAX_READ_BYTES
        try:
            found = await self._read(self._redis, callers_keys(model), *limits)
        except RedisError as error:
            raise self._unreachable(error) from error
        return [
            KeptReport(name.decode(), float(age_s), report)
            for name, age_s, report in zip(found[::3], found[1::3], found[2::3], strict=True)
        ]

    def _unreachable(self, error: RedisError) -> ReportsUnavailableError:
        reason = self._outage.why or str(error)
        return ReportsUnavailableError(f"no gateway tells its callers: the queue fails ({reason})")

    async def close(self) -> None:
        """Closes its connections."""
        await self._redis.close()
