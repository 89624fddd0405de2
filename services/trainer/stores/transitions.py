"""The state machine of a job, as pure functions.

    queued ──taken──▶ running ──finished──▶ succeeded | failed
      ▲ ▲ ╲              │ │ ╲
      │ │  cancelled     │ │  cancel asked, then cancelled
      │ └── requeued ────┘ │
      └──── abandoned ─────┘  (its worker died: once; the next time the job fails)
    failed | cancelled ──resumed──▶ queued

A run that is separate from its worker may still publish after the worker died. Such a job is
cancelled in two steps: it is queued with `cancel_asked`, so that no worker takes it; and it becomes
`cancelled` only after a worker has ended its run (`ended_apart`).

An expired lease does not prove that its worker died: the store may have been unavailable for both
workers. So the worker that finds it first gives the other a last call, which lasts `grace_s` while
the store is available; a worker that answers keeps its job, or returns it, and nothing is counted.
Only a takeover after the last call counts as a death.

In: a job and the time. Out: the job after the transition, and its event; None if the transition no
longer applies, because another change was first. A store replaces the one job by the other only if
it has not changed in between.
"""

import msgspec

from services.errors import ConflictError
from services.trainer.records import JobEvent, State, TrainingJob, cut

Change = tuple[TrainingJob, list[JobEvent]]


def submitted(job: TrainingJob) -> Change:
    """Submits a new job."""
    by = f" by {job.submitter}" if job.submitter else ""
    return job, [_event(job, job.created_at, f"submitted{by}")]


def taken(
    job: TrainingJob,
    worker: str,
    holder: str,
    now: float,
    lease_s: float,
    runs_apart: bool = False,
) -> Change | None:
    """Assigns a queued job to a worker.

    Args:
        job: the job.
        worker: name of the worker.
        holder: new secret of its lease.
        now: the time.
        lease_s: duration of the lease.
        runs_apart: True if the run survives its worker.
    """
    if job.state != "queued" or job.cancel_asked:
        return None
    changed = _changed(
        job,
        state="running",
        attempts=job.attempts + 1,
        worker=worker,
        holder=holder,
        lease_until=now + lease_s,
        runs_apart=runs_apart,
        started_at=now if job.started_at is None else job.started_at,
    )
    how = "resumed from its checkpoint" if job.attempts else "started"
    return changed, [_event(changed, now, f"{how} on {worker}, attempt {changed.attempts}")]


def renewed(job: TrainingJob, holder: str, now: float, lease_s: float) -> Change | None:
    """Renews the lease of its worker."""
    if not holds(job, holder):
        return None
    return _changed(job, lease_until=now + lease_s, last_call=False), []


def progressed(job: TrainingJob, holder: str, *, run_folder: str, epoch: int) -> Change | None:
    """Records the progress that its worker reports."""
    if not holds(job, holder):
        return None
    return _changed(job, run_folder=run_folder or job.run_folder, epoch=epoch or job.epoch), []


def succeeded(
    job: TrainingJob, holder: str, now: float, version: int, alias: str = ""
) -> Change | None:
    """Finishes a job that published a version; `alias` describes the recipe's alias, if any."""
    text = cut(f"published {job.model} {version}{alias}")
    return _finished(job, holder, now, "succeeded", text, version=version)


def failed(job: TrainingJob, holder: str, now: float, error: str) -> Change | None:
    """Finishes a job that failed; if its cancellation was requested, it is cancelled instead."""
    if job.cancel_asked:
        return stopped(job, holder, now)
    return _finished(job, holder, now, "failed", cut(error), error=cut(error))


def stopped(job: TrainingJob, holder: str, now: float) -> Change | None:
    """Cancels a job whose worker stopped it, if that was requested; otherwise requeues it."""
    if not holds(job, holder):
        return None
    if job.cancel_asked:
        return _stopped_for_good(job, now, "cancelled")
    return _requeued(job, now, f"returned to the queue by {job.worker}", job.deaths)


