"""DNS as in a cluster: a name resolves to the addresses of its ready pods.

In: queries of RFC 1035 over UDP. Out: an A record for each address, with a TTL of one second; empty
responses for other types, so that resolvers use the A records; NXDOMAIN for unknown names.
"""

import socket
import struct
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

PORT = 53
TTL_S = 1
MAX_QUERY_BYTES = 4096
_ANSWERS, _NO_SUCH_NAME = 0x8580, 0x8583  # response, authoritative, recursion as requested
_A, _IN = 1, 1
_POINTER_TO_QUESTION = 0xC00C


@dataclass
class Names:
    """A name server; responds inside the block.

    Attributes:
        address: address to listen on.
    """

    address: str
    _records: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def __enter__(self) -> "Names":
        self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.bind((self.address, PORT))
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", (self.address, PORT))
        self._thread.join()
        self._socket.close()

    def set(self, name: str, addresses: tuple[str, ...]) -> None:
        """Sets the addresses of a name, effective immediately."""
        self._records = {**self._records, name: addresses}

    def _serve(self) -> None:
        while True:
            query, caller = self._socket.recvfrom(MAX_QUERY_BYTES)
            if not query:
                return
            self._socket.sendto(answer(query, self._records), caller)


def answer(query: bytes, records: Mapping[str, tuple[str, ...]]) -> bytes:
    """Returns the response to a query of one question.

    Raises:
        IndexError, struct.error, UnicodeDecodeError: the query is malformed.
    """
    (number,) = struct.unpack_from("!H", query)
    labels, position = [], 12
    while length := query[position]:
        labels.append(query[position + 1 : position + 1 + length].decode())
        position += 1 + length
    kind, family = struct.unpack_from("!HH", query, position + 1)
    found = records.get(".".join(labels).lower())
    addresses = (found or ()) if (kind, family) == (_A, _IN) else ()
    flags = _NO_SUCH_NAME if found is None else _ANSWERS
    head = struct.pack("!6H", number, flags, 1, len(addresses), 0, 0)
    return b"".join(
        [
            head,
            query[12 : position + 5],
            *(
                struct.pack("!3HIH", _POINTER_TO_QUESTION, _A, _IN, TTL_S, 4)
                + socket.inet_aton(address)
                for address in addresses
            ),
        ]
    )
