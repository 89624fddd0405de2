"""The head of a gRPC call: its path, deadline and metadata.

In: the fields of a header block. Out: a `GrpcHead`, or the HTTP status for a request other than
gRPC. Source: https://github.com/grpc/grpc/blob/master/doc/PROTOCOL-HTTP2.md
"""

import re
from collections.abc import Callable
from typing import Any

from services.errors import InvalidRequestError, ServingError, UnsupportedError
from services.wire.errors import HeadTooLargeError
from services.wire.http2.headers import MAX_FIELDS_BYTES, Fields

_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_NAME = re.compile(rb"[!#$%&'*+\-.^_`|~0-9a-z]+")
_NO_VALUE = re.compile(rb"[\0\r\n]")
_CONNECTION_FIELDS = frozenset(
    (b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade")
)
_TIMEOUT = re.compile(r"([0-9]{1,8})([HMSmun])")
_UNIT_S = {"H": 3600.0, "M": 60.0, "S": 1.0, "m": 1e-3, "u": 1e-6, "n": 1e-9}
_ENCODINGS = ("gzip", "deflate")
_ONCE = ("authorization", "x-api-key", "grpc-timeout", "grpc-encoding")
"""Metadata whose second occurrence would contradict the first."""
_NEW_EACH_TIME = ("x-request-id", "traceparent")
"""Metadata that differ from call to call."""
_FIELD_BYTES = 32
"""Size of a field beside its name and value (RFC 7541, 4.1)."""


class MalformedError(Exception):
    """The fields are no request of HTTP/2 (RFC 9113, 8.1.1); its stream is reset."""


class GrpcHead:
    """Facts of a call that its header block alone determines; cached with a repeated block.

    Attributes:
        path: `/package.Service/Method`.
        fields: metadata, the first value of each name; those of names in `-bin` are left encoded.
        http_status: HTTP status for a request other than gRPC; 0 for gRPC.
        timeout_s: timeout of the caller; None for no limit.
        encoding: encoding of compressed messages; empty for none.
        refusal: error for which no message of it is awaited.
        max_bytes: limit of one message; set by the port.
        most_bytes: limit below the port's; None for none.
        open: factory of the call.
    """

    __slots__ = (
        "encoding", "fields", "http_status", "max_bytes", "most_bytes", "open", "path", "refusal",
        "timeout_s",
    )  # fmt: skip

    def __init__(self, fields: Fields) -> None:
        pseudo, self.fields = _checked(fields)
        self.path = pseudo.get(b":path", b"").decode("latin-1")
        self.http_status = 0
        self.timeout_s: float | None = None
        self.encoding = ""
        self.max_bytes = 0
        self.most_bytes: int | None = None
        self.refusal: ServingError | None = None
        self.open: Callable[[Any, GrpcHead, int], Any]  # of a connection, it and a stream: a `Call`
        if pseudo[b":method"] != b"POST":
            self.http_status = 405
        elif not self.text("content-type").startswith("application/grpc"):
            self.http_status = 415
        try:
            if sum(len(n) + len(v) + _FIELD_BYTES for n, v in fields) > MAX_FIELDS_BYTES:
                raise HeadTooLargeError(
                    f"the call's metadata are over {MAX_FIELDS_BYTES} bytes, the limit; send less"
                )
            _refuse_repeated(fields, len(pseudo) + len(self.fields))
            self.timeout_s = _timeout_s(self.text("grpc-timeout"))
            self.encoding = _encoding(self.text("grpc-encoding"))
        except ServingError as error:
            self.refusal = error

    @property
    def is_usual(self) -> bool:
        """True if the same block may repeat with the same meaning."""
        return self.refusal is None and not any(name in self.fields for name in _NEW_EACH_TIME)

    def text(self, name: str) -> str:
        """Returns a metadata entry; empty if absent."""
        return self.fields.get(name, "")


def _checked(fields: Fields) -> tuple[dict[bytes, bytes], dict[str, str]]:
    """Separates pseudo-fields from the others.

    Raises:
        MalformedError: as the class.
    """
    pseudo: dict[bytes, bytes] = {}
    plain: dict[str, str] = {}
    for name, value in fields:
        if name[:1] == b":":
            if name not in _PSEUDO or name in pseudo or plain:
                raise MalformedError
            pseudo[name] = value
        elif not _is_sound(name, value):
            raise MalformedError
        else:
            plain.setdefault(name.decode(), value.decode("latin-1"))
    if not {b":method", b":scheme", b":path"} <= pseudo.keys():
        raise MalformedError
    return pseudo, plain


def _refuse_repeated(fields: Fields, names: int) -> None:
    """Refuses a call that repeats a field that must be unique.

    Args:
        fields: all of the call's.
        names: number of distinct names.
    """
    if names == len(fields):
        return
    found = [name for name, _ in fields]
    for once in _ONCE:
        if found.count(once.encode()) > 1:
            raise InvalidRequestError(f"the metadata entry {once} occurs twice; give one")


def _is_sound(name: bytes, value: bytes) -> bool:
    """Returns True if a field is valid in a request (RFC 9113, 8.2)."""
    return (
        _NAME.fullmatch(name) is not None
        and name not in _CONNECTION_FIELDS
        and not _NO_VALUE.search(value)
        and (name != b"te" or value == b"trailers")
    )


def _timeout_s(value: str) -> float | None:
    if not value:
        return None
    found = _TIMEOUT.fullmatch(value)
    if found is None:
        raise InvalidRequestError(
            f"grpc-timeout must be up to 8 digits and one of H M S m u n, and is '{value[:40]}'"
        )
    return int(found[1]) * _UNIT_S[found[2]]


def _encoding(value: str) -> str:
    if value in ("", "identity"):
        return ""
    if value not in _ENCODINGS:
        raise UnsupportedError(
            f"grpc-encoding '{value[:40]}' is not supported; use gzip, deflate or identity"
        )
    return value
