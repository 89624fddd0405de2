"""Tokens of TorchServe's API: its key file, with a key for inference, management and the tokens.

In: `Authorization: Bearer` headers. Out: True if a call may go on. Keys of inference and management
expire; the token API renews one of them in the file.

Rules: every process of a server reads the file again when it has changed; a process that cannot
read it admits nobody; keys are compared in constant time.
Source: TorchServe 0.12 for the file's form and the header.
"""

import hmac
import json
import os
import re
import secrets
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

Kind = Literal["inference", "management", "API"]
KEY_FILE = "key_file.json"
LOOK_AGAIN_S = 0.5
"""Time for which a renewed key may still be accepted by other processes of the server."""
KEY_BYTES = 24
MAX_KEY_FILE_BYTES = 2**16
_BEARER = re.compile(r"Bearer\s+(\S+)")
_EXPIRES = "expiration time"

Keys = dict[Kind, tuple[bytes, float]]
"""Key, and `time.time()` second of its expiry."""


class Tokens:
    """The keys of a server, as one process sees them.

    Args:
        path: path of the key file.
        lifetime_s: seconds until a key of inference or management expires.
    """

    def __init__(self, path: Path, lifetime_s: float) -> None:
        self._path, self._lifetime_s = path, lifetime_s
        self._keys: Keys = {}
        self._change: tuple[int, int] | None = None
        self._looked_at = -1.0

    def create(self) -> None:
        """Writes a file with new keys, which only its owner may read.

        Raises:
            OSError: it cannot be written.
        """
        until = time.time() + self._lifetime_s
        self._write(
            {
                "management": (_new_key(), until),
                "inference": (_new_key(), until),
                "API": (_new_key(), float("inf")),
            }
        )

    def renew(self, kind: Kind) -> None:
        """Replaces the key of inference or management.

        Raises:
            OSError: the file cannot be written.
        """
        self._look(time.monotonic(), at_once=True)
        self._write({**self._keys, kind: (_new_key(), time.time() + self._lifetime_s)})

    def admits(self, header: str, kind: Kind) -> bool:
        """Returns True if the header of a call carries the key of a kind.

        Args:
            header: value of `Authorization`; empty for none.
            kind: kind of the call.
        """
        found = _BEARER.fullmatch(header)
        if found is None:
            return False
        key = found[1].encode()
        now = time.monotonic()
        self._look(now)
        if not self._fits(key, kind):
            self._look(now, at_once=True)  # another process may have renewed it just now
            return self._fits(key, kind)
        return True

    def _fits(self, key: bytes, kind: Kind) -> bool:
        known = self._keys.get(kind)
        return known is not None and hmac.compare_digest(known[0], key) and time.time() < known[1]

    def _look(self, now: float, *, at_once: bool = False) -> None:
        """Reads the file again, if it has changed."""
        if now - self._looked_at < LOOK_AGAIN_S and not at_once:
            return
        self._looked_at = now
        try:
            found = self._path.stat()
            change = found.st_ino, found.st_mtime_ns
            if found.st_size > MAX_KEY_FILE_BYTES:
                raise ValueError(f"the key file has over {MAX_KEY_FILE_BYTES} bytes")
            if change != self._change:
                self._keys = _parsed(self._path.read_bytes())
                self._change = change
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            self._keys, self._change = {}, None

    def _write(self, keys: Keys) -> None:
        document = {
            kind: {"key": key.decode()} | ({} if kind == "API" else {_EXPIRES: _text(until)})
            for kind, (key, until) in keys.items()
        }
        beside = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w") as file:
            json.dump(document, file, indent=2)
        os.replace(beside, self._path)
        self._keys, self._change = keys, None


def _new_key() -> bytes:
    return secrets.token_urlsafe(KEY_BYTES).encode()


def _text(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _parsed(data: bytes) -> Keys:
    document = json.loads(data)
    kinds: tuple[Kind, ...] = ("management", "inference", "API")
    return {
        kind: (document[kind]["key"].encode(), _seconds(document[kind].get(_EXPIRES)))
        for kind in kinds
    }


def _seconds(text: str | None) -> float:
    return float("inf") if text is None else datetime.fromisoformat(text).timestamp()
