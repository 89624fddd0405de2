"""Bodies of predictions as parts by name: a raw body, a form, or multipart. Pure.

In: a body and its content type. Out: the parts that a handler sees as one row, in slices if it
takes long.

Rules: a body that is not what its content type says is an error; parts, their heads and the
boundary are limited; a part without a file name has no content type, as with TorchServe.
Source: RFC 7578 and RFC 2046, 5.1; the HTML Living Standard for forms.
"""

import re
from binascii import unhexlify
from collections.abc import Iterator

from model_store.archives.handler_calls import BODY, MAX_HEAD_BYTES, Part
from services.errors import InvalidRequestError
from services.gateway.sliced_work import Slices
from services.wire.body import Body

MAX_PARTS = 1_000
"""Parts of a multipart body, or fields of a form."""
MAX_PART_HEAD_BYTES = 8 * 1024
MAX_BOUNDARY_CHARACTERS = 256
"""RFC 2046 has 70; some clients exceed it."""
SLICED_BYTES = 8 * 1024
"""Size from which a form is read in slices: a smaller one has 160 parts at most, 1.5 ms."""
_PARTS_A_SLICE = 100
"""Parts of a multipart body that one slice reads: 1 ms."""
_SEARCHED_BYTES = 2**20
"""Bytes that one slice searches for a boundary: some 0.3 ms."""
_DECODED_BYTES = 4096
"""Bytes of a form that one slice decodes: 0.3 ms if each fourth is an escape."""
_MAX_NAME_BYTES = 3 * MAX_HEAD_BYTES
"""Escaped, of a field: no request to a handler holds more."""
_SPACES = bytes.maketrans(b"+", b" ")
_ESCAPES = re.compile(rb"(?:%[0-9A-Fa-f]{2})+")
_FORM, _MULTIPART = "application/x-www-form-urlencoded", "multipart/"
_FILE_TYPE = "application/octet-stream"
_PARAMETER = re.compile(r';\s*([A-Za-z0-9_*-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s;"]*))')


def type_of(content_type: str) -> str:
    """Returns a content type without its parameters, in the case that was sent."""
    return content_type.partition(";")[0].strip()


def read_parts(body: Body, content_type: str) -> Slices[list[Part]]:
    """Reads a body.

    Args:
        body: the body.
        content_type: header of the request; empty for none.

    Raises:
        InvalidRequestError: it is no form, or has too many parts.
    """
    kind = type_of(content_type)
    if not is_form(content_type):
        return [Part(BODY, kind, body)]
    if kind.lower() == _FORM:
        return (yield from _fields(bytes(body)))
    boundary = _boundary(content_type)
    if len(boundary) > MAX_BOUNDARY_CHARACTERS:
        raise InvalidRequestError(
            f"the boundary of the multipart body has {len(boundary):,} characters, and at most "
            f"{MAX_BOUNDARY_CHARACTERS} are allowed; choose a shorter one"
        )
    return (yield from _multipart(bytes(body), boundary.encode("latin-1", "replace")))


def is_form(content_type: str) -> bool:
    """Returns True if a body of this type has parts; multipart without a boundary has none."""
    kind = type_of(content_type).lower()
    return kind == _FORM or (kind.startswith(_MULTIPART) and bool(_boundary(content_type)))


def _boundary(content_type: str) -> str:
    return _parameters(content_type).get("boundary", "")


def _parameters(header: str) -> dict[str, str]:
    """Returns the parameters of a header, by names in lower case."""
    return {
        found[1].lower(): re.sub(r"\\(.)", r"\1", found[2]) if found[2] is not None else found[3]
        for found in _PARAMETER.finditer(header)
    }


def _multipart(data: bytes, boundary: bytes) -> Slices[list[Part]]:
    first, delimiter = b"--" + boundary, b"\r\n--" + boundary
    at = 0 if data.startswith(first) else (yield from _find(data, delimiter, 0)) + 2
    if at < 2 and not data.startswith(first):
        raise InvalidRequestError(
            f"the multipart body does not have its boundary '{boundary.decode('latin-1')[:70]}'"
        )
    at += len(first)
    parts: list[Part] = []
    while not data.startswith(b"--", at):
        if len(parts) == MAX_PARTS:
            raise _too_many("parts", MAX_PARTS)
        begin = _line_end(data, at)
        end = yield from _find(data, delimiter, begin - 2)
        if end < 0:
            raise InvalidRequestError(
                f"part {len(parts) + 1} of the multipart body has no end; end the body with its "
                "boundary and '--'"
            )
        parts.append(_part(data, begin, end, len(parts) + 1))
        at = end + len(delimiter)
        if len(parts) % _PARTS_A_SLICE == 0:
            yield
    return parts


