"""Reads the body of a submission over REST: JSON with recipe, overrides, and a bundle in base64.

In: the bytes. Out: a `Submission`.

Rules:
- a large bundle is found and decoded in pieces, so that it does not block other calls;
- the rest is limited before it is parsed, and the members of each part are counted before objects
  are created of it: 2 MB of JSON on the event loop take 8 ms at worst.
"""

import asyncio
import binascii
import re
import secrets
from typing import Any

import msgspec
import orjson

from services.errors import InvalidRequestError, PayloadTooLargeError
from services.trainer.training_job_service import Submission
from training.recipe.file import MAX_RECIPE_BYTES

MAX_BESIDE_BYTES = 2 * MAX_RECIPE_BYTES
"""Maximum JSON beside the bundle: the recipe, with escapes, and its overrides."""
MAX_MEMBERS = 8192
"""Maximum commas and brackets of a recipe that is an object; 1 ms to parse and write."""
MAX_OVERRIDES_BYTES = 64 * 2**10
"""Maximum size of the list of overrides, as JSON."""
LARGE_BYTES = 64 * 2**10
"""Bodies larger than this are searched for a bundle, which is decoded in pieces."""
PIECE_BYTES = 256 * 2**10
"""Size of the pieces in which base64 is decoded: 0.5 ms each; a multiple of 4."""
_KEY = b'"bundle_base64"'
_BEGIN = re.compile(rb'"bundle_base64"[ \t\r\n]{0,64}+:[ \t\r\n]{0,64}+"')
_LONGEST_ESCAPE = 6
_WRONG = (msgspec.MsgspecError, orjson.JSONEncodeError, RecursionError, UnicodeDecodeError)
"""Exceptions of the libraries for invalid JSON, unsupported numbers and depths, invalid UTF-8."""
_FORM = (
    'send {"recipe": "...", "overrides": [], "bundle_base64": "..."}, with the recipe as YAML text '
    "or as an object"
)


class _Body(msgspec.Struct, forbid_unknown_fields=True):
    recipe: msgspec.Raw
    name: str = ""
    overrides: msgspec.Raw = msgspec.Raw(b"[]")
    bundle_base64: str = ""


async def read_submission(body: bytearray, idempotency_key: str) -> Submission:
    """Reads a body.

    Args:
        body: the complete body, which is modified.
        idempotency_key: key in the request's headers.

    Raises:
        PayloadTooLargeError: the JSON beside the bundle exceeds its limit.
        InvalidRequestError: the body is not a valid submission.
    """
    mark, bundle = "", b""
    if len(body) > LARGE_BYTES and (start := await _start_of_bundle(body)):
        bundle, end = await _decoded(body, start)
        mark = secrets.token_hex(16)  # a client cannot guess it
        body[start:end] = mark.encode()
    if len(body) > MAX_BESIDE_BYTES:
        raise PayloadTooLargeError(
            f"the body has {len(body)} bytes beside the code bundle; {MAX_BESIDE_BYTES} are "
            "allowed: leave data out of the recipe"
        )
    try:
        wanted = msgspec.json.decode(body, type=_Body)
        recipe, overrides = _recipe_of(wanted.recipe), _overrides_of(wanted.overrides)
    except _WRONG as error:
        raise InvalidRequestError(f"the body is not a job: {error}; {_FORM}") from error
    if mark and wanted.bundle_base64 != mark:
        raise InvalidRequestError(f"'bundle_base64' must be a key of the body itself; {_FORM}")
    if not mark:
        try:
            bundle = binascii.a2b_base64(wanted.bundle_base64, strict_mode=True)
        except ValueError as error:
            raise _no_base64(error) from error
    return Submission(
        recipe=recipe,
        name=wanted.name or "the recipe",
        overrides=overrides,
        bundle=bundle,
        idempotency_key=idempotency_key,
    )


def _recipe_of(raw: msgspec.Raw) -> str:
    """Returns the recipe as text; writes an object without white space, as YAML refuses tabs."""
    text = bytes(raw)
    if not text.startswith(b"{"):
        return msgspec.json.decode(text, type=str)
    members = 0
    for begin in range(0, len(text), LARGE_BYTES):
        members += sum(text.count(mark, begin, begin + LARGE_BYTES) for mark in (b",", b"[", b"{"))
        if members > MAX_MEMBERS:
            raise InvalidRequestError(
                f"the recipe has more than {MAX_MEMBERS} members; send one that long as YAML text"
            )
    return orjson.dumps(msgspec.json.decode(text, type=dict[str, Any])).decode()


def _overrides_of(raw: msgspec.Raw) -> tuple[str, ...]:
    text = bytes(raw)
    if len(text) > MAX_OVERRIDES_BYTES:
        raise InvalidRequestError(
            f"the overrides have {len(text)} bytes, and at most {MAX_OVERRIDES_BYTES} are read: "
            "write them into the recipe"
        )
    return msgspec.json.decode(text, type=tuple[str, ...])


async def _start_of_bundle(body: bytearray) -> int:
    """Returns the position at which the string of the bundle begins; 0 if there is none.

    A quotation mark within a string is escaped, so the key cannot be a part of one.
    """
    for begin in range(0, len(body), PIECE_BYTES):
        end = begin + PIECE_BYTES + len(_KEY) - 1
        found = body.find(_KEY, begin, end)
        while found >= 0:  # a string with the key's name is no key
            if match := _BEGIN.match(body, found):
                return match.end()
            found = body.find(_KEY, found + 1, end)
        await asyncio.sleep(0)
    return 0


async def _decoded(text: bytes | bytearray, start: int) -> tuple[bytes, int]:
    """Decodes a base64 string; returns its content, and the position of its closing quotation mark.

    Args:
        text: JSON; base64 has few characters that JSON may escape, `/` and `=` among them.
        start: position after the opening quotation mark.

    Raises:
        InvalidRequestError: it is not base64, or is not terminated.
    """
    parts, rest, position = [], b"", start
    try:
        while True:
            end = text.find(b'"', position, position + PIECE_BYTES)
            piece = bytes(text[position : end if end >= 0 else position + PIECE_BYTES])
            if end < 0 and (cut := piece.rfind(b"\\", 1 - _LONGEST_ESCAPE)) > 0:
                piece = piece[:cut]  # the escape may continue in the next piece
            if end < 0 and not piece:
                raise InvalidRequestError("the body is not a job: bundle_base64 does not end")
            position += len(piece)
            if b"\\" in piece:
                piece = orjson.loads(b'"%b"' % piece).encode()
            rest += piece
            whole = len(rest) if end >= 0 else (len(rest) - 1) // 4 * 4
            if end < 0 and b"=" in rest[:whole]:
                raise ValueError("there is more behind its end")
            parts.append(binascii.a2b_base64(rest[:whole], strict_mode=True) if whole > 0 else b"")
            rest = rest[max(whole, 0) :]
            if end >= 0:
                return b"".join(parts), end
            await asyncio.sleep(0)
    except ValueError as error:  # of both libraries
        raise _no_base64(error) from error


def _no_base64(error: ValueError) -> InvalidRequestError:
    return InvalidRequestError(f"bundle_base64 is not base64: {error}")
