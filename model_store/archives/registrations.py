"""The archives that callers have registered: one document, in the folder of a server.

In: changes, by any process of the server. Out: the registered models and versions.

Rules: a change holds a lock of the file from reading to writing, so no change is lost; the document
is replaced as a whole, so readers need no lock; a document that cannot be read is an error, as this
server alone writes it.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterator, Mapping
from pathlib import Path

from pydantic import Field

from flambeau.protocol.strict import StrictModel
from model_store.document import DocumentLimits, parse_as
from model_store.pointers import PRODUCTION

MAX_REGISTERED = 1_000
"""Models, and versions of one model, that may be registered at once."""
_LIMITS = DocumentLimits(2**26, 10_000_000)
_FILE, _LOCK = "registrations.json", "registrations.lock"


class RegisteredVersion(StrictModel):
    """One version of a registered model, under TorchServe's name of it."""

    url: str
    """The text that its archive was registered by."""
    folder: str
    """Folder of the archive's files."""
    is_own_folder: bool
    """True if the folder was made for it, and is removed with it."""
    number: int | None = None
    """Version of the store that serves it; None without workers."""
    min_workers: int
    max_workers: int
    batch_size: int
    max_batch_delay_ms: int
    response_timeout_s: int
    startup_timeout_s: int
    client_timeout_ms: int = 0
    job_queue_size: int
    sequence_idle_ms: int = 0
    """Time without a request after which a sequence ends; 0 if requests are independent."""
    sequence_timeout_ms: int = 0
    max_sequences: int = 0
    sequence_queue_size: int = 0
    handler: str | None = None
    """Handler that the caller named in place of the archive's."""
    envelope: str | None = None
    limit_max_image_pixels: bool = True
    decode_input_request: bool = True
    runtime: str = "python"
    device_type: str | None = None
    at_start: bool = False
    """True if it was registered when the server started."""
    started_at: float = 0.0
    """`time.time()` second in which its workers were started."""


class RegisteredModel(StrictModel):
    """A registered model."""

    default: str
    """Version of requests without one."""
    versions: dict[str, RegisteredVersion] = Field(min_length=1)
    """By TorchServe's name, in the order of registration."""


class Registrations(StrictModel):
    """All registered models, in the order of registration."""

    models: dict[str, RegisteredModel] = Field(default={})

    def with_version(self, name: str, version: str, one: RegisteredVersion) -> "Registrations":
        """Returns the registrations with a version added or replaced."""
        model = self.models.get(name) or RegisteredModel(default=version, versions={version: one})
        versions = {**model.versions, version: one}
        return self._with(name, model.model_copy(update={"versions": versions}))

    def with_default(self, name: str, version: str) -> "Registrations":
        """Returns the registrations with another default version of a model."""
        return self._with(name, self.models[name].model_copy(update={"default": version}))

    def without(self, name: str, version: str) -> "Registrations":
        """Returns the registrations without a version; without the model, if it has no other."""
        model = self.models[name]
        left = {key: one for key, one in model.versions.items() if key != version}
        if left:
            default = next(iter(left)) if model.default == version else model.default
            return self._with(name, RegisteredModel(default=default, versions=left))
        models = {key: one for key, one in self.models.items() if key != name}
        return Registrations(models=models)

    def _with(self, name: str, model: RegisteredModel) -> "Registrations":
        return Registrations(models={**self.models, name: model})


class RegistrationFile:
    """The document in a folder of this machine.

    Args:
        folder: an existing folder of the server.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._lock = folder / _FILE, folder / _LOCK
        self._latest: tuple[tuple[int, int] | None, Registrations] = (None, Registrations())

    def latest(self) -> Registrations:
        """Returns the registrations, read only if they have changed since the last call.

        Raises:
            DocumentError, OSError: as `read`.
        """
        try:
            found = self._path.stat()
        except FileNotFoundError:
            return Registrations()
        change = found.st_ino, found.st_mtime_ns
        if change != self._latest[0]:
            self._latest = change, self.read()
        return self._latest[1]

    def read(self) -> Registrations:
        """Returns the registrations.

        Raises:
            DocumentError: the document was changed by hand.
            OSError: it cannot be read.
        """
        try:
            data = self._path.read_bytes()
        except FileNotFoundError:
            return Registrations()
        return parse_as(Registrations, data, str(self._path), _LIMITS)

    @contextlib.contextmanager
    def changing(self) -> Iterator["Change"]:
        """Holds the lock; what the block leaves in `Change.after` is written, unless it raises.

        Raises:
            DocumentError, OSError: as `read`, or the disk is full.
        """
        with self._lock.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            change = Change(self.read())
            yield change
            if change.after is not change.before:
                beside = self._path.with_suffix(".new")
                beside.write_text(change.after.model_dump_json())
                os.replace(beside, self._path)


class Change:
    """A change of the registrations, while their lock is held.

    Attributes:
        before: the registrations as they were.
        after: the registrations to write.
    """

    def __init__(self, before: Registrations) -> None:
        self.before = self.after = before


def aliases_of(model: RegisteredModel | None) -> Mapping[str, int]:
    """Returns the aliases of a model in the store: those of its versions that have workers.

    Args:
        model: the model; None if it is no longer registered.
    """
    if model is None:
        return {}
    found = {
        alias_of(version): one.number
        for version, one in model.versions.items()
        if one.number is not None
    }
    default = model.versions[model.default].number
    return found if default is None else {**found, PRODUCTION: default}


def alias_of(version: str) -> str:
    """Returns the alias of a version in the store: it begins with a letter, unlike a number."""
    return f"v-{version}"
