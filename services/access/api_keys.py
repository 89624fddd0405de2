"""Reads and writes the file of API keys: names, grants and digests, but never the keys themselves.

In: the file, as YAML or JSON:

    keys:
    - name: ci
      sha256: 9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08
      grants: [infer:digits*, manage:staging-*]
      expires: 2027-01-31T00:00:00Z
      requests_per_s: 100
      rows_per_s: 5000

Out: its records, validated as a whole: a file with one invalid line is refused.

A key is 256 random bits, so its SHA-256 can be stored without salt and without a slow hash. Those
protect secrets that can be guessed, and 256 bits cannot be; a slow hash would cost a request more
than the model.
"""

import base64
import contextlib
import fcntl
import hashlib
import os
import secrets
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import yaml
from pydantic import AwareDatetime, BeforeValidator, Field, ValidationError, model_validator

from flambeau.protocol.strict import StrictModel, explain, nearest_name
from model_store.storage.plain_file import read_plain_file
from model_store.yaml_text import YamlError, read_yaml
from services.access.grants import Grant, parse_grant
from services.atomic_file import write_atomically

PREFIX = "flb_"
"""Prefix of every key, by which secret scanners recognise a leaked one."""
MAX_FILE_BYTES = 4 * 2**20
MAX_KEYS = 10_000


class KeysFileError(ValueError):
    """The file of keys is invalid; the message names the place and the reason."""


def _utc(value: object) -> object:
    """Adds UTC to timestamps without a zone, as which YAML loads some forms of `Z`."""
    return value.replace(tzinfo=UTC) if isinstance(value, datetime) and not value.tzinfo else value


class ApiKey(StrictModel):
    """One key."""

    name: str = Field(pattern=r"^[A-Za-z0-9._@-]{1,64}$")
    """Name of its holder, in logs and jobs."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """Digest of the key's text, in hexadecimal digits."""
    grants: tuple[str, ...] = Field(min_length=1, max_length=64)
    """Grants of the key: `SCOPE` or `SCOPE:MODELS` each."""
    expires: Annotated[AwareDatetime, BeforeValidator(_utc)] | None = None
    """Time from which it is invalid; None for never."""
    requests_per_s: float = Field(0, ge=0, le=1e9)
    """Limit of requests per second; 0 for no limit."""
    rows_per_s: float = Field(0, ge=0, le=1e12)
    """Limit of rows per second, over all requests; 0 for no limit."""

    @model_validator(mode="after")
    def _grants_can_be_read(self) -> "ApiKey":
        for text in self.grants:
            parse_grant(text)
        return self

    @property
    def parsed_grants(self) -> tuple[Grant, ...]:
        """Its grants, parsed."""
        return tuple(parse_grant(text) for text in self.grants)

    @property
    def expires_at(self) -> float:
        """Expiry in seconds of Unix time; infinity for never."""
        return self.expires.timestamp() if self.expires else float("inf")


class ApiKeys(StrictModel):
    """The content of a file of keys."""

    keys: tuple[ApiKey, ...] = Field(default=(), max_length=MAX_KEYS)
    """Keys with unique names and unique digests."""

    @model_validator(mode="after")
    def _each_once(self) -> "ApiKeys":
        for what in ("name", "sha256"):
            counts = Counter(getattr(key, what) for key in self.keys)
            for value, times in counts.most_common(1):
                if times > 1:
                    raise ValueError(f"the {what} '{value}' occurs {times} times")
        return self


def digest_of(key: str) -> bytes:
    """Returns the digest that is stored of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def new_key() -> str:
    """Returns a new key of 256 random bits, as text."""
    return PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")


def parse_keys(data: bytes) -> ApiKeys:
    """Parses a whole file.

    Raises:
        KeysFileError: it is too large, not YAML, or violates the schema.
    """
    if len(data) > MAX_FILE_BYTES:
        raise KeysFileError(f"it has {len(data)} bytes, more than {MAX_FILE_BYTES}")
    try:
        return ApiKeys.model_validate(read_yaml(data) or {})
    except YamlError as error:
        raise KeysFileError(f"it is not YAML: {error}") from error
    except ValidationError as error:
        raise KeysFileError(explain(error, ApiKeys)) from error


def read_keys(path: Path) -> ApiKeys:
    """Reads the file; a missing file has no keys.

    Raises:
        KeysFileError: as `parse_keys`, or it cannot be read.
    """
    try:
        return parse_keys(read_plain_file(path, MAX_FILE_BYTES))
    except FileNotFoundError:
        return ApiKeys()
    except OSError as error:
        raise KeysFileError(f"cannot read {path}: {error}") from error


def add_key(path: Path, key: ApiKey) -> None:
    """Adds a key to the file, which is created if it is missing.

    Raises:
        KeysFileError: the name is in use, or the file cannot be read or written.
    """
    with _alone(path) as keys:
        if any(known.name == key.name for known in keys.keys):
            raise KeysFileError(f"a key named '{key.name}' exists; choose another name")
        _write(path, ApiKeys(keys=(*keys.keys, key)))


def revoke_key(path: Path, name: str) -> None:
    """Removes a key from the file.

    Raises:
        KeysFileError: no key has this name, or the file cannot be read or written.
    """
    with _alone(path) as keys:
        left = tuple(key for key in keys.keys if key.name != name)
        if len(left) == len(keys.keys):
            names = [key.name for key in keys.keys]
            raise KeysFileError(f"there is no key '{name}'{nearest_name(name, names)}")
        _write(path, ApiKeys(keys=left))


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[ApiKeys]:
    """Yields the keys of a file, and locks it against other commands during the block."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield read_keys(path)
        finally:
            os.close(folder)
    except OSError as error:
        raise KeysFileError(f"cannot write {path}: {error}") from error


def _write(path: Path, keys: ApiKeys) -> None:
    document = keys.model_dump(mode="json", exclude_defaults=True)
    text = yaml.safe_dump(document, sort_keys=False) if keys.keys else "keys: []\n"
    write_atomically(path, text)
