"""Stores jobs in an SQLite file: nothing to install, one machine.

Every call runs in one thread, which owns the connection. Several processes may share the file; each
notices its own changes at once, and polls for those of the others every `look_every_s`.
"""

import asyncio
import sqlite3
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

import msgspec

from services.errors import QueueUnavailableError
from services.trainer.records import STATES, JobEvent, State, TrainingJob
from services.trainer.stores.job_store import QUEUE, Bell, no_such_job

Found = TypeVar("Found")
LOOK_EVERY_S = 0.5
BUSY_S = 10.0
"""Timeout of a call that waits for a write of another process."""
_SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (
    id TEXT PRIMARY KEY, state TEXT NOT NULL, created REAL NOT NULL, revision INTEGER NOT NULL,
    holder TEXT NOT NULL, last_seq INTEGER NOT NULL DEFAULT 0, document BLOB NOT NULL);
CREATE INDEX IF NOT EXISTS jobs_by_state ON jobs (state, created);
CREATE TABLE IF NOT EXISTS events (
    job TEXT NOT NULL, seq INTEGER NOT NULL, document BLOB NOT NULL, PRIMARY KEY (job, seq))
    WITHOUT ROWID;
"""
_job = msgspec.json.Decoder(TrainingJob)
_event = msgspec.json.Decoder(JobEvent)
_encode = msgspec.json.Encoder().encode


class SqliteJobStore:
    """Implements `JobStore`.

    Args:
        path: path of the file; created with its folder if absent.
        max_events: number of newest events of a job to keep.

    Raises:
        QueueUnavailableError: it cannot be opened.
    """

    look_every_s = LOOK_EVERY_S

    def __init__(self, path: Path, max_events: int) -> None:
        self.bell = Bell()
        self._max_events = max_events
        self._thread = ThreadPoolExecutor(1, "jobs")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sql: sqlite3.Connection = self._thread.submit(_open, path).result()
        except (OSError, sqlite3.Error) as error:
            self._thread.shutdown()
            raise QueueUnavailableError(f"cannot open the file of jobs {path}: {error}") from error

    async def now(self) -> float:
        """See `JobStore.now`."""
        return time.time()

    async def create(self, job: TrainingJob, events: Sequence[JobEvent]) -> bool:
        """See `JobStore.create`."""

        def write() -> bool:
            found = self._sql.execute(
                "INSERT OR IGNORE INTO jobs (id, state, created, revision, holder, document) "
                "VALUES (?, ?, ?, ?, ?, ?)",
                (job.id, job.state, job.created_at, job.revision, job.holder, _encode(job)),
            )
            if found.rowcount:
                self._add(job.id, events)
            return bool(found.rowcount)

        created = await self._writing(write)
        self._ring(job)
        return created

    async def find(self, job_id: str) -> TrainingJob:
        """See `JobStore.find`."""
        row = await self._call(
            lambda: self._sql.execute(
                "SELECT document FROM jobs WHERE id = ?", (job_id,)
            ).fetchone()
        )
        if row is None:
            raise no_such_job(job_id)
        return _job.decode(row[0])

    async def swap(self, job: TrainingJob, events: Sequence[JobEvent]) -> bool:
        """See `JobStore.swap`."""

        def write() -> bool:
            found = self._sql.execute(
                "UPDATE jobs SET state = ?, revision = ?, holder = ?, document = ? "
                "WHERE id = ? AND revision = ?",
                (job.state, job.revision, job.holder, _encode(job), job.id, job.revision - 1),
            )
            if found.rowcount:
                self._add(job.id, events)
            return bool(found.rowcount)

        swapped = await self._writing(write)
        if swapped:
            self._ring(job)
        return swapped

    async def append(self, job_id: str, holder: str, events: Sequence[JobEvent]) -> bool:
        """See `JobStore.append`."""

        def write() -> bool:
            found = self._sql.execute(
                "SELECT 1 FROM jobs WHERE id = ? AND holder = ? AND state = 'running'",
                (job_id, holder),
            ).fetchone()
            if found is not None:
                self._add(job_id, events)
            return found is not None

        appended = await self._writing(write)
        self.bell.ring(job_id)
        return appended

    async def events(self, job_id: str, after: int, limit: int) -> list[JobEvent]:
        """See `JobStore.events`."""
        rows = await self._call(
            lambda: self._sql.execute(
                "SELECT seq, document FROM events WHERE job = ? AND seq > ? ORDER BY seq LIMIT ?",
                (job_id, after, limit),
            ).fetchall()
        )
        return [msgspec.structs.replace(_event.decode(text), seq=seq) for seq, text in rows]

    async def newest(self, state: State | None, limit: int) -> list[TrainingJob]:
        """See `JobStore.newest`."""
        return await self._listed(state, "DESC", limit)

    async def oldest(self, state: State, limit: int, skip: int = 0) -> list[TrainingJob]:
        """See `JobStore.oldest`."""
        return await self._listed(state, "ASC", limit, skip)

    async def counts(self) -> dict[State, int]:
        """See `JobStore.counts`."""
        rows = await self._call(
            lambda: self._sql.execute("SELECT state, count(*) FROM jobs GROUP BY state").fetchall()
        )
        return dict.fromkeys(STATES, 0) | dict(rows)

    async def forget(self, job_id: str) -> None:
        """See `JobStore.forget`."""

        def write() -> None:
            self._sql.execute("DELETE FROM events WHERE job = ?", (job_id,))
            self._sql.execute("DELETE FROM jobs WHERE id = ?", (job_id,))

        await self._writing(write)

    async def run(self) -> None:
        """See `JobStore.run`: does nothing, as waiting tasks poll the file themselves."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """See `JobStore.close`."""
        await self._call(self._sql.close)
        self._thread.shutdown()

    def _add(self, job_id: str, events: Sequence[JobEvent]) -> None:
        """Appends events, and deletes those beyond the limit; within a transaction."""
        if not events:
            return
        (last,) = self._sql.execute(
            "UPDATE jobs SET last_seq = last_seq + ? WHERE id = ? RETURNING last_seq",
            (len(events), job_id),
        ).fetchone()
        first = last - len(events) + 1
        self._sql.executemany(
            "INSERT INTO events (job, seq, document) VALUES (?, ?, ?)",
            [(job_id, first + n, _encode(event)) for n, event in enumerate(events)],
        )
        self._sql.execute(
            "DELETE FROM events WHERE job = ? AND seq <= ?", (job_id, last - self._max_events)
        )

    async def _listed(
        self, state: State | None, order: str, limit: int, skip: int = 0
    ) -> list[TrainingJob]:
        where = "WHERE state = ?" if state else "WHERE ? IS NULL"
        by_age = f"ORDER BY created {order}, id {order} LIMIT ? OFFSET ?"
        query = f"SELECT document FROM jobs {where} {by_age}"  # noqa: S608
        rows = await self._call(lambda: self._sql.execute(query, (state, limit, skip)).fetchall())
        return [_job.decode(text) for (text,) in rows]

    async def _writing(self, write: Callable[[], Found]) -> Found:
        """Runs a writing function within one transaction."""

        def transaction() -> Found:
            self._sql.execute("BEGIN IMMEDIATE")
            with self._sql:  # commits, or rolls back after an exception
                return write()

        return await self._call(transaction)

    async def _call(self, function: Callable[[], Found]) -> Found:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, function)
        except sqlite3.Error as error:
            raise QueueUnavailableError(f"the file of jobs cannot be used: {error}") from error

    def _ring(self, job: TrainingJob) -> None:
        self.bell.ring(job.id)
        if job.state == "queued":
            self.bell.ring(QUEUE)


def _open(path: Path) -> sqlite3.Connection:
    sql = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    sql.execute("PRAGMA journal_mode = WAL")
    sql.executescript(_SCHEMA)
    return sql
