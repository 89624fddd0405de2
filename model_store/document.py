"""The one reader of JSON that lies in a store, or beside it: nothing in it costs more than it may.

In: bytes, and how many of them and of their values there may be. Out: what they say, or an error
that names the file, the limit and the value.

Rules kept here: the size and an upper bound of the number of values are known before anything is
parsed, both in one pass over the bytes; the parser (jiter, pydantic's own) goes no deeper than
`MAX_DEPTH`, on a stack of its own, and takes no number of more digits than Python would. So what is
too deep or too long is an error, and never the end of a thread's stack or a core for minutes.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from model_store.errors import DocumentError
from model_store.strict import explain

MAX_DEPTH = 200
"""Lists and objects within each other: jiter's own limit. Ours have fewer than ten."""

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """What a kind of file may have."""

    max_bytes: int
    max_values: int
    """Values at all depths. Faults are found and told for each of them, at 1 to 2 µs."""


SMALL = DocumentLimits(64 * 1024, 5_000)
"""What a person writes, or a program in a line: pointers, claims, places in an index."""
LARGE = DocumentLimits(2**20, 25_000)
"""What describes a version, with the names of 21,843 classes, the most that are in common use."""


def parse_document(data: bytes, where: str, limits: DocumentLimits) -> Any:
    """What a JSON file says.

    Args:
        data: the file.
        where: its name, for messages.
        limits: what it may have.

    Raises:
        DocumentError: it has more than it may, or is no JSON.
    """
    if len(data) > limits.max_bytes:
        raise DocumentError(
            f"{where} has {len(data):,} bytes, and at most {limits.max_bytes:,} are read"
        )
    # A comma or a bracket within a text counts too: a limit need not be exact.
    values = sum(map(data.count, (b",", b"[", b"{"))) + 1
    if values > limits.max_values:
        raise DocumentError(
            f"{where} has up to {values:,} values, and at most {limits.max_values:,} are read"
        )
    try:
        return from_json(data)
    except ValueError as error:
        reason = str(error)
        if reason.startswith("recursion limit exceeded"):
            reason = f"more than {MAX_DEPTH} lists and objects are within each other"
        raise DocumentError(f"{where} is not JSON that can be read: {reason}") from error


def parse_as(model: type[M], data: bytes, where: str, limits: DocumentLimits) -> M:
    """What a JSON file says, as a model has it.

    Args:
        model: the schema.
        data: the file.
        where: its name, for messages.
        limits: what it may have.

    Raises:
        DocumentError: it has more than it may, is no JSON or breaks the schema.
    """
    document = parse_document(data, where, limits)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise DocumentError(f"{where}: {explain(error, model)}") from error
