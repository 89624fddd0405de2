"""TorchServe's management and ping over gRPC: messages to calls of the core, documents to text.

Rules, which are TorchServe's: of numbers, 0 and less mean the default, as do empty texts; calls
with one sentence as their answer give it alone, others give JSON.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from google.protobuf.message import Message

from protos.torchserve import management_pb2 as pb
from services.gateway.edges.torchserve.grpc_statuses import model_api_is_off, of_prediction
from services.gateway.torchserve.management import ALL, Management, Registering, Said
from services.gateway.torchserve.refusals import RefusedError, bad_request

Answer = Callable[[Any, asyncio.Event], Awaitable[str]]
"""Returns the text of the answer to a message; the event is set once its caller has left."""


class GrpcManagement:
    """The calls of ManagementAPIsService.

    Args:
        management: the core.
    """

    def __init__(self, management: Management) -> None:
        self._management = management

    def calls(self) -> Mapping[str, tuple[Answer, type[Message]]]:
        """Returns the calls by name, with the message of each."""
        return {
            "DescribeModel": (self._describe, pb.DescribeModelRequest),
            "ListModels": (self._list, pb.ListModelsRequest),
            "RegisterModel": (self._register, pb.RegisterModelRequest),
            "ScaleWorker": (self._scale, pb.ScaleWorkerRequest),
            "SetDefault": (self._set_default, pb.SetDefaultRequest),
            "UnregisterModel": (self._unregister, pb.UnregisterModelRequest),
        }

    async def _describe(self, asked: pb.DescribeModelRequest, _: asyncio.Event) -> str:
        name, version = asked.model_name, asked.model_version
        if not asked.customized or version == ALL:
            return (await self._management.describe(name, version)).text
        try:
            return (await self._management.describe(name, version, is_customized=True)).text
        except RefusedError as error:  # a handler is asked, and its errors are those of predictions
            raise of_prediction(error) from error

    async def _list(self, asked: pb.ListModelsRequest, _: asyncio.Event) -> str:
        return (await self._management.list(asked.limit, asked.next_page_token)).text

    async def _register(self, asked: pb.RegisterModelRequest, caller_left: asyncio.Event) -> str:
        self._check_model_api()
        registering = Registering(
            url=asked.url or None,
            model_name=asked.model_name or None,
            runtime=asked.runtime or None,
            handler=asked.handler or None,
            batch_size=_number(asked.batch_size),
            max_batch_delay_ms=_number(asked.max_batch_delay),
            initial_workers=_number(asked.initial_workers),
            response_timeout_s=_number(asked.response_timeout),
            startup_timeout_s=_number(asked.startup_timeout),
            is_synchronous=asked.synchronous,
        )
        return _sentence(await self._management.register(registering, caller_left))

    async def _scale(self, asked: pb.ScaleWorkerRequest, _: asyncio.Event) -> str:
        least = _number(asked.min_worker) or 1
        said = await self._management.scale(
            asked.model_name,
            asked.model_version,
            least,
            _number(asked.max_worker) or least,
            is_synchronous=asked.synchronous,
        )
        return _sentence(said)

    async def _set_default(self, asked: pb.SetDefaultRequest, _: asyncio.Event) -> str:
        return _sentence(await self._management.set_default(asked.model_name, asked.model_version))

    async def _unregister(self, asked: pb.UnregisterModelRequest, _: asyncio.Event) -> str:
        self._check_model_api()
        if not asked.model_name:
            raise bad_request("Parameter url is required.")
        return _sentence(await self._management.unregister(asked.model_name, asked.model_version))

    def _check_model_api(self) -> None:
        """Refuses registrations where the settings do not allow them, as gRPC does."""
        try:
            self._management.check_model_api()
        except RefusedError as error:
            raise model_api_is_off() from error


def _number(value: int) -> int | None:
    """Returns a number; None where it means the default."""
    return value if value > 0 else None


def _sentence(said: Said) -> str:
    sentence: str = said.document["status"]
    return sentence
