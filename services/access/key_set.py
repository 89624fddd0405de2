"""Loads the public keys of an identity provider: a JSON Web Key Set from a file or an https URL.

In: a set in the format of RFC 7517. Out: keys by their id. Secret (symmetric) keys and keys of
unknown types are ignored, as the RFC requires.

Rules: a set is parsed completely before it replaces the previous one; a fetch follows no redirect,
is limited to 1 MiB and 5 s, and happens at most once in ten seconds, whatever clients send.
"""

import http.client
import json
import logging
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from services.access.config import is_loopback
from services.access.watched_file import WatchedFile
from services.settings import ConfigError

logger = logging.getLogger("flambeau.access")

FETCH_TIMEOUT_S = 5.0
FETCH_FLOOR_S = 10.0
MAX_SET_BYTES = 2**20
MAX_KEYS = 256
_ASYMMETRIC = ("RSA", "EC", "OKP")


class KeySetError(ValueError):
    """The set cannot be read or parsed; the message has the reason."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key of a set."""

    key: Any
    """Key object of `cryptography`."""
    algorithm: str
    """The only algorithm it may be used with; empty for any of its type."""


class KeySet:
    """The keys that tokens may be signed with.

    Args:
        source: a file or a URL.
        refresh_s: seconds after which keys from a URL are fetched again.

    Raises:
        ConfigError: the URL is not https, so that a man in the middle could insert keys.

    Attributes:
        is_remote: True if the source is a URL.
        wanted: True if a token named an unknown key.
    """

    def __init__(self, source: str, refresh_s: float) -> None:
        self.is_remote = "://" in source
        self.wanted = False
        self._source = source
        self._file = WatchedFile(source)
        self._refresh_s = refresh_s
        self._fetched_at = -float("inf")
        self._keys: Mapping[str, PublicKey] | None = None
        self._data = b""
        if self.is_remote:
            parts = urlsplit(source)
            local = parts.scheme == "http" and is_loopback(parts.hostname or "")
            if parts.scheme != "https" and not local:
                raise ConfigError(f"jwt_keys is '{source}'; give a file, or a URL with https")

    def find(self, key_id: str | None) -> PublicKey | None:
        """Returns the key of an id, or None; without an id, the only key of the set."""
        keys = self._keys or {}
        if key_id is None:
            return next(iter(keys.values())) if len(keys) == 1 else None
        return keys.get(key_id)

    def may_come(self) -> bool:
        """Returns True if a missing key may arrive soon; requests a fetch if one is allowed."""
        if self.is_remote and time.monotonic() >= self._fetched_at + FETCH_FLOOR_S:
            self.wanted = True
        return self.is_remote and (self.wanted or self._keys is None)

    def is_due(self) -> bool:
        """Returns True if the set should be read; does not block."""
        if not self.is_remote:
            return True
        age_s = time.monotonic() - self._fetched_at
        soon = self.wanted or self._keys is None
        return age_s >= (FETCH_FLOOR_S if soon else self._refresh_s)

    def read(self) -> bool | None:
        """Reads the set; blocks, so do not call it on the event loop.

        Returns:
            True if the keys have changed; None for a file that was not modified.

        Raises:
            KeySetError: it cannot be read or parsed; the previous keys stay in force.
        """
        try:
            data = self._fetch() if self.is_remote else self._file.read_if_changed()
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise KeySetError(f"cannot read jwt_keys {self._source}: {error!r}") from error
        if data is None:
            return None
        if data == self._data:
            return False
        self._keys, self._data = parse_key_set(data), data
        return True

    def _fetch(self) -> bytes:
        self._fetched_at, self.wanted = time.monotonic(), False
        opener = urllib.request.build_opener(_NoRedirect)
        with opener.open(self._source, timeout=FETCH_TIMEOUT_S) as answer:
            data: bytes = answer.read(MAX_SET_BYTES + 1)
        if len(data) > MAX_SET_BYTES:
            raise ValueError(f"it has more than {MAX_SET_BYTES} bytes")
        return data


def parse_key_set(data: bytes) -> dict[str, PublicKey]:
    """Parses the usable keys of a set, by id; a key without an id has the empty id.

    Raises:
        KeySetError: it is not a key set, or has no usable key.
    """
    from jwt import PyJWK

    try:
        documents: list[Any] = json.loads(data)["keys"]
        if not isinstance(documents, list):
            raise TypeError("'keys' is not a list")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise KeySetError(f"it is not a JSON Web Key Set: {error!r}") from error
    found: dict[str, PublicKey] = {}
    for document in documents[:MAX_KEYS]:
        if not isinstance(document, dict) or document.get("kty") not in _ASYMMETRIC:
            continue
        if document.get("use", "sig") != "sig":
            continue
        try:
            key = PublicKey(PyJWK(document).key, str(document.get("alg", "")))
            found[str(document.get("kid", ""))] = key
        except Exception as error:
            # The type is unknown, or the numbers are invalid (a point off its curve). PyJWT and
            # cryptography raise many types for that; the other keys are not affected.
            why = f"{type(error).__name__}: {error}"[:200]
            logger.info("a key of the identity provider is ignored", extra={"reason": why})
    if not found:
        raise KeySetError("it has no public key for signatures of a supported kind")
    return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Treats every redirect as a failure."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follows no redirect."""
        return
