"""The manifest of a TorchServe archive, `MAR-INF/MANIFEST.json`. Pure.

In: its bytes. Out: a record, and the keys that have no meaning here.
Source: torch-model-archiver 0.12; of the keys, `model.modelName`, `model.handler` and `runtime` are
needed, as TorchServe needs them.
"""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from flambeau.protocol.names import name_problem
from flambeau.protocol.strict import explain
from model_store.document import LARGE, parse_document
from model_store.errors import DocumentError, ModelArchiveError

MANIFEST_PATH = "MAR-INF/MANIFEST.json"
RUNTIMES = ("python", "python3")
DEFAULT_VERSION = "1.0"

Text = Annotated[str, Field(max_length=512)]


class _Part(BaseModel):
    """A part of the manifest; unknown keys are kept, to be reported."""

    model_config = ConfigDict(extra="allow", frozen=True)


class ArchiveModel(_Part):
    """The model that an archive has; file names are those of its own files."""

    name: Annotated[Text, Field(alias="modelName")]
    handler: Annotated[Text, Field(min_length=1)]
    """File of the handler, perhaps `FILE:FUNCTION`, or the name of a default handler."""
    version: Annotated[Text, Field(alias="modelVersion", min_length=1)] = DEFAULT_VERSION
    serialized_file: Annotated[Text | None, Field(alias="serializedFile")] = None
    model_file: Annotated[Text | None, Field(alias="modelFile")] = None
    requirements_file: Annotated[Text | None, Field(alias="requirementsFile")] = None
    config_file: Annotated[Text | None, Field(alias="configFile")] = None
    envelope: Text | None = None
    description: Text | None = None
    extensions: Any = None

    @field_validator("name")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if (problem := name_problem(value, "model name")) is not None:
            raise ValueError(problem)
        return value

    @field_validator("version")
    @classmethod
    def _plain_version(cls, value: str) -> str:
        if (problem := name_problem(value, "model version")) is not None:
            raise ValueError(problem)
        return value

    @field_validator("version", mode="before")
    @classmethod
    def _as_text(cls, value: object) -> object:
        """Reads a version as text, if it was written as a number."""
        return str(value) if isinstance(value, int | float) else value

    @field_validator("serialized_file", "model_file", "requirements_file", "config_file")
    @classmethod
    def _own_file(cls, value: str | None) -> str | None:
        if value is not None and (not value.isprintable() or "/" in value or value in (".", "..")):
            raise ValueError("name a file of the archive, without a folder")
        return value or None


class ArchiveManifest(_Part):
    """A manifest."""

    model: ArchiveModel
    runtime: Text
    created_on: Annotated[Text | None, Field(alias="createdOn")] = None
    archiver_version: Annotated[Text | None, Field(alias="archiverVersion")] = None
    description: Text | None = None

    @field_validator("runtime")
    @classmethod
    def _python(cls, value: str) -> str:
        if value.lower() not in RUNTIMES:
            raise ValueError(f"only {' and '.join(RUNTIMES)} run here; archive a Python handler")
        return value

    def unknown(self) -> list[str]:
        """Returns the keys without a meaning, as `model.key`."""
        own = list(self.model_extra or {})
        return own + [f"model.{key}" for key in self.model.model_extra or {}]

    @property
    def handler_file(self) -> str:
        """Name of the handler's file in the archive, if it has one of its own."""
        module = self.model.handler.partition(":")[0].rpartition("/")[2]
        return module if module.endswith(".py") else f"{module}.py"


def parse_archive_manifest(data: bytes, archive: str) -> ArchiveManifest:
    """Reads a manifest.

    Args:
        data: the file's bytes.
        archive: name of the archive, for messages.

    Raises:
        ModelArchiveError: it is not JSON, exceeds the limits `LARGE`, lacks a key, or has a value
            that cannot be followed.
    """
    where = f"{archive}: {MANIFEST_PATH}"
    try:
        document = parse_document(data, where, LARGE)
        return ArchiveManifest.model_validate(document)
    except DocumentError as error:
        raise ModelArchiveError(f"{error}; make the archive again") from error
    except ValidationError as error:
        raise ModelArchiveError(
            f"{where}: {explain(error, ArchiveManifest)}; make the archive again with "
            "torch-model-archiver"
        ) from error
