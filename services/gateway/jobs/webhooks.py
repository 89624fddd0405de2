"""Calls webhooks when jobs are over.

In: due notifications. Out: a signed HTTP POST each; one without a 2xx status is retried later.

The body is the job as GET /v2/jobs/ID gives it, without its result; its id is the job's
(`services/webhook_calls.py`).

Rule: only hosts that the configuration names are called.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable

import orjson
from redis.exceptions import RedisError

from services.errors import InvalidRequestError, ServingError, UnknownJobError
from services.gateway.jobs.job_document import job_document
from services.gateway.jobs.job_service import check_webhook
from services.queueing.job_records import Job
from services.queueing.redis_streams.jobs import Jobs
from services.queueing.redis_streams.webhook_queue import Delivery, WebhookQueue
from services.webhook_calls import NO_RESPONSE, WebhookCalls

logger = logging.getLogger("flambeau.webhooks")

LOOK_EVERY_S = 0.5
AT_ONCE = 32
"""Concurrent calls; each occupies a thread."""
DELIVERING = 128
"""Deliveries that call, or wait for a turn."""
WAIT_S = 3.0
"""Longest wait for a turn. With the call it is shorter than the pause after which the queue gives
the delivery to a gateway again."""


class Webhooks:
    """Delivers webhooks in a loop.

    Args:
        queue: queue of due notifications.
        jobs: store of the jobs.
        models: models that may have jobs.
        secret: secret of the signature.
        hosts: hosts that may be called.
    """

    def __init__(
        self,
        queue: WebhookQueue,
        jobs: Jobs,
        models: Callable[[], Iterable[str]],
        secret: bytes,
        hosts: tuple[str, ...],
    ) -> None:
        self._queue = queue
        self._jobs = jobs
        self._models = models
        self._caller = WebhookCalls(secret)
        self._hosts = hosts
        self._calling = asyncio.Semaphore(AT_ONCE)
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Delivers due notifications until cancelled; survives any fault of Redis."""
        try:
            while True:
                room = DELIVERING - len(self._calls)
                with contextlib.suppress(RedisError):  # they wait for the queue
                    for delivery in await self._queue.due(self._models(), room) if room else ():
                        call = asyncio.create_task(self._deliver(delivery))
                        self._calls.add(call)
                        call.add_done_callback(self._calls.discard)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            for call in self._calls:
                call.cancel()
            await self._queue.close()

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            job = await self._jobs.find(delivery.job_id, None)  # without its result
            check_webhook(job.webhook, self._hosts)  # the configuration may have changed
            status = await self._call(job)
        except (UnknownJobError, InvalidRequestError):
            status = 0
        except ServingError:
            return
        facts = {"job": delivery.job_id, "status": status, "tries": delivery.tries}
        if 200 <= status < 300:
            logger.info("webhook delivered", extra=facts)
        elif status and not delivery.is_last:
            logger.warning("webhook failed; trying again later", extra=facts)
            return
        else:
            logger.error("webhook aborted", extra=facts)
        try:
            await self._queue.remove(delivery)
        except RedisError:
            logger.warning("a webhook may be called twice", extra=facts)

    async def _call(self, job: Job) -> int:
        """Calls once it is the URL's turn; without one, the queue gives the delivery again."""
        async with contextlib.AsyncExitStack() as turn:
            try:
                async with asyncio.timeout(WAIT_S):
                    await turn.enter_async_context(self._caller.turn(job.webhook))
                    await turn.enter_async_context(self._calling)
            except TimeoutError:
                return NO_RESPONSE
            return await self._caller.post(job.webhook, job.id, orjson.dumps(job_document(job)))
