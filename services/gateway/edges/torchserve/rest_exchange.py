"""Exchanges of TorchServe's REST API: its headers, its errors, and calls beside predictions.

In: requests. Out: responses with TorchServe's headers: an id, and that nothing is to be cached.
Source: the responses of TorchServe 0.12.
"""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import NamedTuple

from model_store.archives.server_properties import ServerProperties
from services.errors import ServingError
from services.gateway.inference import INTERNAL_ERROR
from services.gateway.torchserve.management import Said
from services.gateway.torchserve.refusals import (
    INVALID_KEY,
    NO_KEY,
    NOT_AUTHORIZED,
    Refusal,
    RefusedError,
    refusal_of,
)
from services.wire.body import SMALL_BODY_BYTES, Body
from services.wire.http1.exchange import JSON, Exchange, ExchangeConnection
from services.wire.http1.head import Head

logger = logging.getLogger("flambeau.torchserve")

LARGEST_CALL_BYTES = 64 * 1024
"""Body of a call of management: a registration as JSON."""
NOT_CACHED = (
    b"pragma: no-cache\r\n"
    b"cache-control: no-cache; no-store, must-revalidate, private\r\n"
    b"expires: Thu, 01 Jan 1970 00:00:00 UTC\r\n"
)
UNTOLD = RefusedError(Refusal(400, INVALID_KEY, NOT_AUTHORIZED))
NO_NEW_KEY = RefusedError(Refusal(400, INVALID_KEY, NO_KEY))


class Asked(NamedTuple):
    """A call."""

    head: Head
    body: Body
    id: str
    """Its request id."""
    caller_left: asyncio.Event
    """It is set once the caller has disconnected."""


Call = Callable[[Asked], Awaitable[Said] | Said]
"""Answers a call."""


class Common(NamedTuple):
    """The parts that all responses of a port share."""

    fields: bytes
    """Their headers."""
    responded: Callable[[int], None]
    """Counts one, by its status."""


def common_fields(properties: ServerProperties) -> bytes:
    """Returns the headers of all responses."""
    cors = {
        "access-control-allow-origin": properties.cors_allowed_origin,
        "access-control-allow-methods": properties.cors_allowed_methods,
        "access-control-allow-headers": properties.cors_allowed_headers,
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in cors.items() if value)
    return NOT_CACHED + lines.encode("latin-1", "replace")


def id_field(request_id: str) -> bytes:
    """Returns the header with the id of a request, which is printable ASCII."""
    return b"x-request-id: %b\r\n" % request_id.encode()


def refusal_body(refusal: Refusal) -> bytes:
    """Returns an error as TorchServe prints it."""
    code, kind, message = refusal
    document = {"code": code, "type": kind, "message": message}
    return line_of(json.dumps(document, indent=2, ensure_ascii=False))


def line_of(text: str) -> bytes:
    """Returns a text as a line of UTF-8.

    Callers and handlers choose parts of it: what UTF-8 does not have, lone surrogates, is `?`.
    """
    return text.encode(errors="replace") + b"\n"


class RestExchange(Exchange):
    """An exchange with TorchServe's errors.

    Args:
        common: what all responses have in common.
        request_id: its id.
    """

    __slots__ = ("_common", "_fields", "_request_id")

    def __init__(
        self, common: Common, request_id: str, connection: ExchangeConnection, head: Head
    ) -> None:
        super().__init__(connection, head)
        self._common, self._fields, self._request_id = common, common.fields, request_id

    def respond(self, status: int, fields: bytes, parts: Sequence[bytes | memoryview]) -> None:
        """Counts and sends the response."""
        self._common.responded(status)
        super().respond(status, fields, parts)

    def respond_error(self, error: ServingError, fields: bytes = b"") -> None:
        """Answers with an error."""
        refusal = refusal_of(error)
        fields += id_field(self._request_id) + self._fields
        self.respond(refusal.code, JSON + fields, [refusal_body(refusal)])


class RefusedExchange(RestExchange):
    """An exchange that is refused by its head alone; its body is not awaited."""

    __slots__ = ("_error",)

    def __init__(
        self,
        error: RefusedError,
        common: Common,
        request_id: str,
        connection: ExchangeConnection,
        head: Head,
    ) -> None:
        super().__init__(common, request_id, connection, head)
        self._error = error

    def body_limit(self, max_bytes: int) -> int:
        """Returns a few KiB, which are ignored."""
        return min(max_bytes, SMALL_BODY_BYTES)

    def begin(self, body: Body) -> None:
        """Refuses the request."""
        self.respond_error(self._error)

    def refuse(self, error: ServingError) -> None:
        """Refuses the request for the same reason, whatever is wrong with its body."""
        self.respond_error(self._error)


class CallExchange(RestExchange):
    """A call beside predictions.

    One that awaits has a task, which its caller cannot abandon, but for downloads.
    """

    __slots__ = ("_call", "_left", "_tasks", "_works")

    def __init__(
        self,
        call: Call,
        tasks: set[asyncio.Task[None]],
        common: Common,
        request_id: str,
        connection: ExchangeConnection,
        head: Head,
    ) -> None:
        super().__init__(common, request_id, connection, head)
        self._call, self._tasks, self._left = call, tasks, asyncio.Event()
        self._works = False

    @property
    def outlives_caller(self) -> bool:
        """True while it works."""
        return self._works

    def body_limit(self, max_bytes: int) -> int:
        """Returns the limit of such a body."""
        return min(max_bytes, LARGEST_CALL_BYTES)

    def begin(self, body: Body) -> None:
        """Answers at once, or starts a task."""
        try:
            found = self._call(Asked(self.head, body, self._request_id, self._left))
            said = _written(found) if isinstance(found, Said) else None
        except Exception as error:
            self._fail(error)
            return
        if said is not None:
            self._say(*said)
            return
        assert not isinstance(found, Said)
        self._works = True
        task = asyncio.get_running_loop().create_task(self._answer(found))
        self._tasks.add(task)
        task.add_done_callback(partial(_ended, self._tasks))

    def abandon(self) -> None:
        """Ends what it downloads; other work goes on."""
        super().abandon()
        self._left.set()

    async def _answer(self, work: Awaitable[Said]) -> None:
        said: tuple[int, bytes] | None = None
        failed: Exception | None = None
        try:
            said = _written(await work)
        except Exception as error:
            failed = error
        self._works = False
        if self.response is not None:  # its caller has disconnected
            self.release()
        elif said is not None:
            self._say(*said)
        elif failed is not None:
            self._fail(failed)

    def _say(self, code: int, document: bytes) -> None:
        fields = JSON + id_field(self._request_id) + self._fields
        self.respond(code, fields, [document])

    def _fail(self, error: Exception) -> None:
        if not isinstance(error, ServingError):
            logger.error("a call failed", exc_info=error)
            error = ServingError(INTERNAL_ERROR)
        self.respond_error(error)


def _written(said: Said) -> tuple[int, bytes]:
    """Returns the code and the document of an answer."""
    return said.code, line_of(said.text)


def _ended(tasks: set[asyncio.Task[None]], task: asyncio.Task[None]) -> None:
    tasks.discard(task)
