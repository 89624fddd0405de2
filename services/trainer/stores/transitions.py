"""What may become of a job: the state machine, as pure functions.

    queued ──taken──▶ running ──finished──▶ succeeded | failed
      ▲ ▲ ╲              │ │ ╲
      │ │  cancelled     │ │  cancel asked, then cancelled
      │ └── requeued ────┘ │
      └──── abandoned ─────┘  (its worker is gone: once; the next time it has failed)
    failed | cancelled ──resumed──▶ queued

What runs apart from its worker may still publish when its worker is gone. Such a job is cancelled
in two steps: it is queued, with its end asked for, so that nobody takes it; and it is `cancelled`
only once whoever looks has ended what runs of it (`ended_apart`).

A lease that has run out does not say that its worker is gone: the store may have been out of reach
for both. So whoever finds it first gives the worker a last call, as long as `grace_s`, in which the
store is in reach; a worker that answers keeps its job, or hands it back, and nothing is counted.
Only a takeover behind the last call counts as a death.

In: a job and the time. Out: the job after it, and the event to tell; None where the rule does not
apply any more, because somebody else was faster. A store swaps the one job for the other only if
nobody has changed it in between.
"""

import msgspec

from services.errors import ConflictError
from services.trainer.records import JobEvent, State, TrainingJob, cut

Change = tuple[TrainingJob, list[JobEvent]]


def submitted(job: TrainingJob) -> Change:
    """A job that has just come."""
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
    """A worker begins a queued job.

    Args:
        job: the job.
        worker: its name.
        holder: a new secret of its lease.
        now: the time.
        lease_s: how long it may be silent.
        runs_apart: whether the run lives on without it.
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
    """Its worker is alive."""
    if not holds(job, holder):
        return None
    return _changed(job, lease_until=now + lease_s, last_call=False), []


def progressed(job: TrainingJob, holder: str, *, run_folder: str, epoch: int) -> Change | None:
    """Its worker says how far it is."""
    if not holds(job, holder):
        return None
    return _changed(job, run_folder=run_folder or job.run_folder, epoch=epoch or job.epoch), []


def succeeded(
    job: TrainingJob, holder: str, now: float, version: int, alias: str = ""
) -> Change | None:
    """It has published a version, and an alias moved to it or not."""
    text = cut(f"published {job.model} {version}{alias}")
    return _finished(job, holder, now, "succeeded", text, version=version)


def failed(job: TrainingJob, holder: str, now: float, error: str) -> Change | None:
    """It will not come to a version; a job whose end was asked for counts as cancelled."""
    if job.cancel_asked:
        return stopped(job, holder, now)
    return _finished(job, holder, now, "failed", cut(error), error=cut(error))


def stopped(job: TrainingJob, holder: str, now: float) -> Change | None:
    """Its worker has ended it: because that was asked for, or to leave it to another worker."""
    if not holds(job, holder):
        return None
    if job.cancel_asked:
        return _stopped_for_good(job, now, "cancelled")
    return _requeued(job, now, f"handed back by {job.worker}; it waits for a worker", job.deaths)


def abandoned(job: TrainingJob, now: float, takeovers: int, grace_s: float) -> Change | None:
    """Its worker was silent for a whole lease, and is called; or did not answer, and is dead.

    Args:
        job: the job.
        now: the time.
        takeovers: how often a job may outlive its worker.
        grace_s: how long it has to answer the last call.
    """
    if job.state != "running" or now <= job.lease_until:
        return None
    if not job.last_call:
        return _changed(job, lease_until=now + grace_s, last_call=True), []
    if job.cancel_asked:
        return _stopped_for_good(job, now, "cancelled; its worker was gone")
    deaths = job.deaths + 1
    if deaths <= takeovers:
        return _requeued(job, now, f"worker {job.worker} is gone; another takes over", deaths)
    error = (
        f"its worker died {deaths} times while it ran, the last time {job.worker} in attempt "
        f"{job.attempts}; look for what ends workers (memory?), then resume it"
    )
    return _finished(job, job.holder, now, "failed", error, error=error, deaths=deaths)


def cancelled(job: TrainingJob, now: float) -> Change | None:
    """Somebody wants it to end; one that is over stays as it is."""
    if job.state == "queued" and not job.runs_apart:
        changed = _changed(job, state="cancelled", finished_at=now)
        return changed, [_event(changed, now, "cancelled")]
    if not job.is_over and not job.cancel_asked:
        changed = _changed(job, cancel_asked=True)
        return changed, [_event(changed, now, "to be cancelled")]
    return None


def ended_apart(job: TrainingJob, now: float) -> Change | None:
    """What ran of it apart from any worker is gone, as was asked for."""
    if job.state != "queued" or not job.cancel_asked:
        return None
    changed = _changed(
        job, state="cancelled", finished_at=now, cancel_asked=False, runs_apart=False
    )
    return changed, [_event(changed, now, "cancelled")]


def resumed(job: TrainingJob, now: float) -> Change | None:
    """Somebody wants one that has failed or was cancelled to go on from its checkpoint.

    Raises:
        ConflictError: it has succeeded, so that there is nothing to go on with.
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
    """Whether it runs by this lease."""
    return job.state == "running" and job.holder == holder


def _requeued(job: TrainingJob, now: float, text: str, deaths: int) -> Change:
    changed = _changed(
        job, state="queued", worker="", holder="", lease_until=0.0, last_call=False, deaths=deaths
    )
    return changed, [_event(changed, now, text)]


def _stopped_for_good(job: TrainingJob, now: float, text: str) -> Change | None:
    """Nobody attends it any more; it is over, unless its run lives on."""
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
