"""Header blocks of HTTP/2 (HPACK, RFC 7541): those of a caller read, those of a server written.

In: blocks. Out: fields, names and values as bytes. What is written needs no table and no state:
the few fields of an answer are literals, and most of their bytes are known beforehand.
"""

from collections.abc import Iterable, Sequence

from hpack import Decoder, HPACKError
from hpack.table import HeaderTable

from services.gateway.http2_frames import ConnectionFaultError, Fault

MAX_BLOCK_BYTES = 64 * 1024
"""Of one call's fields, before and after they are read; beyond it the connection ends, for a
table of which a part was not read is of no use. The limit that callers are told is lower."""
STATUS_200 = b"\x88"
"""`:status: 200`, by its place in the static table."""
EMPTY_TABLE = b"\x20"
"""Says that the writer keeps no table of its own."""

Fields = Sequence[tuple[bytes, bytes]]


class _WatchedTable(HeaderTable):
    """Counts its changes: a block means the same as long as there are none."""

    changes = 0

    def add(self, name: bytes, value: bytes) -> None:
        """A field enters the table."""
        self.changes += 1
        super().add(name, value)


class HeaderBlocks:
    """What reads the header blocks of one connection, in their order."""

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
        before = table.changes, table.maxsize
        try:
            fields = tuple(self._decoder.decode(block, raw=True))
        except HPACKError as error:
            raise ConnectionFaultError(Fault.COMPRESSION_ERROR, str(error)[:200]) from error
        return fields, before == (table.changes, table.maxsize)


def write(fields: Iterable[tuple[str, str]]) -> bytes:
    """A block of literals that no table remembers (RFC 7541, 6.2.2).

    Args:
        fields: names in lower case; values of printable ASCII.
    """
    parts = []
    for name, value in fields:
        parts += [b"\x00", _text(name.encode()), _text(value.encode())]
    return b"".join(parts)


def _text(value: bytes) -> bytes:
    """A string as it is, behind its length (RFC 7541, 5.1 and 5.2)."""
    size = len(value)
    if size < 0x7F:
        return bytes((size,)) + value
    length = [0x7F]
    size -= 0x7F
    while size >= 0x80:
        length.append(size & 0x7F | 0x80)
        size >>= 7
    return bytes((*length, size)) + value
