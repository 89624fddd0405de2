"""Annotations: the description and the tags of a model or a version, which may change.

    <url>/<model>/annotations/3.json        those of version 3
    <url>/<model>/annotations/model.json    those of the model

Of two writers at once, the later one's tags and description stay.
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from flambeau.protocol.strict import StrictModel, explain
from model_store.document import SMALL, parse_as
from model_store.errors import AnnotationError, DocumentError
from model_store.storage.storage import Storage
from model_store.storage.stored_document import stored_document

Tags = Annotated[
    dict[Annotated[str, Field(min_length=1, max_length=64)], Annotated[str, Field(max_length=256)]],
    Field(max_length=64),
]


class Annotations(StrictModel):
    """Description and tags."""

    schema_version: Literal[1] = 1
    description: str = Field(default="", max_length=4096)
    tags: Tags = Field(default={})
    who: str = ""
    when: datetime | None = None


def annotations_path(model: str, version: int | None) -> str:
    """Returns the path of the annotations of a version, or of the model for None."""
    return f"{model}/annotations/{'model' if version is None else version}.json"


def annotations_of(storage: Storage, model: str, version: int | None) -> Annotations:
    """Returns the annotations of a version, or of the model for None; empty ones if it has none.

    Raises:
        DocumentError: they are damaged.
        StorageError: the store cannot be read.
    """
    found = stored_document(storage, annotations_path(model, version), Annotations)
    return found or Annotations()


def annotate(
    storage: Storage,
    model: str,
    version: int | None,
    who: str,
    description: str | None = None,
    tags: Mapping[str, str | None] | None = None,
) -> Annotations:
    """Changes annotations.

    Args:
        storage: storage of the store.
        model: the model, which exists.
        version: the version, which exists; None for the model.
        who: who changes them.
        description: the new description; None leaves it.
        tags: new values of tags; None removes a tag.

    Raises:
        AnnotationError: a text is too long, there are too many tags, or they are too large.
        StoreError: the store failed.
    """
    path = annotations_path(model, version)
    try:
        before = annotations_of(storage, model, version)
    except DocumentError:  # damaged ones are replaced
        before = Annotations()
    merged = {**before.tags, **(tags or {})}
    try:
        found = Annotations.model_validate(
            {
                "description": before.description if description is None else description,
                "tags": {name: text for name, text in merged.items() if text is not None},
                "who": who,
                "when": datetime.now(UTC),
            }
        )
    except ValidationError as error:
        raise AnnotationError(f"annotations: {explain(error, Annotations)}") from error
    data = found.model_dump_json().encode()
    try:
        parse_as(Annotations, data, path, SMALL)
    except DocumentError as error:
        raise AnnotationError(f"annotations: {error}; give shorter ones") from error
    storage.replace(path, data)
    return found
