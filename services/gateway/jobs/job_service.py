"""Submits jobs: checks a decoded request as any other, and stores it as a job.

In: an `InferCall`, and the caller's options of the job. Out: a `Job`.
"""

import hashlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from services.access.caller import Principal
from services.errors import InvalidRequestError, ShuttingDownError, UnknownJobError
from services.gateway.admission import Admission, InferCall
from services.queueing.job_records import Job

if TYPE_CHECKING:
    from services.queueing.redis_streams.jobs import Jobs

MAX_WAIT_S = 60.0
"""The longest a caller may wait for a job to finish in one call."""
LONGEST_WEBHOOK = 2048
_KEY = re.compile(r"[!-~]{1,255}")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_WEBHOOK = re.compile(rf"https?://({_LABEL}(?:\.{_LABEL})*)(?::([0-9]{{1,5}}))?(?:/[!-~]*)?")
"""Pattern of a webhook's URL: a host name by RFC 1123, and a port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """A caller's options of a job beside the inference."""

    timeout_s: float | None = None
    """Timeout of the job; None for the gateway's limit."""
    idempotency_key: str = ""
    """Two submissions with the same key are one job; empty for none."""
    webhook: str = ""
    """URL that is called when the job is over; empty for none."""


class JobService:
    """Submits and finds jobs.

    Args:
        admission: checks of requests.
        jobs: store of the jobs.
        max_timeout_s: longest timeout of a job.
        webhook_hosts: hosts that webhooks may call; empty for none.
    """

    def __init__(
        self,
        admission: Admission,
        jobs: "Jobs",
        *,
        max_timeout_s: float,
        webhook_hosts: tuple[str, ...],
    ) -> None:
        self._admission = admission
        self._max_timeout_s = max_timeout_s
        self._webhook_hosts = webhook_hosts
        self.jobs = jobs

    async def submit(
        self, call: InferCall, preference: JobOptions, reserve: Callable[[int], object]
    ) -> tuple[Job, bool]:
        """Submits a job.

        Args:
            call: the inference to run.
            preference: the caller's options of the job.
            reserve: reservation of memory for the large result of a job that is over already.

        Returns:
            The job, and True if it is new.

        Raises:
            ServingError: the request breaks a rule of the model, or of jobs; too many wait; or
                they cannot be stored at present.
        """
        if self._admission.draining:
            raise ShuttingDownError("this server is shutting down; send the job to another")
        if call.sequence is not None:
            raise InvalidRequestError(
                f"a job cannot be step '{call.sequence.id:.200}' of a sequence: jobs run in any "
                "order, on any worker; send the steps as requests, each after the answer before it"
            )
        if preference.idempotency_key and not _KEY.fullmatch(preference.idempotency_key):
            raise InvalidRequestError(
                "the idempotency key must be 1 to 255 printable characters without blanks, and is "
                f"{preference.idempotency_key[:60]!r}"
            )
        if preference.webhook:
            check_webhook(preference.webhook, self._webhook_hosts)
        timeout_s = self._max_timeout_s
        if preference.timeout_s is not None:
            timeout_s = min(preference.timeout_s, timeout_s)
        request = self._admission.checked(call)
        job_id, is_new = await self.jobs.submit(
            request,
            timeout_s,
            asked_for=" ".join((call.version, *(call.preference or ()))),
            idempotency_key=_own_key(call, preference.idempotency_key),
            webhook=preference.webhook,
        )
        return await self.jobs.find(job_id, reserve), is_new


def check_job(principal: Principal, job_id: str) -> None:
    """Refuses a job of a model that the principal may not use: an id starts with its model's name.

    Raises:
        UnknownJobError: the same error as for a missing job.
    """
    caller = principal.caller
    if caller is not None and not caller.may("infer", job_id.rpartition(".")[0]):
        raise UnknownJobError(f"job '{job_id}' does not exist, or has expired")


def _own_key(call: InferCall, key: str) -> str:
    """Returns an idempotency key that no other authenticated caller can have."""
    if call.caller is None or not key:
        return key
    return hashlib.sha256(f"{call.caller.name} {key}".encode()).hexdigest()


def check_webhook(url: str, hosts: tuple[str, ...]) -> None:
    """Refuses a webhook that may not be called.

    Args:
        url: the caller's URL.
        hosts: allowed hosts; one that begins with a dot means all its subdomains.

    Raises:
        InvalidRequestError: the URL is invalid, or its host is not among them.
    """
    found = _WEBHOOK.fullmatch(url)
    if found is None or len(url) > LONGEST_WEBHOOK or int(found[2] or 0) > 65_535:
        raise InvalidRequestError(
            f"the webhook must be a URL like https://host/path of {LONGEST_WEBHOOK} characters at "
            f"most, and has {len(url)}: {url[:80]!r}"
        )
    host = found[1].lower()
    hosts = tuple(one.lower() for one in hosts)
    if not any(host == one or (one.startswith(".") and host.endswith(one)) for one in hosts):
        raise InvalidRequestError(
            f"webhooks to '{host}' are not allowed here (webhook_hosts); ask for the job with "
            "GET /v2/jobs/ID?wait=30s instead"
        )
