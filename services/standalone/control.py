"""Messages between the supervisor and one of its processes: a kind, a little JSON, a descriptor.

The channel is a pair of `SOCK_SEQPACKET` sockets, so a message comes whole or not at all, and each
end notices the death of the other. What may be large lies in an anonymous file that is sent.

To an edge or the model process: `link` (one end of a socket pair between the two), `drain`, `stop`
(True to abandon runs), `collect` (its metrics), `count` (its figures of the statistics calls),
`figures` and `reports` (to an edge that has asked: those of all). From them: `link` (asks for one),
`up` (it serves; from the model process with what it serves), `ready` (why an edge is not ready),
`metrics`, `counted`, `figures` (asks for those of all), `report` (the callers of an edge),
`reports` (asks for those of all edges about a model), `settings` (of logs and traces, to all
processes, and from an edge that a caller has told), `unanswered` (a drain took too long), `failed`
(it cannot start: the class of the error, and its words).
"""

import asyncio
import contextlib
import os
import socket
from collections.abc import Callable
from typing import Any

import orjson

MAX_MESSAGE_BYTES = 64 * 1024
"""Limit of a message; what may be larger lies in a file."""


class Control:
    """One end of the channel. Belongs to the event loop.

    Args:
        end: socket of this end.
        take: called with the kind, the content, and the descriptor, which it then owns; -1 for
            none, or for one that this process had no room for.
        ended: called once, when the other process has closed its end.
    """

    def __init__(
        self,
        end: socket.socket,
        take: Callable[[str, Any, int], None],
        ended: Callable[[], None],
    ) -> None:
        self._end, self._take, self._ended = end, take, ended
        end.setblocking(False)
        end.set_inheritable(False)
        asyncio.get_running_loop().add_reader(end, self._readable)

    def send(self, kind: str, content: object = None, descriptor: int = -1) -> bool:
        """Sends a message; one to a process that has ended, or reads nothing, is lost.

        Returns:
            True unless it was lost.

        Raises:
            ValueError: it is larger than `MAX_MESSAGE_BYTES`.
        """
        data = orjson.dumps([kind, content])
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message '{kind}' has {len(data)} bytes; send it in a file")
        with contextlib.suppress(OSError):
            socket.send_fds(self._end, [data], [] if descriptor < 0 else [descriptor])
            return True
        return False

    def send_file(self, kind: str, content: object, data: bytes) -> bool:
        """Sends a message with a file of these bytes; it is lost if no descriptor is free, too."""
        with contextlib.suppress(OSError):
            descriptor = make_file(data)
            try:
                return self.send(kind, content, descriptor)
            finally:
                os.close(descriptor)
        return False

    def drain(self) -> None:
        """Takes all messages that have come, when the other process has ended."""
        while self._end.fileno() >= 0 and self._took():
            pass

    def close(self) -> None:
        """Closes this end."""
        if self._end.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self._end)
            self._end.close()

    def _readable(self) -> None:
        self._took()

    def _took(self) -> bool:
        """Takes a message, or notices the end. Returns False if there was none."""
        try:
            data, descriptors, _, _ = socket.recv_fds(
                self._end, MAX_MESSAGE_BYTES, 1, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError:
            data, descriptors = b"", []
        if data:
            kind, content = orjson.loads(data)
            self._take(kind, content, descriptors[0] if descriptors else -1)
        else:
            self.close()
            self._ended()
        return True


def make_file(data: bytes) -> int:
    """Returns the descriptor of an anonymous file of these bytes, read from its beginning."""
    descriptor = os.memfd_create("flambeau", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        os.lseek(descriptor, 0, os.SEEK_SET)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def read_file(descriptor: int) -> bytes:
    """Returns the bytes of such a file, and closes it."""
    with os.fdopen(descriptor, "rb") as file:
        return file.read()