def abandoned(job: TrainingJob, now: float, takeovers: int, grace_s: float) -> Change | None:
    """Gives the worker of an expired lease a last call; after that, treats the worker as dead.

    Args:
        job: the job.
        now: the time.
        takeovers: number of worker deaths that a job may survive.
        grace_s: duration of the last call.
    """
    if job.state != "running" or now <= job.lease_until:
        return None
    if not job.last_call:
        return _changed(job, lease_until=now + grace_s, last_call=True), []
    if job.cancel_asked:
        return _stopped_for_good(job, now, "cancelled; its worker had died")
    deaths = job.deaths + 1
    if deaths <= takeovers:
        return _requeued(job, now, f"worker {job.worker} died; another takes over", deaths)
    error = (
        f"its worker died {deaths} times while it ran, the last time {job.worker} in attempt "
        f"{job.attempts}; look for what ends workers (memory?), then resume it"
    )
    return _finished(job, job.holder, now, "failed", error, error=error, deaths=deaths)


def cancelled(job: TrainingJob, now: float) -> Change | None:
    """Cancels a job, or requests its cancellation; a finished job remains unchanged."""
    if job.state == "queued" and not job.runs_apart:
        changed = _changed(job, state="cancelled", finished_at=now)
        return changed, [_event(changed, now, "cancelled")]
    if not job.is_over and not job.cancel_asked:
        changed = _changed(job, cancel_asked=True)
        return changed, [_event(changed, now, "to be cancelled")]
    return None


def ended_apart(job: TrainingJob, now: float) -> Change | None:
    """Finishes the cancellation of a job whose separate run has ended."""
    if job.state != "queued" or not job.cancel_asked:
        return None
    changed = _changed(
        job, state="cancelled", finished_at=now, cancel_asked=False, runs_apart=False
    )
    return changed, [_event(changed, now, "cancelled")]


def resumed(job: TrainingJob, now: float) -> Change | None:
    """Requeues a failed or cancelled job, which then continues from its checkpoint.

    Raises:
        ConflictError: it has succeeded, or is still being cancelled.
    """
    if job.state == "succeeded":
        raise ConflictError(
            f"job '{job.id}' has succeeded (version {job.version}); submit its recipe again instead"
        )
    if job.cancel_asked:
        raise ConflictError(f"job '{job.id}' is being cancelled; resume it once that is done")
    if not job.is_over:
        return None
    changed = _changed(
        job, state="queued", deaths=0, error="", finished_at=None, resumptions=job.resumptions + 1
    )
    return changed, [_event(changed, now, "to be resumed")]


def holds(job: TrainingJob, holder: str) -> bool:
    """Returns True if the job runs under this lease."""
    return job.state == "running" and job.holder == holder


def _requeued(job: TrainingJob, now: float, text: str, deaths: int) -> Change:
    changed = _changed(
        job, state="queued", worker="", holder="", lease_until=0.0, last_call=False, deaths=deaths
    )
    return changed, [_event(changed, now, text)]


def _stopped_for_good(job: TrainingJob, now: float, text: str) -> Change | None:
    """Finishes a job without a worker; requeues it to end its run, if that is separate."""
    if job.runs_apart:
        return _requeued(job, now, "to be cancelled; its run is being ended", job.deaths)
    return _finished(job, job.holder, now, "cancelled", text)


def _finished(
    job: TrainingJob, holder: str, now: float, state: State, text: str, **fields: object
) -> Change | None:
    if not holds(job, holder):
        return None
    changed = _changed(
        job, state=state, finished_at=now, worker="", holder="", lease_until=0.0,
        last_call=False, cancel_asked=False, **fields,
    )  # fmt: skip
    return changed, [_event(changed, now, text)]


def _changed(job: TrainingJob, **fields: object) -> TrainingJob:
    return msgspec.structs.replace(job, revision=job.revision + 1, **fields)


def _event(job: TrainingJob, now: float, text: str) -> JobEvent:
    return JobEvent(time=now, attempt=job.attempts, kind="state", text=text, state=job.state)
