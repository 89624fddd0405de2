"""The jobs' ledger: submitted jobs, their outcomes, and a check that each happened once.

Pure. In: every submitted job, and every read of it. Out: violations.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OVER = {"done", "failed", "cancelled", "expired"}
NAMED = ("dead letters",)
"""Text in the error of a failed job: only the death of its own workers ends a job."""


@dataclass(slots=True)
class Submitted:
    """One job, by its idempotency key.

    Attributes:
        expected: correct value.
        ids: ids returned for each submission.
        ends: documents read after its end.
        announced: number of Redis' events about its end.
        forgotten: True if Redis lost its data during the job, which voids its guarantees.
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
        """Records a job before its submission."""
        assert key not in self._jobs
        self._jobs[key] = Submitted(expected)

    def accepted(self, key: str, job_id: str) -> None:
        """Records the id in the response to a submission."""
        self._jobs[key].ids.append(job_id)
        self._by_id[job_id] = self._jobs[key]

    def ended(self, key: str, document: Mapping[str, Any]) -> None:
        """Records a read of the finished job."""
        assert document["state"] in OVER
        self._jobs[key].ends.append(document)

    def announced(self, job_id: str) -> None:
        """Records an event of Redis about the end of a job."""
        if job_id in self._by_id:
            self._by_id[job_id].announced += 1

    def forgotten(self, key: str) -> None:
        """Records that Redis lost its data during the job."""
        self._jobs[key].forgotten = True

    def counts(self) -> Counter[str]:
        """Counts jobs by outcome."""
        found: Counter[str] = Counter()
        for job in list(self._jobs.values()):  # other threads submit meanwhile
            if job.ends:
                found[job.ends[0]["state"]] += 1
            elif job.forgotten:
                found["forgotten"] += 1
            else:
                found["open" if job.ids else "refused"] += 1
        return found

    def broken(self) -> list[str]:
        """Returns every violated guarantee, one line each."""
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
