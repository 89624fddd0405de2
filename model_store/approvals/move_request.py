"""Requests for moves that need two persons, and decisions about them. Plain data, and their files.

    <url>/<model>/requests/00000003.json            the request
    <url>/<model>/requests/00000003.decision.json   its decision

Both are created only if absent, so a number has one request, and a request one decision.
"""

import unicodedata
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from flambeau.protocol.strict import StrictModel
from model_store.approvals.asked_move import AskedMove
from model_store.errors import DocumentError, UnknownRequestError
from model_store.storage.storage import Storage
from model_store.storage.stored_document import stored_document

Outcome = Literal["approved", "refused", "withdrawn", "expired", "outdated"]
"""`approved` by a second person; `withdrawn` by the first one; `outdated`: the pointers moved."""
State = Literal["open", "executed", "approved", "refused", "withdrawn", "expired", "outdated"]
"""`approved`: the move was cut off before it was made; approve it again."""


def _zoned(when: datetime) -> datetime:
    return when if when.tzinfo else when.replace(tzinfo=UTC)


When = Annotated[datetime, AfterValidator(_zoned)]


class MoveRequest(StrictModel):
    """A move that waits for a second person."""

    schema_version: Literal[1] = 1
    number: int = Field(ge=1)
    model: str
    move: AskedMove
    who: str
    """Who asks for it."""
    when: When
    until: When
    """When it expires."""
    generation: int = Field(ge=0)
    """The generation of pointers that it was asked for; 0 for none."""
    target: int | None = None
    """The version that the alias will name; None for a removal, and for the start of a rollout, a
    shadow or a split, which moves none."""

    def to_json(self) -> bytes:
        """Returns the file's bytes."""
        return self.model_dump_json(exclude_none=True).encode()

    def document(self, state: State, decision: "Decision | None") -> dict[str, Any]:
        """Returns plain values for JSON."""
        found = self.model_dump(mode="json", exclude_none=True)
        found["state"] = state
        found["decision"] = None if decision is None else decision.model_dump(mode="json")
        return found


class Decision(StrictModel):
    """The decision about a request."""

    schema_version: Literal[1] = 1
    outcome: Outcome
    who: str = ""
    """Who decided; empty if nobody did."""
    when: When
    why: str = Field(default="", max_length=500)

    def to_json(self) -> bytes:
        """Returns the file's bytes."""
        return self.model_dump_json().encode()


def is_same_person(one: str, other: str) -> bool:
    """Returns True if two names of callers may be one person's.

    `key:ann` and `jwt:Ann` are: a person may have both kinds of credentials.
    """
    return _person(one) == _person(other)


def _person(name: str) -> str:
    _, separator, rest = name.partition(":")
    return unicodedata.normalize("NFKC", rest if separator else name).casefold().strip()


def folder_of(model: str) -> str:
    """Returns the folder of a model's requests."""
    return f"{model}/requests/"


def request_path(model: str, number: int) -> str:
    """Returns the path of a request."""
    return f"{folder_of(model)}{number:08d}.json"


def decision_path(model: str, number: int) -> str:
    """Returns the path of a decision."""
    return f"{folder_of(model)}{number:08d}.decision.json"


def request_of(storage: Storage, model: str, number: int) -> MoveRequest:
    """Reads a request.

    Raises:
        UnknownRequestError: there is none of this number.
        DocumentError: it is damaged, or another one was copied to its place.
        StorageError: the store cannot be read.
    """
    path = request_path(model, number)
    found = stored_document(storage, path, MoveRequest)
    if found is None:
        raise UnknownRequestError(
            f"'{model}' has no request {number}; list those that there are (flambeau models "
            "requests)"
        )
    if (found.model, found.number) != (model, number):
        raise DocumentError(f"{path} has request {found.number} of '{found.model}'; remove it")
    return found


def decision_of(storage: Storage, model: str, number: int) -> Decision | None:
    """Reads the decision about a request; None if there is none yet.

    Raises:
        DocumentError: it is damaged.
        StorageError: the store cannot be read.
    """
    return stored_document(storage, decision_path(model, number), Decision)
