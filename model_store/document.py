"""Parses all JSON in a store, or beside it, at a bounded cost.

In: bytes, and limits of their number and of the values in them. Out: the document, or an error
that names the file, the limit and the value.

Rules: the size and an upper bound of the number of values are checked before parsing, both in one
pass over the bytes; the parser (jiter, pydantic's own) descends at most `MAX_DEPTH` levels, on its
own stack, and refuses numbers with more digits than Python allows. So a document that is too deep
or too long is an error; it neither overflows a thread's stack nor occupies a core for minutes.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from flambeau.protocol.strict import explain
from model_store.errors import DocumentError

MAX_DEPTH = 200
"""Nested lists and objects: jiter's own limit. Our documents have fewer than ten levels."""

M = TypeVar("M", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """Limits of one kind of file."""

    max_bytes: int
    max_values: int
    """Values at all depths. Validation may report a fault for each, at 1 to 2 µs."""


SMALL = DocumentLimits(64 * 1024, 5_000)
"""Documents that a person writes, or a program in one line: pointers, claims, index entries."""
LARGE = DocumentLimits(2**20, 25_000)
"""Documents that describe a version, with names of 21,843 classes, the most in common use."""


def parse_document(data: bytes, where: str, limits: DocumentLimits) -> Any:
    """Parses a JSON file.

    Args:
        data: the file's bytes.
        where: the file's name, for messages.
        limits: limits of the file.

    Raises:
        DocumentError: it exceeds the limits, or is not JSON.
    """
    check_size(data, where, limits)
    try:
        return from_json(data)
    except ValueError as error:
        reason = str(error)
        if reason.startswith("recursion limit exceeded"):
            reason = f"more than {MAX_DEPTH} lists and objects are nested"
        raise DocumentError(f"{where} is not JSON that can be read: {reason}") from error


def check_size(data: bytes, where: str, limits: DocumentLimits) -> None:
    """Checks the size of a JSON file and an upper bound of the number of its values.

    Raises:
        DocumentError: it exceeds the limits.
    """
    if len(data) > limits.max_bytes:
        raise DocumentError(
            f"{where} has {len(data):,} bytes, and at most {limits.max_bytes:,} are read"
        )
    # A comma or a bracket within a string counts too: the limit need not be exact.
    values = sum(map(data.count, (b",", b"[", b"{"))) + 1
    if values > limits.max_values:
        raise DocumentError(
            f"{where} has up to {values:,} values, and at most {limits.max_values:,} are read"
        )


def parse_as(model: type[M], data: bytes, where: str, limits: DocumentLimits) -> M:
    """Parses and validates a JSON file.

    Args:
        model: the schema.
        data: the file's bytes.
        where: the file's name, for messages.
        limits: limits of the file.

    Raises:
        DocumentError: it exceeds the limits, is not JSON or violates the schema.
    """
    document = parse_document(data, where, limits)
    try:
        return model.model_validate(document)
    except ValidationError as error:
        raise DocumentError(f"{where}: {explain(error, model)}") from error