def _find(data: bytes, delimiter: bytes, at: int) -> Slices[int]:
    """Finds a delimiter, in slices; -1 for none."""
    while at < len(data):
        until = min(len(data), at + _SEARCHED_BYTES + len(delimiter))
        found = data.find(delimiter, at, until)
        if found >= 0 or until == len(data):
            return found
        at += _SEARCHED_BYTES
        yield
    return -1


def _line_end(data: bytes, at: int) -> int:
    """Returns the place behind the line of a boundary, which may have spaces."""
    end = data.find(b"\r\n", at, at + MAX_BOUNDARY_CHARACTERS)
    if end < 0 or data[at:end].strip(b" \t"):
        raise InvalidRequestError("a boundary of the multipart body does not end its line")
    return end + 2


def _part(data: bytes, begin: int, end: int, number: int) -> Part:
    """Returns the part between two boundaries."""
    if data.startswith(b"\r\n", begin):
        head, at = b"", begin + 2
    else:
        found = data.find(b"\r\n\r\n", begin, min(end + 2, begin + MAX_PART_HEAD_BYTES))
        if found < 0:
            raise InvalidRequestError(
                f"part {number} of the multipart body has no head, or one over "
                f"{MAX_PART_HEAD_BYTES:,} bytes"
            )
        head, at = data[begin:found], found + 4
    headers = dict(_header_lines(head))
    named = _parameters(";" + headers.get("content-disposition", "").partition(";")[2])
    name = named.get("name")
    if not name:
        raise InvalidRequestError(
            f"part {number} of the multipart body has no name; send Content-Disposition: "
            'form-data; name="data"'
        )
    kind = ""
    if "filename" in named or "filename*" in named:
        kind = type_of(headers.get("content-type", "")) or _FILE_TYPE
    return Part(name, kind, memoryview(data)[min(at, end) : end])


def _header_lines(head: bytes) -> Iterator[tuple[str, str]]:
    for line in head.split(b"\r\n"):
        name, _, value = line.decode("utf-8", "replace").partition(":")
        yield name.strip().lower(), value.strip()


def _fields(data: bytes) -> Slices[list[Part]]:
    """Returns the fields of a form; the last of several with one name is what a handler sees."""
    parts: list[Part] = []
    count, at = 0, 0
    while at <= len(data):
        count += 1
        if count > MAX_PARTS:
            raise _too_many("fields", MAX_PARTS)
        end = data.find(b"&", at)
        end = end if end >= 0 else len(data)
        if end > at:
            cut = data.find(b"=", at, end)
            cut = cut if cut >= 0 else end
            if cut - at > _MAX_NAME_BYTES:
                raise InvalidRequestError(
                    f"a field of the form has a name of {cut - at:,} bytes, and at most "
                    f"{_MAX_NAME_BYTES:,} are allowed; send the data as its value, name=data"
                )
            key = yield from _decoded(data, at, cut)
            content = yield from _decoded(data, cut + 1, end)
            parts.append(Part(key.decode("utf-8", "replace"), "", content))
        at = end + 1
    return parts


def _decoded(data: bytes, at: int, until: int) -> Slices[bytes]:
    """Decodes the escapes of a part of a form, in slices; what is none stays as it is."""
    found = []
    while at < until:
        end = min(at + _DECODED_BYTES, until)
        if end < until:
            cut = data.rfind(b"%", end - 2, end)  # an escape is not cut
            end = cut if cut > at else end
        found.append(_ESCAPES.sub(_escaped, data[at:end].translate(_SPACES)))
        at = end
        if at < until:
            yield
    return b"".join(found)


def _escaped(escapes: "re.Match[bytes]") -> bytes:
    return unhexlify(escapes[0].translate(None, b"%"))


def _too_many(what: str, limit: int) -> InvalidRequestError:
    return InvalidRequestError(
        f"the body has over {limit:,} {what}, the limit; send one request for each row"
    )
