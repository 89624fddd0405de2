"""Accepts, finds and controls training jobs: the common part of REST and gRPC.

In: requests that an edge decoded. Out: jobs and their events. A recipe is validated here, with the
command line's error messages, so that no job is queued that could never run.
"""

import asyncio
import hashlib
import re
import secrets
import shutil
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ParamSpec, TypeVar

from services.access.audit import audited, refusals_audited
from services.access.caller import Principal
from services.access.grants import is_moved_by, parse_aliases
from services.errors import (
    CodeNotAllowedError,
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    QueueFullError,
    ShuttingDownError,
    UnknownJobError,
)
from services.trainer.code_bundle import BundleLimits, unpack
from services.trainer.config import TrainerConfig
from services.trainer.followed_jobs import FollowedJobs
from services.trainer.recipe_code import foreign_targets
from services.trainer.records import STATES, JobEvent, State, TrainingJob
from services.trainer.stores import transitions
from services.trainer.stores.job_store import JobStore, change, no_such_job
from training.errors import RecipeError
from training.recipe.destination import check_destination
from training.recipe.file import MAX_RECIPE_BYTES, parse_recipe, resolved_yaml
from training.recipe.recipe import Recipe

CHECKS_AT_ONCE = 2
"""Threads that read recipes or unpack bundles. Each holds the GIL for 5 ms at a time, so that ten
of them would delay the event loop by 50 ms whenever it needs the GIL."""
LISTED_AT_MOST = 1000
MAX_OVERRIDES = 200
MAX_EVENT = 10**18 - 1
"""Limit of the number of an event: larger ones do not fit into every store."""
P = ParamSpec("P")
T = TypeVar("T")
_KEY = re.compile(r"[!-~]{1,255}")
_ID = re.compile(r"[0-9a-f]{16}")
CODE, RECIPE = "code", "recipe.yaml"
"""Contents of a job's folder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """A job that a client submits."""

    recipe: str
    """Recipe in YAML or JSON."""
    name: str = "the recipe"
    """File name of the recipe, for messages."""
    overrides: tuple[str, ...] = ()
    """Overrides of the recipe, each in the form `a.b=c`."""
    bundle: bytes = b""
    """A zip or tar file with the code that the recipe names; empty for none."""
    idempotency_key: str = ""
    """Key that identifies the job in repeated submissions; empty for none."""


class TrainingJobService:
    """Accepts jobs, and answers queries about them.

    Args:
        store: store of the jobs.
        config: limits of submissions.
    """

    def __init__(self, store: JobStore, config: TrainerConfig) -> None:
        self._store = store
        self._config = config
        self._limits = BundleLimits(
            max_bytes=config.max_bundle_bytes,
            max_unpacked_bytes=config.max_unpacked_bytes,
            max_files=config.max_bundle_files,
        )
        self._two_person = parse_aliases(config.registry_two_person)
        self._followed = FollowedJobs(store)
        self._stopping = asyncio.Event()
        self._checks = asyncio.Semaphore(CHECKS_AT_ONCE)

    @property
    def stopping(self) -> bool:
        """True if no more jobs are accepted."""
        return self._stopping.is_set()

    def stop(self) -> None:
        """Stops accepting jobs, and ends the streams that follow jobs."""
        self._stopping.set()
        self._followed.end()

    async def submit(self, wanted: Submission, principal: Principal) -> TrainingJob:
        """Queues a job.

        Raises:
            ServingError: the client lacks permission; the recipe, its code or the key is refused;
                too many jobs are queued; or the store of jobs is unavailable.
        """
        with refusals_audited("submit", "", principal.name, principal.peer):
            if self.stopping:
                raise ShuttingDownError("this service is shutting down; submit the job again later")
            # A recipe takes seconds to read at worst, and may come from any client.
            recipe = await self._in_thread(checked_recipe, wanted)
        with audited("submit", recipe.publish.model, principal.name, principal.peer):
            principal.require("train", recipe.publish.model)
            return await self._submit(wanted, recipe, principal.name)

    async def _submit(self, wanted: Submission, recipe: Recipe, caller: str) -> TrainingJob:
        self._check_code(caller, recipe, wanted)
        self._check_alias(recipe)
        if wanted.idempotency_key and not _KEY.fullmatch(wanted.idempotency_key):
            raise InvalidRequestError(
                "the idempotency key must be 1 to 255 printable characters without blanks, and is "
                f"{wanted.idempotency_key[:60]!r}"
            )
        if (await self._store.counts())["queued"] >= self._config.max_queued_jobs:
            raise QueueFullError(
                f"{self._config.max_queued_jobs} jobs are queued, the limit (max_queued_jobs); "
                "retry later or add workers"
            )
        key = wanted.idempotency_key or secrets.token_hex(16)
        job = TrainingJob(
            id=hashlib.sha256(f"{caller} {key}".encode()).hexdigest()[:16],
            name=recipe.name,
            model=recipe.publish.model,
            recipe=await self._in_thread(resolved_yaml, recipe),
            bundle_sha256=await self._in_thread(_digest, wanted.bundle) if wanted.bundle else "",
            submitter=caller,
            created_at=await self._store.now(),
        )
        return await self._keep(job, wanted.bundle)

    async def find(self, job_id: str, principal: Principal) -> TrainingJob:
        """Returns a job.

        Raises:
            UnknownJobError: there is none that this principal may see, or it was deleted.
        """
        if not _ID.fullmatch(job_id):
            raise no_such_job(job_id)
        found = await self._store.find(job_id)
        if principal.caller is not None and not principal.caller.may("train", found.model):
            raise no_such_job(job_id)
        return found

    async def newest(self, state: str, limit: int, principal: Principal) -> list[TrainingJob]:
        """Returns the newest jobs, without those of models that the principal may not train.

        Args:
            state: state to filter by; empty for all.
            limit: maximum number of jobs; 0 for 100.
            principal: client of the request.

        Raises:
            InvalidRequestError: there is no such state.
        """
        if state and state not in STATES:
            raise InvalidRequestError(
                f"there is no state {state[:40]!r}; the states are {', '.join(STATES)}"
            )
        chosen: State | None = state or None
        found = await self._store.newest(chosen, min(limit or 100, LISTED_AT_MOST))
        caller = principal.caller
        return [job for job in found if caller is None or caller.may("train", job.model)]

    async def cancel(self, job_id: str, principal: Principal) -> TrainingJob:
        """Cancels a job; a finished job remains unchanged.

        Raises:
            ServingError: the client lacks permission, or there is no such job.
        """
        with audited("cancel", job_id, principal.name, principal.peer):
            await self.find(job_id, principal)
            now = await self._store.now()
            return (await change(self._store, job_id, partial(transitions.cancelled, now=now)))[0]

    async def resume(self, job_id: str, principal: Principal) -> TrainingJob:
        """Resumes a failed or cancelled job from its checkpoint.

        Raises:
            ServingError: the client lacks permission, there is no such job, or it has succeeded.
        """
        with audited("resume", job_id, principal.name, principal.peer):
            await self.find(job_id, principal)
            now = await self._store.now()
            return (await change(self._store, job_id, partial(transitions.resumed, now=now)))[0]

    async def watch(
        self, job_id: str, after: int, follow: bool, principal: Principal
    ) -> AsyncIterator[list[JobEvent]]:
        """Returns the events of a job, in pages, as they occur.

        Args:
            job_id: id of the job.
            after: number of the last event that the client has.
            follow: True to continue until the job is finished, or the service stops.
            principal: client of the request.

        Raises:
            UnknownJobError: there is no such job.
            InvalidRequestError: there is no event of such a number.
        """
        if after > MAX_EVENT:
            raise InvalidRequestError(
                f"after must be the number of an event, {MAX_EVENT} or less, and is {after}"
            )
        await self.find(job_id, principal)
        return self._pages(job_id, after, follow)

    async def _pages(self, job_id: str, after: int, follow: bool) -> AsyncIterator[list[JobEvent]]:
        if follow and not self.stopping:
            with self._followed.following(job_id) as followed:
                async for events in followed.pages(after):
                    yield events
            return
        while events := await self._followed.page(job_id, after):
            after = events[-1].seq
            yield events

    async def _in_thread(self, work: Callable[P, T], *args: P.args, **named: P.kwargs) -> T:
        """Runs slow work in one of a few threads."""
        async with self._checks:
            return await asyncio.to_thread(work, *args, **named)

    def _check_alias(self, recipe: Recipe) -> None:
        """Refuses a recipe that moves an alias whose moves need two persons.

        Raises:
            ForbiddenError: it does.
        """
        model, alias = recipe.publish.model, recipe.publish.alias
        if alias is not None and is_moved_by(self._two_person, model, alias):
            raise ForbiddenError(
                f"a move of '{alias}' of '{model}' needs two persons (registry_two_person), and "
                "this recipe would make it alone; set publish.alias: null and promote the version "
                "through the registry"
            )

    def _check_code(self, caller: str, recipe: Recipe, wanted: Submission) -> None:
        if wanted.bundle:
            _check_known(caller, "a code bundle")
        foreign = foreign_targets(recipe.document(), self._config.targets)
        if foreign:
            _check_known(caller, f"code beside flambeau's own ({foreign[0][:200]})")

    async def _keep(self, job: TrainingJob, bundle: bytes) -> TrainingJob:
        """Writes a job's folder, and then the job; an existing job keeps its folder."""
        try:
            known = await self._store.find(job.id)
        except UnknownJobError:
            folder = self._config.runs_folder / job.id
            await self._in_thread(write_folder, folder, job.recipe, bundle, self._limits)
            if await self._store.create(*transitions.submitted(job)):
                return job
            known = await self._store.find(job.id)
        if (known.recipe, known.bundle_sha256) != (job.recipe, job.bundle_sha256):
            raise ConflictError(
                f"the idempotency key belongs to job '{known.id}', which is different; use another "
                "key"
            )
        return known


