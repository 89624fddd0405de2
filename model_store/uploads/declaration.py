"""The declaration of an upload: the files of a version, before their bytes arrive. Pure rules.

A declaration comes from another machine, so every value in it has a limit. It is read in slices,
and no further than its first fault: neither its length nor the number of its faults occupies the
interpreter.
"""

import hashlib
import json
from collections.abc import Callable
from datetime import datetime
from typing import Annotated, Any

import orjson
from pydantic import Field, ValidationError, field_validator, model_validator

from flambeau.protocol.strict import StrictModel, explain
from model_store.document import LARGE, DocumentLimits, check_size, parse_as
from model_store.errors import DocumentError, UploadRefusedError
from model_store.manifest import (
    CLAIM,
    MANIFEST,
    SIGNATURE,
    FileName,
    Manifest,
    ModelName,
    Sha256,
)
from model_store.signatures.signing import MAX_SIGNATURE_BYTES

MAX_FILES = 1024
"""Files of one version; a manifest names 256 side files of each artifact at most."""
MAX_VERSION_BYTES = 2**40
"""Bytes of one version: 1 TiB."""
MAX_KEYS = 16
"""Keys of one object, of which four at most are known: each unknown one costs a microsecond."""
DECLARED = DocumentLimits(512 * 1024, 5_000)
"""A declaration of `MAX_FILES` files with the longest names has 270 kB, and four values a file."""
_A_SLICE = 64
"""Files that are read at once: half a millisecond."""
_WHAT = "the declaration of the upload"


class DeclaredFile(StrictModel):
    """One file of an upload."""

    file: FileName
    size_bytes: Annotated[int, Field(ge=0, le=MAX_VERSION_BYTES)]
    sha256: Sha256

    @field_validator("file")
    @classmethod
    def _plain_name(cls, value: str) -> str:
        if value == CLAIM:
            raise ValueError("the store writes this file itself; leave it out")
        return value


class Declaration(StrictModel):
    """The files of one version, with its manifest and, if it is signed, its signature."""

    model: ModelName
    version: Annotated[int, Field(ge=1, le=999_999_999)]
    files: Annotated[tuple[DeclaredFile, ...], Field(min_length=1, max_length=MAX_FILES)]

    @model_validator(mode="after")
    def _files_of_a_version(self) -> "Declaration":
        names = [one.file for one in self.files]
        if len(set(names)) != len(names):
            raise ValueError("a file is declared twice; declare each once")
        for name, limit in ((MANIFEST, LARGE.max_bytes), (SIGNATURE, MAX_SIGNATURE_BYTES)):
            found = self.file(name)
            if found is not None and found.size_bytes > limit:
                raise ValueError(f"{name} has {found.size_bytes:,} bytes, over {limit:,}")
        if MANIFEST not in names:
            raise ValueError(f"'files' has no {MANIFEST}; declare it with the others")
        if self.size_bytes > MAX_VERSION_BYTES:
            raise ValueError(
                f"the files have {self.size_bytes:,} bytes, over {MAX_VERSION_BYTES:,}"
            )
        return self

    @property
    def size_bytes(self) -> int:
        """Bytes of all files."""
        return sum(one.size_bytes for one in self.files)

    @property
    def manifest_sha256(self) -> str:
        """The sha256 of the manifest, which identifies the version's contents."""
        return next(one.sha256 for one in self.files if one.file == MANIFEST)

    def file(self, name: str) -> DeclaredFile | None:
        """Returns a declared file, or None."""
        return next((one for one in self.files if one.file == name), None)

    def upload_id(self, owner: str) -> str:
        """Returns the id of the upload: the same contents by the same owner resume it."""
        facts = [self.model, self.version, self.manifest_sha256, owner]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]


class UploadRecord(StrictModel):
    """The record of an upload on disk."""

    declaration: Declaration
    owner: str
    begun_at: datetime


