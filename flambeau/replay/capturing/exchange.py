"""A captured request with its answer, and the line of a capture that it becomes.

Credentials are left out, unless they are asked for: headers and parameters of the query whose names
say that they are some.
"""

import base64
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import unquote_plus

from flambeau.replay.http1_messages import Message
from flambeau.replay.records import Headers
from flambeau.replay.server_connection import OF_ONE_CONNECTION

TEXT_BYTES = 2**16
"""Bodies up to this size are written as text if they are some; others in base64."""
PIECE_BYTES = 3 * 2**14
"""Bytes that are encoded at once, a multiple of three: the interpreter is held for 0.1 ms."""
ABOUT_CALLERS = frozenset(("forwarded", "via", "x-real-ip"))
"""Headers that proxies add."""

_WORDS = re.compile(r"[a-z0-9]+")
_CREDENTIAL = frozenset(
    ("apikey", "auth", "authentication", "authorization", "cookie", "cookie2", "credential",
     "credentials", "jwt", "key", "passwd", "password", "secret", "session", "sessionid", "sid",
     "sig", "signature", "token")
)  # fmt: skip


@dataclass(slots=True, kw_only=True)
class Exchange:
    """A request and its answer, as they arrive.

    Attributes:
        time: when the request began.
        started_s: the same, by the event loop's clock.
        request: the request.
        answer: the answer; None until it begins, and if it is not recorded.
        is_recorded: True if it is written when it is whole.
        reserved_bytes: room that the recorder has for it.
        ms: milliseconds from the first byte of the request to the last of the answer.
    """

    time: datetime
    started_s: float
    request: Message
    answer: Message | None = None
    is_recorded: bool
    reserved_bytes: int = 0
    ms: float = 0.0


def is_credential(name: str) -> bool:
    """Returns True if the name of a header or a parameter is that of a credential."""
    return not _CREDENTIAL.isdisjoint(_WORDS.findall(name.lower()))


def line_pieces(exchange: Exchange, *, answers: bool, credentials: bool) -> Iterator[bytes]:
    """Yields the line of an exchange in pieces, the end of line included.

    Args:
        exchange: the exchange, whole.
        answers: True to write the answer's headers and body, too.
        credentials: True to keep credentials.
    """
    request, answer = exchange.request, exchange.answer
    path = request.target.decode("latin-1")
    head = {
        "time": exchange.time.isoformat(timespec="milliseconds"),
        "method": request.method,
        "path": path if credentials else without_credentials(path),
        "headers": _headers(request.headers, credentials),
    }
    yield _open(head)
    if answers and answer is not None and not answer.is_cut:
        yield b', "answer": '
        told = {"status": answer.status, "ms": round(exchange.ms, 3)}
        yield _open({**told, "headers": _headers(answer.headers, credentials)})
        yield from _body(answer.body)
        yield b"}"
    yield from _body(request.body)
    yield b"}\n"


def without_credentials(path: str) -> str:
    """Returns a path without the parameters of its query that are credentials."""
    before, mark, query = path.partition("?")
    if not mark:
        return path
    kept = [part for part in query.split("&") if not is_credential(_name(part))]
    return f"{before}?{'&'.join(kept)}" if kept else before


def _name(parameter: str) -> str:
    return unquote_plus(parameter.partition("=")[0])


def _headers(headers: Headers, credentials: bool) -> dict[str, str | list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in headers:
        is_about_callers = name in ABOUT_CALLERS or name.startswith("x-forwarded-")
        if name in OF_ONE_CONNECTION or is_about_callers:
            continue
        if credentials or not is_credential(name):
            found.setdefault(name, []).append(value)
    return {name: values[0] if len(values) == 1 else values for name, values in found.items()}


def _open(fields: Mapping[str, object]) -> bytes:
    """Returns an object of JSON without its closing brace."""
    return json.dumps(fields).encode()[:-1]


def _body(body: bytearray) -> Iterator[bytes]:
    if not body:
        return
    text = _text(body) if len(body) <= TEXT_BYTES else None
    if text is not None:
        yield b', "body": ' + json.dumps(text, ensure_ascii=False).encode()
        return
    yield b', "body_base64": "'
    for start in range(0, len(body), PIECE_BYTES):
        yield base64.b64encode(body[start : start + PIECE_BYTES])
    yield b'"'


def _text(body: bytearray) -> str | None:
    """Returns a body as text; None if it is no UTF-8."""
    try:
        return body.decode()
    except UnicodeDecodeError:
        return None
