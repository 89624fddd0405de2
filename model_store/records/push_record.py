"""Records of pushes: who pushed a version to a registry, when and why.

<url>/<model>/<version>/.push.json     written before the manifest, and deleted with the version

No file of a version begins with a dot, so no manifest names this one.
"""

import json
from contextlib import suppress
from datetime import datetime
from typing import Literal

from pydantic import Field

from flambeau.protocol.strict import StrictModel
from model_store.document import SMALL, parse_as
from model_store.errors import DocumentError, TooLargeError
from model_store.records.claim import COPY, claim_path
from model_store.storage.storage import MissingFileError, Storage


class PushRecord(StrictModel):
    """A push."""

    schema_version: Literal[1] = 1
    who: str
    when: datetime
    why: str = Field(default="", max_length=500)

    def to_json(self) -> bytes:
        """Returns the file's bytes."""
        return self.model_dump_json().encode()


def push_record_path(model: str, version: int) -> str:
    """Returns the path of the record in its store."""
    return f"{model}/{version}/.push.json"


def publisher_of(storage: Storage, model: str, version: int) -> dict[str, str]:
    """Returns who published a version and why; empty texts for what is not known.

    Of a version that was published into the store itself, the claim of its number names the user.

    Raises:
        StorageError: the store cannot be read.
    """
    path = push_record_path(model, version)
    with suppress(MissingFileError, DocumentError, TooLargeError):
        found = parse_as(PushRecord, storage.get(path, SMALL.max_bytes), path, SMALL)
        return {"who": found.who, "why": found.why}
    return {"who": _claimed_by(storage, model, version), "why": ""}


def _claimed_by(storage: Storage, model: str, version: int) -> str:
    with suppress(MissingFileError, TooLargeError, ValueError, KeyError, TypeError):
        claim = json.loads(storage.get(claim_path(model, version), SMALL.max_bytes))
        owner = str(claim["owner"])
        return "" if owner.startswith(COPY) else owner.rpartition(" ")[0][:256]
    return ""
