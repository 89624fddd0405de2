"""Takes in jobs: what an edge decoded, checked as any request is, goes to where jobs are kept.

In: an `InferCall`, and what a caller may say of a job. Out: a `Job`.
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
"""The longest a caller may wait for a job to be over in one call."""
LONGEST_WEBHOOK = 2048
_KEY = re.compile(r"[!-~]{1,255}")
_LABEL = r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_WEBHOOK = re.compile(rf"https?://({_LABEL}(?:\.{_LABEL})*)(?::([0-9]{{1,5}}))?(?:/[!-~]*)?")
"""Its host, as RFC 1123 has names; and its port."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """What a caller says of a job beside what is to be run."""

    timeout_s: float | None = None
    """How long it may take; None for as long as the gateway allows."""
    idempotency_key: str = ""
    """A job with the same key is the same job; empty for none."""
    webhook: str = ""
    """URL to tell that it is over; empty for none."""


class JobService:
    """Where jobs are taken in and asked for.

    Args:
        admission: checks what is to be run.
        jobs: where they are kept.
        max_timeout_s: the longest a job may take.
        webhook_hosts: hosts that may be told; empty for none.
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
        """Takes in a job.

        Args:
            call: what is to be run.
            preference: what the caller says of it besides.
            reserve: asked before the large outcome is fetched of a job that is over already.

        Returns:
            The job, and whether it is new.

        Raises:
            ServingError: the request breaks a rule of the model, or of jobs; too many wait; or
                they cannot be kept at present.
        """
        if self._admission.draining:
            raise ShuttingDownError("this server is shutting down; send the job to another")
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
    """Refuses a job of a model that the principal may not ask: an id begins with the model's name.

    Raises:
        UnknownJobError: as of a job that is not there.
    """
    caller = principal.caller
    if caller is not None and not caller.may("infer", job_id.rpartition(".")[0]):
        raise UnknownJobError(f"there is no job '{job_id}', or it was forgotten")


def _own_key(call: InferCall, key: str) -> str:
    """An idempotency key that no other caller can have, where callers are known."""
    if call.caller is None or not key:
        return key
    return hashlib.sha256(f"{call.caller.name} {key}".encode()).hexdigest()


def check_webhook(url: str, hosts: tuple[str, ...]) -> None:
    """Refuses a webhook that may not be called.

    Args:
        url: the caller's.
        hosts: those that may be called; one that begins with a dot means all below it.

    Raises:
        InvalidRequestError: it is no such URL, or its host is not among them.
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
