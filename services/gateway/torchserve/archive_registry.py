"""Registers TorchServe archives, scales and unregisters them: the acts of its management.

In: acts of callers. Out: versions of a store of this server, which its reconciler loads, and the
registrations, which every process of the server reads.

Rules:
- an act changes the registrations and the pointers of the store under one lock, then waits, without
  it, until the version is served or refused;
- a version whose workers do not start is not registered, and one that cannot be scaled keeps its
  workers;
- an archive is registered once the model process has followed the newest pointers of its model, so
  nothing that was unregistered answers in its place;
- a change is undone only while it is the newest one of its version, and a call that waits for one
  which is not ends with a conflict: the version is then another caller's;
- scaling publishes the version again, with another number of processes; the old ones answer until
  the new ones are ready, so it loses no request.
"""

import asyncio
import contextlib
import logging
import shutil
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from model_store.archives.archive_version import publish_archive
from model_store.archives.model_archive import ModelArchive, open_archive
from model_store.archives.module_names import check_module_names
from model_store.archives.registration_file import RegistrationFile
from model_store.archives.registrations import (
    MAX_REGISTERED,
    RegisteredModel,
    RegisteredVersion,
    Registrations,
    alias_of,
    aliases_of,
)
from model_store.archives.requirements import install_requirements, unused_packages
from model_store.archives.server_properties import ServerProperties
from model_store.errors import StoreError
from model_store.manifest import check_name
from model_store.pointers import PRODUCTION
from model_store.store import ModelStore
from services.errors import (
    BackendError,
    ConflictError,
    ForbiddenError,
    NotFoundError,
    ServingError,
    TooManyInFlightError,
)
from services.gateway.torchserve.left_folders import LeftFolders, discard
from services.gateway.torchserve.refusals import caller_words
from services.gateway.torchserve.register_request import (
    Registered,
    RegisterRequest,
    checked_workers,
    most_sequences,
    run_of,
    version_of,
)
from services.gateway.torchserve.registered_versions import (
    DirectoryChanges,
    UnseenError,
    WorkersError,
    changing,
    followed,
    is_newest,
    is_ready,
    known,
    reopened,
)
from services.gateway.torchserve.registry_threads import ArchiveThreads, in_thread
from services.queueing.directory import Directory
from services.queueing.records import Lane, ServedVersion

logger = logging.getLogger("flambeau.torchserve")

RETRIED_FOR_S = 300
"""Time after the last start of its workers for which a version that fails is healthy all the same:
TorchServe's `maxRetryTimeoutInSec`."""
MAX_PASSES = 20
"""Passes of the reconciler after which a version that is neither served nor refused is given up."""

Act = Callable[[str, str, bool], Awaitable[None]]
"""Has the model process look at a model: `ModelControl.act`, or `ModelLink.act`."""


