"""Registered versions: whether they are there, are still the same, and have their files.

In: the registrations, and a version as a call has left it. Out: the version there, or an error.
"""

from pathlib import Path

from model_store.archives.model_archive import ModelArchive, open_archive
from model_store.archives.registrations import RegisteredModel, RegisteredVersion, Registrations
from model_store.errors import ModelArchiveError
from services.errors import BackendError, UnknownModelError, UnknownVersionError


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
