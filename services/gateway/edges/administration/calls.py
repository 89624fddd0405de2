"""The calls, one function each, for both protocols.

In: a request message and its caller. Out: response messages, which together are the response: the
parts of a long one, each made in some 0.1 ms.
"""

from collections.abc import AsyncIterator, Callable
from typing import Any

from google.protobuf.message import Message

from protos import open_inference_pb2 as pb
from services.access.caller import Principal
from services.gateway.edges.administration.model_config import config_message
from services.gateway.request_accounting import RequestAccounting
from services.queueing.directory import Directory

Call = Callable[[Any, Principal], AsyncIterator[Message]]


class AdministrationCalls:
    """Answers the calls.

    Args:
        directory: versions that are served.
        accounting: counts refusals.
    """

    def __init__(self, directory: Directory, accounting: RequestAccounting) -> None:
        self._directory = directory
        self._accounting = accounting

    def calls(self) -> dict[str, tuple[Call, type[Message]]]:
        """Returns the function and the request message of each call, by the call's name."""
        return {
            "ModelConfig": (self.config, pb.ModelConfigRequest),
        }

    async def config(
        self, request: pb.ModelConfigRequest, principal: Principal
    ) -> AsyncIterator[Message]:
        """Yields the configuration of a version."""
        principal.require_seen(request.name)
        with self._accounting.counting_refusals():
            served, signature = self._directory.resolve(request.name, request.version)
        versions = self._directory.versions(request.name)
        yield pb.ModelConfigResponse(config=config_message(served, signature, versions))
