"""A job as JSON, as callers and webhooks receive it."""

from datetime import UTC, datetime
from typing import Any

from services.errors import ServingError
from services.queueing.job_records import Job


def job_document(job: Job) -> dict[str, Any]:
    """Returns a job as JSON, without its result."""
    found: dict[str, Any] = {
        "id": job.id,
        "model_name": job.lane.model,
        "model_version": str(job.lane.version),
        "state": job.state,
        "created_at": _moment(job.created_at),
        "deadline": _moment(job.deadline),
    }
    if job.finished_at is not None:
        found["finished_at"] = _moment(job.finished_at)
    if isinstance(job.outcome, ServingError):
        found["error"] = str(job.outcome)
    return found


def _moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
