"""Messages between a server and a worker process: small JSON objects, some with a descriptor.

A channel is one end of a `SOCK_SEQPACKET` socket pair: a message arrives whole or not at all, file
descriptors are sent with it (`SCM_RIGHTS`, unix(7)), and each process detects the exit of the
other at once.

Messages, by their only key. To the worker: `open` (the artifact; its descriptor has the files, one
after another), `memory` (name of an input; its descriptor is the memory), `run` or `run_in_parts`
(the inputs of a batch), `next` (True to continue behind a part, False to end the run). From it:
`opened` (platform, and whether it gives parts), `memory` (as above, of an output), `outputs`,
`error`. To `run_in_parts` it sends `part` (its outputs) any number of times, then `end`.
"""

import array
import os
import socket
from collections.abc import Callable
from typing import Any, TypeVar

import orjson

T = TypeVar("T")

MAX_MESSAGE_BYTES = 128 * 1024
"""Limit of a message, for a socket's default buffer; tensors are sent through shared memory."""

_ANCILLARY_BYTES = socket.CMSG_LEN(array.array("i").itemsize)
"""Room for one descriptor; the kernel closes further ones."""


Message = tuple[str, Any, int | None]
"""Key, content, and descriptor or None."""


class ChannelClosedError(OSError):
    """The other process closed the channel or ended."""


class Channel:
    """One end of a channel; at most one thread at a time sends or receives."""

    def __init__(self, end: socket.socket) -> None:
        self._socket = end

    @property
    def is_closed(self) -> bool:
        """True once this end is closed in this process."""
        return self._socket.fileno() < 0

    def fileno(self) -> int:
        """Returns the socket's descriptor, to poll."""
        return self._socket.fileno()

    def wait_at_most(self, seconds: float | None) -> None:
        """Sets the timeout of later sends and receives; None removes it."""
        self._socket.settimeout(seconds)

    def send(
        self, kind: str, content: Any, descriptor: int | None = None, *, flags: int = 0
    ) -> None:
        """Sends one message.

        Args:
            kind: key of the message.
            content: value of the message, serializable as JSON.
            descriptor: file descriptor to send with it; the sender's own stays open.
            flags: as for send(2); with `MSG_DONTWAIT` it does not wait for room.

        Raises:
            BlockingIOError: there is no room now.
            ChannelClosedError: the other end is closed.
            ValueError: the message is larger than `MAX_MESSAGE_BYTES`.
            TimeoutError: the timeout of `wait_at_most` expired.
        """
        data = orjson.dumps({kind: content})
        if len(data) > MAX_MESSAGE_BYTES:
            raise ValueError(
                f"a message to or from a worker process has {len(data)} bytes, at most "
                f"{MAX_MESSAGE_BYTES} fit: the model has too many tensors to run isolated"
            )
        if descriptor is None:
            self._calling(lambda: self._socket.send(data, flags), flags)
        else:
            ends = [descriptor]
            self._calling(lambda: socket.send_fds(self._socket, [data], ends, flags), flags)

    def receive(self, *, flags: int = 0) -> Message:
        """Waits for the next message and returns its key, its content and its descriptor, if any.

        Args:
            flags: as for recv(2); with `MSG_DONTWAIT` it does not wait.

        Raises:
            BlockingIOError: none is there now.
            ChannelClosedError: the other end is closed.
            TimeoutError: the timeout of `wait_at_most` expired.
            ValueError, AttributeError: what came is no message.
        """
        flags |= socket.MSG_CMSG_CLOEXEC
        data, ancillary, _, _ = self._calling(
            lambda: self._socket.recvmsg(MAX_MESSAGE_BYTES, _ANCILLARY_BYTES, flags), flags
        )
        if not data:
            raise ChannelClosedError
        descriptor = array.array("i", ancillary[0][2])[0] if ancillary else None
        try:
            ((kind, content),) = orjson.loads(data).items()
        except (ValueError, AttributeError):
            if descriptor is not None:
                os.close(descriptor)
            raise
        return kind, content, descriptor

    def _calling(self, call: Callable[[], T], flags: int) -> T:
        """Makes a call of the system, which waits unless the flags say otherwise.

        uvloop sets descriptors that it watches to a mode that does not wait, and leaves them in it.
        """
        try:
            try:
                return call()
            except BlockingIOError:
                if flags & socket.MSG_DONTWAIT or self._socket.gettimeout() is not None:
                    raise
                os.set_blocking(self._socket.fileno(), True)
                return call()
        except (TimeoutError, BlockingIOError):
            raise
        except OSError as error:
            raise ChannelClosedError from error

    def close(self) -> None:
        """Closes this end."""
        self._socket.close()
