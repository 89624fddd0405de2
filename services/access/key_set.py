"""The public keys of an identity provider: a JSON Web Key Set from a file or an https URL.

In: the set, as RFC 7517 has it. Out: keys by their id. Secret (symmetric) keys in it are left out,
and so are keys of kinds that are not known, as the RFC asks.

Rules kept here: a set is read whole before it replaces the one before; a fetch follows no redirect,
takes 1 MiB and 5 s at most, and there is one in ten seconds at most, whatever strangers send.
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
    """The set cannot be had, or is none; the message says why."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """One key of a set."""

    key: Any
    """As `cryptography` has it."""
    algorithm: str
    """The only one it is for; empty for any of its kind."""


class KeySet:
    """The keys that tokens may be signed with.

    Args:
        source: a file or a URL.
        refresh_s: how old keys from a URL may become.

    Raises:
        ConfigError: the URL is no https, so that anyone on the way could put keys of his own in.

    Attributes:
        is_remote: whether it is a URL.
        wanted: whether a token named a key that is not known.
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
        """The key of an id; without one, the only key there is."""
        keys = self._keys or {}
        if key_id is None:
            return next(iter(keys.values())) if len(keys) == 1 else None
        return keys.get(key_id)

    def may_come(self) -> bool:
        """Whether a key that is not here may be here soon: then a fetch is asked for."""
        if self.is_remote and time.monotonic() >= self._fetched_at + FETCH_FLOOR_S:
            self.wanted = True
        return self.is_remote and (self.wanted or self._keys is None)

    def is_due(self) -> bool:
        """Whether the set should be read; blocks nothing."""
        if not self.is_remote:
            return True
        age_s = time.monotonic() - self._fetched_at
        soon = self.wanted or self._keys is None
        return age_s >= (FETCH_FLOOR_S if soon else self._refresh_s)

    def read(self) -> bool | None:
        """Reads the set; blocks, so not on the event loop.

        Returns:
            Whether there are other keys now; None for a file that is the one of the last time.

        Raises:
            KeySetError: it cannot be had; the keys from before stay.
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
    """The usable keys of a set, by id; one without an id is known as the empty one.

    Raises:
        KeySetError: it is no set, or has no usable key.
    """
    from jwt import PyJWK

    try:
        documents: list[Any] = json.loads(data)["keys"]
        if not isinstance(documents, list):
            raise TypeError("'keys' is no list")
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise KeySetError(f"it is no JSON Web Key Set: {error!r}") from error
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
            # Of a kind that we do not know, or its numbers are none (a point off its curve): PyJWT
            # and cryptography have many words for that, and it says nothing of the others.
            why = f"{type(error).__name__}: {error}"[:200]
            logger.info("a key of the identity provider is left out", extra={"reason": why})
    if not found:
        raise KeySetError("it has no public key for signatures that is understood here")
    return found


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Takes a redirect for the failure that it is here."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follows none."""
        return