def _digest(bundle: bytes) -> str:
    return hashlib.sha256(bundle).hexdigest()


def _check_known(caller: str, what: str) -> None:
    """Refuses foreign code of an unauthenticated client.

    Raises:
        CodeNotAllowedError: the service requires no credentials, so no client may submit code.
    """
    if not caller:
        raise CodeNotAllowedError(
            f"{what} runs only for callers allowed to train, and this service knows none: its "
            "operator may give out keys (flambeau access, api_keys_file)"
        )


def checked_recipe(wanted: Submission) -> Recipe:
    """Returns the validated recipe, with its overrides and all defaults.

    Raises:
        InvalidRequestError: the recipe is invalid; has the message of `RecipeError`.
    """
    if len(wanted.recipe) > MAX_RECIPE_BYTES or len(wanted.overrides) > MAX_OVERRIDES:
        raise InvalidRequestError(
            f"a recipe has {MAX_RECIPE_BYTES} characters and {MAX_OVERRIDES} overrides at most"
        )
    try:
        recipe = parse_recipe(wanted.recipe, wanted.name[:200], wanted.overrides)
        check_destination(recipe)
    except RecipeError as error:
        raise InvalidRequestError(str(error)) from error
    return recipe


def write_folder(folder: Path, recipe: str, bundle: bytes, limits: BundleLimits) -> None:
    """Creates the folder of a job: its recipe, and the folder of its code, in which it runs.

    Raises:
        InvalidRequestError: the code is refused; no folder remains.
        OSError: it cannot be written.
    """
    try:
        shutil.rmtree(folder / CODE, ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
        if bundle:
            unpack(bundle, folder / CODE, limits)
        else:
            (folder / CODE).mkdir()
        (folder / RECIPE).write_text(recipe, encoding="utf-8")
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
