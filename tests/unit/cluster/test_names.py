"""The name server's responses to queries of RFC 1035."""

import socket
import struct

import pytest

from tests.cluster.names import answer

RECORDS = {"gateway.test": ("198.18.0.2", "198.18.0.3"), "none.test": ()}
A, AAAA = 1, 28


def query(name: str, kind: int) -> bytes:
    """Returns a query of RFC 1035, 4.1, with its id and the recursion bit."""
    labels = b"".join(bytes([len(label)]) + label.encode() for label in name.split("."))
    return struct.pack("!6H", 77, 0x0100, 1, 0, 0, 0) + labels + b"\0" + struct.pack("!2H", kind, 1)


def addresses(response: bytes, question: bytes) -> list[str]:
    """Returns the addresses of A records, which have a fixed size and follow the question."""
    records = response[len(question) :]
    assert response[12 : len(question)] == question[12:]
    assert len(records) % 16 == 0
    return [socket.inet_ntoa(records[at + 12 : at + 16]) for at in range(0, len(records), 16)]


@pytest.mark.parametrize(
    ("name", "kind", "code", "found"),
    [
        ("gateway.test", A, 0, ["198.18.0.2", "198.18.0.3"]),
        ("GateWay.test", A, 0, ["198.18.0.2", "198.18.0.3"]),
        ("gateway.test", AAAA, 0, []),
        ("none.test", A, 0, []),
        ("other.test", A, 3, []),
    ],
)
def test_names_are_the_addresses_they_were_given(
    name: str, kind: int, code: int, found: list[str]
) -> None:
    asked = query(name, kind)
    response = answer(asked, RECORDS)
    number, flags, questions, answers = struct.unpack_from("!4H", response)
    assert (number, flags & 0x8000, flags & 0xF, questions) == (77, 0x8000, code, 1)
    assert answers == len(found)
    assert addresses(response, asked) == found
