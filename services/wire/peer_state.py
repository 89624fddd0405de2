"""Tells whether the peer of a connection that is not read has left.

A transport whose reading is paused reports neither the peer's end nor its reset. Linux keeps the
state of the connection, which a sweep can ask for.

Source: tcp(7), TCP_INFO: the first byte is a state of `include/net/tcp_states.h`.
"""

import asyncio
import socket

_LEFT = (7, 8, 9, 11)
"""TCP_CLOSE after a reset; TCP_CLOSE_WAIT, TCP_LAST_ACK and TCP_CLOSING after the peer's end."""
_TCP_INFO = getattr(socket, "TCP_INFO", None)


def has_left(transport: asyncio.BaseTransport) -> bool:
    """Returns True if the peer has ended or reset the connection; False where that is unknown."""
    sock = transport.get_extra_info("socket")
    if sock is None or _TCP_INFO is None:
        return False
    try:
        return sock.getsockopt(socket.IPPROTO_TCP, _TCP_INFO, 1)[0] in _LEFT
    except OSError:  # a Unix socket; or the transport is about to report a loss
        return False
