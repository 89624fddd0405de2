"""Calls webhooks when jobs are over.

In: due notifications. Out: a signed HTTP POST each; one without a 2xx status is retried later.

The body is the job as GET /v2/jobs/ID gives it, without its result. Headers and signature are those
of the Standard Webhooks specification: `webhook-id`, `webhook-timestamp` and `webhook-signature`,
an HMAC-SHA256 over `id.timestamp.body`.

Rules: no redirect is followed, and only hosts that the configuration names are called.
"""

import asyncio
import base64
import contextlib
import hashlib
import hmac
import http.client
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orjson
from redis.exceptions import RedisError

from services.errors import InvalidRequestError, ServingError, UnknownJobError
from services.gateway.jobs.job_document import job_document
from services.gateway.jobs.job_service import check_webhook
from services.queueing.job_records import Job
from services.queueing.redis_streams.jobs import Jobs
from services.queueing.redis_streams.webhook_queue import Delivery, WebhookQueue

logger = logging.getLogger("flambeau.webhooks")

LOOK_EVERY_S = 0.5
TIMEOUT_S = 10.0
"""Timeout of a call."""
AT_ONCE = 32
"""Concurrent calls; each occupies a thread."""
SECRET_PREFIX = b"whsec_"


class SecretError(ValueError):
    """The secret that webhooks are signed with cannot be used."""


def read_secret(file: str) -> bytes:
    """Reads a secret: `whsec_` and base64, or any other bytes as they are.

    Raises:
        SecretError: the file cannot be read, or holds less than 24 bytes.
    """
    if not file:
        raise SecretError("webhook_hosts is set: set webhook_secret_file too, to sign with")
    try:
        secret = Path(file).read_bytes().strip()
    except OSError as error:
        raise SecretError(f"webhook_secret_file {file}: {error.strerror}") from error
    if secret.startswith(SECRET_PREFIX):
        try:
            secret = base64.b64decode(secret.removeprefix(SECRET_PREFIX), validate=True)
        except ValueError as error:
            raise SecretError(f"webhook_secret_file {file}: not base64 ({error})") from error
    if len(secret) < 24:
        raise SecretError(f"webhook_secret_file {file} holds {len(secret)} bytes; give 24 or more")
    return secret


def signature(secret: bytes, webhook_id: str, timestamp: int, body: bytes) -> str:
    """Returns the value of `webhook-signature`."""
    signed = b"%b.%d.%b" % (webhook_id.encode(), timestamp, body)
    return f"v1,{base64.b64encode(hmac.digest(secret, signed, hashlib.sha256)).decode()}"


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
        self._secret = secret
        self._hosts = hosts
        self._opener = urllib.request.build_opener(_NoRedirect)
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="webhook")
        self._calls: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Delivers due notifications until cancelled; survives any fault of Redis."""
        try:
            while True:
                room = AT_ONCE - len(self._calls)
                with contextlib.suppress(RedisError):  # they wait for the queue
                    for delivery in await self._queue.due(self._models(), room) if room else ():
                        call = asyncio.create_task(self._deliver(delivery))
                        self._calls.add(call)
                        call.add_done_callback(self._calls.discard)
                await asyncio.sleep(LOOK_EVERY_S)
        finally:
            for call in self._calls:
                call.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)
            await self._queue.close()

    async def _deliver(self, delivery: Delivery) -> None:
        try:
            job = await self._jobs.find(delivery.job_id, None)  # without its result
            check_webhook(job.webhook, self._hosts)  # the configuration may have changed
            loop = asyncio.get_running_loop()
            status = await loop.run_in_executor(self._threads, self._post, job, delivery)
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

    def _post(self, job: Job, delivery: Delivery) -> int:
        """Calls once. Returns the status, or 1 without a response."""
        body = orjson.dumps(job_document(job))
        now = int(time.time())
        headers = {
            "content-type": "application/json",
            "user-agent": "flambeau",
            "webhook-id": delivery.job_id,
            "webhook-timestamp": str(now),
            "webhook-signature": signature(self._secret, delivery.job_id, now, body),
        }
        request = urllib.request.Request(job.webhook, body, headers, method="POST")  # noqa: S310
        try:
            with self._opener.open(request, timeout=TIMEOUT_S) as reply:
                return int(reply.status)
        except urllib.error.HTTPError as error:
            return error.code
        except (OSError, http.client.HTTPException, ValueError):  # the host may send anything
            return 1


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        """Follows no redirect: it could lead to any host."""
