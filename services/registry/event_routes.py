"""Events of the registry as server-sent events.

GET /v1/registry/events[?after=ID]    `after`, or the header Last-Event-ID, goes on after an event

Source: HTML Living Standard, server-sent events.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing

import orjson
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from services.access.caller import Principal
from services.errors import ServingError
from services.registry.event_feed import Event
from services.registry.registry import Registry

EVENTS = "events"
"""Path of the stream, below that of the registry."""


async def stream_events(registry: Registry, request: Request, principal: Principal) -> Response:
    """Answers with a stream; what is wrong at its beginning is an error's status.

    Raises:
        ServingError: as `EventFeed.read`.
    """
    asked = request.query_params.get("after") or request.headers.get("last-event-id", "")
    events = registry.events(principal, asked)
    await anext(events)  # the reader has joined
    headers = {"cache-control": "no-store"}
    return StreamingResponse(_written(events), 200, headers, "text/event-stream")


async def _written(events: AsyncGenerator[Event | None, None]) -> AsyncGenerator[bytes, None]:
    yield b": after the last id, go on with after=ID\n\n"
    try:
        async with aclosing(events):
            async for event in events:
                yield b": \n\n" if event is None else _lines(event)
    except ServingError as error:
        said = orjson.dumps({"error": str(error), "code": error.grpc_code})
        yield b"event: error\ndata: %b\n\n" % said


def _lines(event: Event) -> bytes:
    kind, data = event.document["kind"].encode(), orjson.dumps(event.document)
    return b"id: %b\nevent: %b\ndata: %b\n\n" % (event.id.encode(), kind, data)
