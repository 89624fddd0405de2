"""Header blocks of HTTP/2 (HPACK, RFC 7541): decodes those of a caller, encodes those of a server.

In: blocks. Out: fields, names and values as bytes. What is written needs no table and no state:
the few fields of an answer are literals, and most of their bytes are known beforehand.
"""

from collections.abc import Iterable, Sequence

from hpack import Decoder, HPACKDecodingError, HPACKError
from hpack.table import HeaderTable

from services.wire.http2.frames import ConnectionFaultError, Fault

MAX_FIELDS_BYTES = 16 * 1024
"""Limit on the fields of one call together, sent to clients; a token of an identity provider may
take half of it. Calls with more are refused with a message."""
MAX_BLOCK_BYTES = 64 * 1024
"""Limit on the fields of one call, before and after decoding; beyond it the connection is closed,
because a table that was decoded in part is useless. The limit sent to clients is lower."""
STATUS_200 = b"\x88"
"""`:status: 200`, by its place in the static table."""
EMPTY_TABLE = b"\x20"
"""Says that the writer keeps no table of its own."""

Fields = Sequence[tuple[bytes, bytes]]


_MAX_RESIZES = 2
"""Maximum number of resizes of the table at the start of a block (RFC 7541, 4.2)."""


class _WatchedTable(HeaderTable):
    """Counts its changes: a block means the same as long as there are none.

    Attributes:
        changes: in all.
        resizes: in this block.
    """

    changes = resizes = 0

    def add(self, name: bytes, value: bytes) -> None:
        """Adds a field to the table."""
        self.changes += 1
        super().add(name, value)

    @property
    def maxsize(self) -> int:
        """Size of the table; a smaller size drops its oldest fields."""
        return self._maxsize

    @maxsize.setter
    def maxsize(self, newmax: int) -> None:
        self.changes += 1
        self.resizes += 1
        if self.resizes > _MAX_RESIZES:
            raise HPACKDecodingError(f"the table is resized more than {_MAX_RESIZES} times")
        HeaderTable.maxsize.fset(self, newmax)  # type: ignore[attr-defined]


class HeaderBlocks:
    """Decodes the header blocks of one connection, in their order."""

    __slots__ = ("_decoder", "_table")

    def __init__(self) -> None:
        self._decoder = Decoder(MAX_BLOCK_BYTES)
        self._table = self._decoder.header_table = _WatchedTable()

    def read(self, block: bytes) -> tuple[Fields, bool]:
        """Reads a block.

        Returns:
            Its fields, and whether the same bytes would say the same again: reading them has
            left the table as it was.

        Raises:
            ConnectionFaultError: it cannot be read, or is over the limit.
        """
        table = self._table
        before, table.resizes = table.changes, 0
        try:
            fields = tuple(self._decoder.decode(block, raw=True))
        except HPACKError as error:
            raise ConnectionFaultError(Fault.COMPRESSION_ERROR, str(error)[:200]) from error
        return fields, before == table.changes


def write(fields: Iterable[tuple[str, str]]) -> bytes:
    """Encodes a block of literals without indexing (RFC 7541, 6.2.2).

    Args:
        fields: names in lower case; values of printable ASCII.
    """
    parts = []
    for name, value in fields:
        parts += [b"\x00", _text(name.encode()), _text(value.encode())]
    return b"".join(parts)


def _text(value: bytes) -> bytes:
    """Encodes a plain string after its length (RFC 7541, 5.1 and 5.2)."""
    size = len(value)
    if size < 0x7F:
        return bytes((size,)) + value
    length = [0x7F]
    size -= 0x7F
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*length, size)) + value