class ArchiveRegistry:
    """The registered archives, as one process of the server sees them; on its event loop.

    Args:
        store: store of this server alone, which keeps no versions without an alias
            (`newest_versions` 0) and follows its pointers.
        folder: existing folder of the unpacked archives, and of the registrations.
        directory: versions that are served.
        act: has the model process look at a model.
        properties: settings of the server.
    """

    def __init__(
        self,
        store: ModelStore,
        folder: Path,
        directory: Directory,
        act: Act,
        properties: ServerProperties,
    ) -> None:
        self._store, self._folder = store, folder
        self._file = RegistrationFile(folder)
        self._directory, self._changes = directory, DirectoryChanges(directory)
        self._act = act
        self._properties = properties
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ArchiveThreads()
        self._left = LeftFolders(self._threads)
        with contextlib.suppress(OSError, StoreError):  # the first call that needs them says so
            self._file.latest()  # before requests come: a thousand models take 25 ms

    async def registrations(self, name: str = "") -> Registrations:
        """Returns all registered models; a named one with the default that a rollout gave it."""
        found = await in_thread(self._file.latest)
        return followed(found, name, self._directory.aliases(name).get(PRODUCTION))

    def latest(self) -> Registrations:
        """Returns all registered models at once: from memory, unless they have changed.

        Raises:
            BackendError: they cannot be read.
        """
        try:
            return self._file.latest()
        except (OSError, StoreError) as error:
            raise BackendError(f"the registrations cannot be read: {error}") from error

    def served(self, name: str, one: RegisteredVersion) -> ServedVersion | None:
        """Returns a registered version as it is served now; None if it is not."""
        lane = Lane(name, one.number or 0)
        return next((it for it in self._directory.of_model(name) if it.lane == lane), None)

    def are_served(self) -> bool:
        """Returns True unless a default version is without its workers for too long.

        As with TorchServe it is True while they start, and while they are tried again.

        Raises:
            BackendError: the registrations cannot be read.
        """
        models = self.latest().models.items()
        return not any(self._is_given_up(n, model.versions[model.default]) for n, model in models)

    def _is_given_up(self, name: str, one: RegisteredVersion) -> bool:
        served = self.served(name, one)
        if not one.min_workers or is_ready(served):
            return False
        has_failed = served is not None and served.state == "failed"
        patience_s = RETRIED_FOR_S + (0 if has_failed else one.startup_timeout_s)
        return time.time() - one.started_at > patience_s

    async def model(self, name: str, version: str = "") -> RegisteredModel:
        """Returns a registered model, which has the version if one is named.

        Raises:
            UnknownModelError, UnknownVersionError: it is not registered.
        """
        return known(await self.registrations(name), name, version)

    async def register(self, request: RegisterRequest, *, waits: bool = True) -> Registered:
        """Registers an archive.

        Args:
            request: what the caller asks for.
            waits: True to wait until its workers are ready; if not, it stays registered even if
                they do not start.

        Raises:
            NotFoundError: there is no such archive.
            InvalidRequestError: the archive, or a value of the request, is invalid.
            ConflictError: this version is registered already, or another call has changed it
                meanwhile.
            BackendError: its workers do not start; it is not registered.
        """
        done, one = await self._added(request)
        name, version = done.name, done.version
        if waits:
            undo = partial(self._undo, name, version, one)
            await self._served_or_undone(name, version, one, undo)
        else:
            self._begin(self._until_served(name, version, one))
        return done

    async def _added(self, request: RegisterRequest) -> tuple[Registered, RegisteredVersion]:
        """Adds an archive once nothing that was registered in its place can answer any more."""
        opened = await self._threads.unpack(partial(self._open, request))
        seen = 0
        try:
            while True:
                try:
                    return await in_thread(partial(self._add, opened, request, seen))
                except UnseenError as error:
                    seen = error.generation
                    await self._look(error.model)
        except BaseException:
            await self._threads.remove(partial(discard, opened, request))
            raise

    def add(self, request: RegisterRequest) -> Registered:
        """Registers an archive before the server starts; it blocks.

        Raises:
            NotFoundError: there is no such archive.
            InvalidRequestError, ModelArchiveError, BadNameError: the archive, or a value of the
                request, is invalid.
            ConflictError: this version is registered already.
            StoreError, OSError: the folder or the store cannot be written.
        """
        opened = self._open(request)
        try:
            return self._add(opened, request)[0]
        except BaseException:
            discard(opened, request)
            raise

    def _open(self, request: RegisterRequest) -> ModelArchive:
        """Unpacks an archive into a folder of its own, unless it is a folder."""
        if not request.archive.exists():
            raise NotFoundError(f"Model not found at: {request.url}")
        folder = self._folder / "archives" / uuid.uuid4().hex
        try:
            archive = open_archive(request.archive, folder)
            requirements = archive.manifest.model.requirements_file
            check_module_names(archive.folder)
            if requirements and self._properties.install_py_dep_per_model:
                install_requirements(archive.folder, requirements)
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        return archive

    async def scale(
        self,
        name: str,
        version: str = "",
        min_workers: int = 1,
        max_workers: int | None = None,
        *,
        waits: bool = True,
    ) -> str:
        """Changes the number of a version's workers.

        Args:
            name: name of the model.
            version: a version; empty for the default one.
            min_workers: number of workers.
            max_workers: largest number; None for the same.
            waits: True to wait until they are ready. In any case the present ones answer until
                then, and stay if the new ones do not start.

        Returns:
            The version, which is the default one if none was named.

        Raises:
            UnknownModelError, UnknownVersionError: it is not registered.
            InvalidRequestError: a number is out of range.
            ConflictError: another call has changed the version meanwhile.
            BackendError: they do not start, or its files are gone; the present ones stay.
        """
        version = version or (await self.model(name)).default
        least, most = checked_workers(min_workers, max_workers)
        before, one = await in_thread(partial(self._rescale, name, version, least, most))
        undo = partial(self._put_back, name, version, one, before)
        work = self._served_or_undone(name, version, one, undo)
        if waits:
            await work
        else:
            self._begin(work)
        return version

    async def set_default(self, name: str, version: str) -> None:
        """Makes a version the one of requests without a version.

        Raises:
            UnknownModelError, UnknownVersionError: it is not registered.
        """
        await in_thread(partial(self._set_default, name, version))
        await self._look(name)

    async def unregister(self, name: str, version: str = "") -> str:
        """Unregisters a version; accepted requests are answered.

        Returns:
            The version, which is the default one if none was named.

        Raises:
            UnknownModelError, UnknownVersionError: it is not registered.
            ForbiddenError: it is the default version, and there are others.
        """
        version = version or (await self.model(name)).default
        one = await in_thread(partial(self._drop, name, version))
        self._left.leave(one)
        await self._look(name)
        return version

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        """Has work go on that nobody waits for."""

        async def logged() -> None:
            try:
                await work
            except Exception as error:
                logger.error("workers have not been started", extra={"error": str(error)})

        task = asyncio.get_running_loop().create_task(logged())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _served_or_undone(
        self, name: str, version: str, one: RegisteredVersion, undo: Callable[[], object]
    ) -> None:
        """Waits until a version is served; if it is refused, undoes the change.

        A task that is cancelled ends at once: the server stops, and its registrations with it.
        """
        try:
            await self._until_served(name, version, one)
        except Exception:
            await in_thread(undo)
            with contextlib.suppress(ServingError):  # the next pass sees it in any case
                await self._look(name)
            raise

    async def _until_served(self, name: str, version: str, one: RegisteredVersion) -> None:
        if one.number is None:
            await self._look(name)
            await self._check_newest(name, version, one)
            return
        refused = f"it has not been loaded after {MAX_PASSES} passes"
        is_settled = partial(self._is_settled, name, version, one, self.served(name, one))
        for _ in range(MAX_PASSES):
            try:
                # The load of another version of the model may hang, and the act with it.
                load = self._act("load", name, False)
                await self._changes.outrun(load, is_settled)
            except TooManyInFlightError:
                raise
            except ServingError as error:  # of this version, or of another one of the model
                refused = caller_words(str(error))
            await self._check_newest(name, version, one)
            found = self.served(name, one)
            if is_ready(found):
                return
            if found is not None and found.state == "failed":
                refused = caller_words(found.reason)
                break
        logger.error(
            "the workers of a model do not start",
            extra={"model": name, "version": version, "error": refused},
        )
        raise WorkersError(name, version, refused)

    def _is_settled(self, name: str, version: str, one: RegisteredVersion, before: object) -> bool:
        """Returns True once a version is refused again, or answers requests that name it."""
        found = self.served(name, one)
        if found is None or not is_ready(found):
            return found is not None and found.state == "failed" and found is not before
        return self._directory.served_lane(*target(name, version)) == found.lane

    async def _check_newest(self, name: str, version: str, one: RegisteredVersion) -> None:
        """Checks that a change is the newest one of its version.

        Raises:
            ConflictError: another call has changed it.
        """
        if not is_newest(await self.registrations(), name, version, one):
            raise ConflictError(
                f"Model version {version} of model {name} was scaled, unregistered or registered "
                "again by another call; see GET /models for what it is now"
            )

    async def _look(self, name: str) -> None:
        """Has the model process look at the pointers of a model, and waits until it has."""
        await self._act("unload", name, False)  # what it unloads is what no alias names

    # The changes below run in threads, each under the lock of the registrations.

    def _add(
        self, archive: ModelArchive, request: RegisterRequest, seen: int | None = None
    ) -> tuple[Registered, RegisteredVersion]:
        """Registers an opened archive.

        Args:
            archive: the archive.
            request: what the caller asks for.
            seen: generation of the model's pointers that the model process has followed, 0 for
                none; None before it starts.

        Raises:
            UnseenError: another archive may still answer in its place.
        """
        name = check_name(request.model_name or archive.manifest.model.name)
        version = archive.manifest.model.version
        one = version_of(archive, name, request, self._properties)
        with changing(self._file, self._store, name) as change:
            model = change.before.models.get(name)
            if model is not None and version in model.versions:
                words = f"Model version {version} is already registered for model {name}"
                raise ConflictError(words)
            full = len(change.before.models) if model is None else len(model.versions)
            if full >= MAX_REGISTERED:
                raise TooManyInFlightError(
                    f"{full:,} models, or versions of one, are registered, the limit; unregister "
                    "some first"
                )
            pointers = None if seen is None else self._store.pointers(name)
            if pointers is not None and pointers.generation != seen:
                raise UnseenError(name, pointers.generation)
            one = self._published(archive, name, one)
            change.put(name, version, one)
            self._point(change.after, name)
        ignored = (*archive.ignored, *unused_packages(archive.folder))
        return Registered(name, version, one.min_workers, ignored), one

    def _rescale(
        self, name: str, version: str, least: int, most: int
    ) -> tuple[RegisteredVersion, RegisteredVersion]:
        """Returns the version as it was, and as it is now."""
        with changing(self._file, self._store, name) as change:
            present = known(change.before, name, version).versions[version]
            one = present.model_copy(update={"min_workers": least, "max_workers": most})
            grows = least > 0 and most_sequences(one) != most_sequences(present)
            if least != present.min_workers or present.number is None or grows:
                one = self._published(reopened(name, version, one), name, one)
            change.put(name, version, one)
            self._point(change.after, name)
        return present, one

    def _put_back(
        self, name: str, version: str, failed: RegisteredVersion, before: RegisteredVersion
    ) -> None:
        with changing(self._file, self._store, name) as change:
            if is_newest(change.before, name, version, failed):
                change.put(name, version, before)
                self._point(change.after, name)

    def _undo(self, name: str, version: str, failed: RegisteredVersion) -> None:
        """Unregisters a version whose workers do not start; removes its files, if its own."""
        with changing(self._file, self._store, name) as change:
            if not is_newest(change.before, name, version, failed):
                return
            change.drop(name, version)
            self._point(change.after, name)
        if failed.is_own_folder:
            shutil.rmtree(failed.folder, ignore_errors=True)

    def _set_default(self, name: str, version: str) -> None:
        with changing(self._file, self._store, name) as change:
            known(change.before, name, version)
            change.make_default(name, version)
            self._point(change.after, name)

    def _drop(self, name: str, version: str) -> RegisteredVersion:
        """Returns the version that is no longer registered."""
        with changing(self._file, self._store, name) as change:
            model = known(change.before, name, version)
            if version == model.default and len(model.versions) > 1:
                raise ForbiddenError(f"Cannot remove default version for model {name}")
            change.drop(name, version)
            self._point(change.after, name)
        return model.versions[version]

    def _published(
        self, archive: ModelArchive, name: str, one: RegisteredVersion
    ) -> RegisteredVersion:
        """Returns a version that the store has, if it is to have workers."""
        number = None
        if one.min_workers:
            run = run_of(one, self._properties.model_metrics)
            number = publish_archive(self._store, archive, name, run).version
        news = {"number": number, "folder": str(archive.folder), "started_at": time.time()}
        return one.model_copy(update=news)

    def _point(self, registrations: Registrations, name: str) -> None:
        """Has the aliases of a model name the versions that have workers."""
        aliases = aliases_of(registrations.models.get(name))
        if aliases or self._store.pointers(name) is not None:
            self._store.set_aliases(name, aliases, "TorchServe's management")


def target(name: str, version: str = "") -> tuple[str, str]:
    """Returns the model and the version by which the directory resolves a request.

    Args:
        name: TorchServe's name of a model.
        version: TorchServe's version; empty for the default one.
    """
    return name, alias_of(version) if version else PRODUCTION