def parse_declaration(data: bytes, between: Callable[[], None] = lambda: None) -> Declaration:
    """Reads a declaration up to its first fault.

    Args:
        data: JSON.
        between: called after each slice of the work, to lend the interpreter lock to other threads.

    Raises:
        UploadRefusedError: it is not JSON, exceeds the limits `DECLARED`, or violates the schema.
    """
    try:
        check_size(data, _WHAT, DECLARED)
        document = orjson.loads(data)  # linear in its bytes, also for numbers of many digits
    except DocumentError as error:
        raise UploadRefusedError(str(error)) from error
    except orjson.JSONDecodeError as error:
        raise UploadRefusedError(f"{_WHAT} is not JSON that can be read: {error}") from error
    between()
    return read_declaration(document, between)


def read_declaration(document: Any, between: Callable[[], None] = lambda: None) -> Declaration:
    """Validates the values of a declaration up to the first fault; none is converted.

    Args:
        document: plain values.
        between: as for `parse_declaration`.

    Raises:
        UploadRefusedError: they violate the schema.
    """
    _check_keys(document, _WHAT)
    if isinstance(document, dict) and isinstance(document.get("files"), list):
        document["files"] = _parsed_files(document["files"], between)
    try:
        return Declaration.model_validate(document, strict=True)
    except ValidationError as error:
        raise UploadRefusedError(f"{_WHAT}: {explain(error, Declaration)}") from error


def _parsed_files(entries: list[Any], between: Callable[[], None]) -> tuple[DeclaredFile, ...]:
    if len(entries) > MAX_FILES:
        raise UploadRefusedError(
            f"{_WHAT}: 'files' has {len(entries):,} entries; give at most {MAX_FILES:,} of them"
        )
    found = []
    for number, entry in enumerate(entries):
        _check_keys(entry, f"'files.{number}' of {_WHAT}")
        try:
            found.append(DeclaredFile.model_validate(entry, strict=True))
        except ValidationError as error:
            raise UploadRefusedError(
                f"{_WHAT}: in 'files.{number}', {explain(error, DeclaredFile)}"
            ) from error
        if number % _A_SLICE == _A_SLICE - 1:
            between()
    return tuple(found)


def _check_keys(value: Any, where: str) -> None:
    if isinstance(value, dict) and len(value) > MAX_KEYS:
        raise UploadRefusedError(
            f"{where} has {len(value):,} keys, over {MAX_KEYS}, so it is a different kind of "
            "document; give the declared ones alone"
        )


def parse_record(data: bytes, where: str) -> UploadRecord:
    """Reads the record of an upload; a record is larger than its declaration by a few bytes.

    Raises:
        DocumentError: it is damaged.
    """
    return parse_as(UploadRecord, data, where, LARGE)


def check_against_manifest(declaration: Declaration, manifest: Manifest) -> None:
    """Checks that a manifest names the declared files, and no others, of the declared version.

    Raises:
        UploadRefusedError: another version, or a file that is missing, unnamed or different.
    """
    where = f"{MANIFEST} of {declaration.model}/{declaration.version}"
    if (manifest.model, manifest.version) != (declaration.model, declaration.version):
        raise UploadRefusedError(
            f"{where} is that of {manifest.model}/{manifest.version}; declare that version"
        )
    named = {entry.file: entry for entry in manifest.all_files()}
    sent = {one.file: one for one in declaration.files if one.file not in (MANIFEST, SIGNATURE)}
    if missing := sorted(named.keys() - sent.keys()):
        raise UploadRefusedError(f"{where} names '{missing[0]}', which is not declared; send it")
    if unnamed := sorted(sent.keys() - named.keys()):
        raise UploadRefusedError(
            f"{where} does not name '{unnamed[0]}', which is declared; leave it out"
        )
    for name, entry in named.items():
        found = sent[name]
        if (found.size_bytes, found.sha256) != (entry.size_bytes, entry.sha256):
            raise UploadRefusedError(
                f"{where} says that '{name}' has {entry.size_bytes:,} bytes and sha256 "
                f"{entry.sha256[:12]}…, and it has {found.size_bytes:,} and "
                f"{found.sha256[:12]}…; publish the version again"
            )
