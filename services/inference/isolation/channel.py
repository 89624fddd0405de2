"""Messages between a gateway and a worker process: small JSON objects, some with a descriptor.

One end of a `SOCK_SEQPACKET` socket pair: a message arrives whole or not at all, file
descriptors travel with it (`SCM_RIGHTS`, unix(7)), and the end of one process is seen by the
other at once.

Messages, by their one key. To the worker: `open` (what to load; with its files' bytes in a row),
`memory` (name and place of an input; with the memory), `run` (the inputs of a batch). From it:
`opened` (the platform), `memory` (as above, of an output), `outputs`, `error` (what was raised).
"""

import array
import socket
from typing import Any

import orjson

MAX_MESSAGE_BYTES = 128 * 1024
"""What a socket's default buffer takes in one piece: tensors go through shared memory instead."""

_ANCILLARY_BYTES = socket.CMSG_SPACE(array.array("i").itemsize)


class ChannelClosedError(Exception):
    """The other process hung up or ended."""


class Channel:
    """One end. One thread sends and receives at a time."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    def fileno(self) -> int:
        """The socket's descriptor, to wait on."""
        return self._socket.fileno()

    def wait_at_most(self, seconds: float | None) -> None:
        """Limits every later send and receive, or with None lifts the limit."""
        self._socket.settimeout(seconds)

    def send(self, kind: str, content: Any, descriptor: int | None = None) -> None:
        """Sends one message.

        Args:
            kind: its key.
            content: what JSON can hold.
            descriptor: goes along; the sender keeps its own.

        Raises:
            ChannelClosedError: nobody listens any more.
            ValueError: it is larger than `MAX_MESSAGE_BYTES`.
            TimeoutError: the limit of `wait_at_most` ran out.
        """
        data = orjson.dumps({kind: content})
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(
                f"a message to or from a worker process has {len(data)} bytes, at most "
                f"{MAX_MESSAGE_BYTES} fit: the model has too many tensors to run isolated"
            )
        try:
            if descriptor is None:
                self._socket.send(data)
            else:
                socket.send_fds(self._socket, [data], [descriptor])
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosedError from error

    def receive(self) -> tuple[str, Any, int | None]:
        """Waits for the next message: its key, its content and the descriptor that came along.

        Raises:
            ChannelClosedError: there will be none.
            TimeoutError: the limit of `wait_at_most` ran out.
        """
        try:
            data, ancillary, _, _ = self._socket.recvmsg(
                MAX_MESSAGE_BYTES, _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC
            )
        except TimeoutError:
            raise
        except OSError as error:
            raise ChannelClosedError from error
        if not data:
            raise ChannelClosedError
        ((kind, content),) = orjson.loads(data).items()
        descriptor = None
        if ancillary:
            (descriptor,) = array.array("i", ancillary[0][2])
        return kind, content, descriptor

    def close(self) -> None:
        """Hangs up."""
        self._socket.close()
