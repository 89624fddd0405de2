"""Registered versions: whether they are there, are served, are the same, and have their files.

In: the registrations, and a version as a call has left it. Out: the version there, or an error.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

from model_store.archives.model_archive import ModelArchive, open_archive
from model_store.archives.registration_file import Change, RegistrationFile
from model_store.archives.registrations import (
    RegisteredModel,
    RegisteredVersion,
    Registrations,
    Step,
)
from model_store.errors import ModelArchiveError
from model_store.pointers import PRODUCTION
from model_store.store import ModelStore
from services.errors import BackendError, UnknownModelError, UnknownVersionError
from services.queueing.directory import Directory
from services.queueing.records import ServedVersion


class WorkersError(BackendError):
    """The workers of a version do not start.

    Args:
        name: name of the model.
        version: TorchServe's name of the version.
        reason: why, in words that TorchServe does not have.
    """

    def __init__(self, name: str, version: str, reason: str) -> None:
        self.words = f"Failed to start workers for model {name} version: {version}"
        super().__init__(f"{self.words}: {reason}")


class UnseenError(Exception):
    """The model process may not have followed the newest pointers of a model.

    Args:
        model: name of the model.
        generation: that of the pointers.
    """

    def __init__(self, model: str, generation: int) -> None:
        super().__init__(f"generation {generation} of the pointers of {model}")
        self.model, self.generation = model, generation


class DirectoryChanges:
    """Wakes calls that wait for changes of the versions that are served.

    Args:
        directory: the versions.
    """

    def __init__(self, directory: Directory) -> None:
        self._changed = asyncio.Event()
        directory.watch(self._wake)

    def _wake(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def outrun(self, act: Awaitable[None], is_settled: Callable[[], bool]) -> None:
        """Awaits an act, until a condition of the directory holds at the latest.

        Raises:
            ServingError: the act failed before that.
        """
        acting = asyncio.ensure_future(act)
        try:
            await asyncio.sleep(0)  # it begins
            while not acting.done() and not is_settled():
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait((acting, changed), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
            if acting.done():
                acting.result()
        finally:
            acting.cancel()


def is_ready(served: ServedVersion | None) -> bool:
    """Returns True if a version answers."""
    return served is not None and served.state == "ready"


def known(registrations: Registrations, name: str, version: str = "") -> RegisteredModel:
    """Returns a registered model, which has the version if one is named.

    Raises:
        UnknownModelError, UnknownVersionError: it is not registered.
    """
    model = registrations.models.get(name)
    if model is None:
        raise UnknownModelError(f"Model not found: {name[:1000]}")
    if version and version not in model.versions:
        words = f"Model version: {version[:1000]} does not exist for model: {name}"
        raise UnknownVersionError(words)
    return model


def _promoted(registrations: Registrations, name: str, live: int | None) -> str | None:
    """Returns the version that a rollout has made the default one; None if it did not."""
    model = registrations.models.get(name)
    if model is None or live is None or model.versions[model.default].number == live:
        return None
    return next((key for key, one in model.versions.items() if one.number == live), None)


def followed(registrations: Registrations, name: str, live: int | None) -> Registrations:
    """Returns the registrations, with the default version of a model that a rollout has promoted.

    Args:
        registrations: as management has left them.
        name: name of the model.
        live: number of the version that `production` names; None for none.
    """
    version = _promoted(registrations, name, live)
    if version is None:
        return registrations
    return registrations.after(Step(act="default", model=name, version=version))


@contextlib.contextmanager
def changing(file: RegistrationFile, store: ModelStore, name: str) -> Iterator[Change]:
    """Holds the lock of the registrations, which follow what a rollout has done to a model.

    Raises:
        StoreError, OSError: the registrations or the pointers cannot be read, or written.
    """
    with file.changing() as change:
        pointers = store.pointers(name)
        live = pointers.aliases.get(PRODUCTION) if pointers is not None else None
        if (version := _promoted(change.before, name, live)) is not None:
            change.make_default(name, version)
            change.before = change.after
        yield change


def is_newest(
    registrations: Registrations, name: str, version: str, one: RegisteredVersion
) -> bool:
    """Returns True if a version is registered as a change has left it, but for its numbers."""
    model = registrations.models.get(name)
    found = model.versions.get(version) if model is not None else None
    return found is not None and _start_of(found) == _start_of(one)


def _start_of(one: RegisteredVersion) -> tuple[int | None, str, float]:
    return one.number, one.folder, one.started_at


def reopened(name: str, version: str, one: RegisteredVersion) -> ModelArchive:
    """Opens the files of a registered version again.

    Raises:
        BackendError: a handler, or somebody else, has removed or changed them.
    """
    folder = Path(one.folder)
    try:
        if not folder.is_dir():
            raise ModelArchiveError("their folder is gone")
        return open_archive(folder, folder)
    except ModelArchiveError as error:
        raise BackendError(
            f"the files of model {name} version {version} have changed since they were registered "
            f"({error}); unregister it, and register its archive again"
        ) from error
