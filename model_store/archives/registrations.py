"""The archives that callers have registered, and the steps that change them. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from pydantic import Field

from flambeau.protocol.strict import StrictModel
from model_store.errors import DocumentError
from model_store.pointers import PRODUCTION

MAX_REGISTERED = 1_000
"""Models, and versions of one model, that may be registered at once."""


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


class Step(StrictModel):
    """One step of a change of the registrations."""

    act: Literal["put", "default", "drop"]
    """`put` adds or replaces a version; the first one of a model is its default one. `default`
    makes one the default, and `drop` removes one."""
    model: str
    version: str
    one: RegisteredVersion | None = None
    """The version from then on, of `put` alone."""
    has_next: bool = False
    """True if the next step belongs to the same change, and neither counts without the other."""


@dataclass(frozen=True, slots=True)
class Registrations:
    """All registered models, in the order of registration."""

    models: Mapping[str, RegisteredModel] = field(default_factory=dict)

    def after(self, *steps: Step) -> "Registrations":
        """Returns the registrations as steps leave them.

        Raises:
            DocumentError: the version of a step is not registered.
        """
        models = dict(self.models)  # once for all steps: it may have a thousand models
        for step in steps:
            _apply(step, models)
        return Registrations(models)

    def steps(self) -> Iterator[Step]:
        """Yields the steps that lead to these registrations from none."""
        for name, model in self.models.items():
            for version, one in model.versions.items():
                yield Step(act="put", model=name, version=version, one=one)
            if model.default != next(iter(model.versions)):
                yield Step(act="default", model=name, version=model.default)


def _apply(step: Step, models: dict[str, RegisteredModel]) -> None:
    """Changes models as a step says.

    Raises:
        DocumentError: the version of the step is not registered.
    """
    name, version = step.model, step.version
    model = models.get(name)
    if step.act == "put" and step.one is not None:
        if model is None:
            models[name] = RegisteredModel(default=version, versions={version: step.one})
        else:
            versions = {**model.versions, version: step.one}
            models[name] = model.model_copy(update={"versions": versions})
        return
    if model is None or version not in model.versions or step.act == "put":
        raise DocumentError(
            f"the registrations have no version '{version:.100}' of '{name:.100}' to {step.act}; "
            "the file was changed by hand"
        )
    if step.act == "default":
        models[name] = model.model_copy(update={"default": version})
        return
    left = {key: one for key, one in model.versions.items() if key != version}
    if left:
        default = next(iter(left)) if model.default == version else model.default
        models[name] = RegisteredModel(default=default, versions=left)
    else:
        del models[name]


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
