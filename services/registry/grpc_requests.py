"""Request messages of the registry over gRPC, read with limits.

In: bytes of a message. Out: what it asks for; the data of a chunk as a view, without a copy.

Rule: fields are counted before protobuf builds objects of them.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from model_store.safety.protobuf_fields import BYTES, fields_of
from model_store.uploads.declaration import DECLARED, MAX_FILES, Declaration, read_declaration
from protos.flambeau.v1 import registry_pb2 as pb
from services.errors import InvalidRequestError, PayloadTooLargeError
from services.registry.registry import CHUNK_BYTES
from services.wire.body import Body
from services.wire.http2.grpc_call import parsed

MAX_CHUNK_FIELDS = 16
"""Fields of a chunk's message, which has four."""
MAX_ENTRY_BYTES = 1024
"""Limit of the message of one declared file: its name has at most 255 bytes."""
_BESIDE_BYTES = 4 * 1024
"""Limit of a chunk's message without its data: an id and a name."""
_DATA: Final = pb.AppendChunkRequest.DESCRIPTOR.fields_by_name["data"].number
_FILES: Final = pb.BeginUploadRequest.DESCRIPTOR.fields_by_name["files"].number

CHUNK_MESSAGE_BYTES = CHUNK_BYTES + _BESIDE_BYTES
DECLARATION_BYTES = DECLARED.max_bytes
"""Limit of a message that declares an upload."""


class Chunk(NamedTuple):
    """Bytes to append to a file of an upload."""

    id: str
    file: str
    offset: int
    data: memoryview


def read_chunk(body: Body) -> Chunk:
    """Reads an `AppendChunkRequest`.

    Args:
        body: the message; the chunk views it.

    Raises:
        InvalidRequestError: the bytes are not this message.
        PayloadTooLargeError: it has over `CHUNK_BYTES` of data.
    """
    message, rest, begin, fields = memoryview(body), bytearray(), 0, 0
    data = memoryview(b"")
    try:
        for number, wire, start, end in fields_of(message, 0, len(message)):
            fields += 1
            if number == _DATA and wire == BYTES:
                data = message[start:end]
            else:
                rest += message[begin:end]
            if fields > MAX_CHUNK_FIELDS or len(rest) > _BESIDE_BYTES:
                raise InvalidRequestError(
                    f"the chunk's message has over {MAX_CHUNK_FIELDS} fields, or over "
                    f"{_BESIDE_BYTES:,} bytes beside its data; send id, file, offset and data"
                )
            begin = end
    except (ValueError, IndexError):
        raise InvalidRequestError("the request is not a valid AppendChunkRequest") from None
    if len(data) > CHUNK_BYTES:
        raise PayloadTooLargeError(
            f"the chunk has {len(data):,} bytes, over the limit {CHUNK_BYTES:,}; send smaller ones"
        )
    asked = parsed(pb.AppendChunkRequest, bytes(rest))
    return Chunk(asked.id, asked.file, asked.offset, data)


def check_declaration(body: Body) -> Body:
    """Checks the size of a `BeginUploadRequest`, and the number and size of its files.

    Raises:
        InvalidRequestError: it exceeds a limit, or the bytes are no message.
    """
    message, files, fields = memoryview(body), 0, 0
    try:
        for number, _, start, end in fields_of(message, 0, len(message)):
            fields += 1
            files += number == _FILES
            if fields > MAX_FILES + MAX_CHUNK_FIELDS or files > MAX_FILES:
                raise InvalidRequestError(
                    f"the declaration of the upload has over {MAX_FILES:,} files, or too many "
                    f"other fields; give at most {MAX_FILES:,} files"
                )
            if end - start > MAX_ENTRY_BYTES:
                raise InvalidRequestError(
                    f"a field of the declaration has {end - start:,} bytes, over "
                    f"{MAX_ENTRY_BYTES:,}; give shorter names"
                )
    except (ValueError, IndexError):
        raise InvalidRequestError("the request is not a valid BeginUploadRequest") from None
    return body


def declaration_in(body: Body, between: Callable[[], None]) -> Declaration:
    """Reads a checked `BeginUploadRequest`.

    Args:
        body: the message.
        between: called after each slice of the work, to lend the interpreter lock.

    Raises:
        InvalidRequestError: the bytes are not this message.
        UploadRefusedError: it violates the schema of a declaration.
    """
    asked = parsed(pb.BeginUploadRequest, body)
    between()
    document = {
        "model": asked.model,
        "version": asked.version,
        "files": [
            {"file": one.file, "size_bytes": one.size_bytes, "sha256": one.sha256}
            for one in asked.files
        ],
    }
    return read_declaration(document, between)
