"""The jobs' ledger: what was handed in, what became of it, and whether that happened once.

Pure. In: every job as it is submitted, everything that is read of it. Out: what was broken.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OVER = {"done", "failed", "cancelled", "expired"}
NAMED = ("dead letters",)
"""What the error of a job that failed must say: nothing but its own workers' deaths ends one."""


@dataclass(slots=True)
class Submitted:
    """One job, by its idempotency key.

    Attributes:
        expected: the value that is right.
        ids: what it was said to be called, each time that it was submitted.
        ends: what was read of it once it was over.
        announced: how often Redis was heard to say that it is over.
        forgotten: whether Redis lost its memory while it was under way, which ends its promises.
    """

    expected: float
    ids: list[str] = field(default_factory=list)
    ends: list[Mapping[str, Any]] = field(default_factory=list)
    announced: int = 0
    forgotten: bool = False


class JobLedger:
    """All jobs of one run."""

    def __init__(self) -> None:
        self._jobs: dict[str, Submitted] = {}
        self._by_id: dict[str, Submitted] = {}

    def submitted(self, key: str, expected: float) -> None:
        """A job is about to be submitted."""
        assert key not in self._jobs
        self._jobs[key] = Submitted(expected)

    def accepted(self, key: str, job_id: str) -> None:
        """A submission was answered with the name of a job."""
        self._jobs[key].ids.append(job_id)
        self._by_id[job_id] = self._jobs[key]

    def ended(self, key: str, document: Mapping[str, Any]) -> None:
        """The job was read, and is over."""
        assert document["state"] in OVER
        self._jobs[key].ends.append(document)

    def announced(self, job_id: str) -> None:
        """Redis said that a job is over."""
        if job_id in self._by_id:
            self._by_id[job_id].announced += 1

    def forgotten(self, key: str) -> None:
        """Redis lost its memory while the job was under way."""
        self._jobs[key].forgotten = True

    def counts(self) -> Counter[str]:
        """How many jobs ended how."""
        found: Counter[str] = Counter()
        for job in list(self._jobs.values()):  # others are being submitted meanwhile
            if job.ends:
                found[job.ends[0]["state"]] += 1
            elif job.forgotten:
                found["forgotten"] += 1
            else:
                found["open" if job.ids else "refused"] += 1
        return found

    def broken(self) -> list[str]:
        """Every promise that was not kept, a line each."""
        return [
            f"job '{key}': {fault}" for key, job in self._jobs.items() for fault in _faults(job)
        ]


def _faults(job: Submitted) -> list[str]:
    faults = []
    if job.ids and not job.ends and not job.forgotten:
        faults.append("lost: it was taken in, and is not over")
    if len(set(job.ids)) > 1 and not job.forgotten:
        faults.append(f"taken in {len(set(job.ids))} times with one idempotency key")
    if any(end != job.ends[0] for end in job.ends[1:]) and not job.forgotten:
        faults.append("published twice: it was over, and read differently later")
    if job.announced > 1 and not job.forgotten:
        faults.append(f"published {job.announced} times")
    return faults + [fault for end in job.ends[:1] for fault in _faults_of_end(job, end)]


def _faults_of_end(job: Submitted, end: Mapping[str, Any]) -> list[str]:
    if end["state"] == "done":
        value = end["result"]["outputs"][0]["data"][0]
        return [] if value == job.expected else [f"wrong: {value:g} instead of {job.expected}"]
    error = str(end.get("error", ""))
    if end["state"] == "failed" and any(said in error for said in NAMED):
        return []
    return [f"ended as {end['state']}: {error[:120]}"]
