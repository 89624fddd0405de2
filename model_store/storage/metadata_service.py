"""Asks for the metadata service of a cloud's machines, which gives credentials to programs there.

Elsewhere it does not exist, and a connection error to its address would hide the reason.
"""

import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

TIMEOUT_S = 1.0
"""Connect timeout; the service is on the machine's own host, and answers within milliseconds."""
PORT = 80


def answers(url: str, call: str, headers: Mapping[str, str]) -> bool:
    """Returns True if the service accepts a connection and answers with 200.

    Args:
        url: `http://` and its address.
        call: method and path, as `PUT /latest/api/token`.
        headers: headers of the request beside `host`.
    """
    parts = urlsplit(url)
    said = {"host": parts.netloc, **headers, "content-length": "0", "connection": "close"}
    lines = [f"{call} HTTP/1.1", *(f"{name}: {value}" for name, value in said.items())]
    try:
        address = (parts.hostname or "", parts.port or PORT)
        with socket.create_connection(address, TIMEOUT_S) as connection:
            connection.sendall("\r\n".join([*lines, "", ""]).encode())
            return b" 200 " in connection.recv(64)
    except (OSError, ValueError):
        return False
