"""The calls over gRPC: their messages in and out."""

import asyncio
from functools import partial
from typing import Any

from google.protobuf.message import Message

from services.access.caller import Principal
from services.gateway.edges.administration.calls import AdministrationCalls, Call
from services.gateway.edges.binary_texts import Reserve
from services.gateway.edges.grpc_large_answer import SlowAnswer
from services.gateway.edges.raw_parts import Part


def grpc_calls(calls: AdministrationCalls) -> dict[str, tuple[SlowAnswer, type[Message]]]:
    """Returns the handler and the request message of each call, by the call's name."""
    return {name: (partial(_answer, call), kind) for name, (call, kind) in calls.calls().items()}


async def _answer(call: Call, request: Any, principal: Principal, reserve: Reserve) -> list[Part]:
    """Serialises a response part by part: those of a message follow one another."""
    parts: list[Part] = []
    async for message in call(request, principal):
        part = message.SerializeToString()
        reserve(len(part))
        parts.append(part)
        await asyncio.sleep(0)
    return parts
