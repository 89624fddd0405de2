"""Verifications over gRPC, by protos/flambeau/v1/verification.proto.

In: its messages, on the event loop. Out: its answers; a `ServingError` becomes a gRPC status.
"""

from collections.abc import Awaitable, Callable
from typing import Any

from google.protobuf.message import Message

from protos.flambeau.v1 import verification_pb2 as pb
from services.errors import ServingError, UnsupportedError
from services.gateway.verification_desk import Verification, VerificationDesk, Verified

SERVICE = "flambeau.v1.VerificationService"


class GrpcVerification:
    """The calls; without a desk they say where to verify instead."""

    def __init__(self, desk: VerificationDesk | None) -> None:
        self._desk = desk

    def calls(self) -> dict[str, tuple[Callable[[Any], Awaitable[Message]], type[Message]]]:
        """By name: what answers a call, on the event loop, and what it is asked with."""
        return {"VerifyModel": (self._verify, pb.VerifyModelRequest)}

    def check(self, peer: str) -> None:
        """Refuses who may not ask; gRPC's threads call this before anything else.

        Raises:
            UnsupportedError: this process runs no models.
            ForbiddenError: the caller is a stranger.
        """
        self._open_desk.check(peer)

    @property
    def _open_desk(self) -> VerificationDesk:
        if self._desk is None:
            raise UnsupportedError(
                "this server is a gateway and runs no models, so there is nothing of its machine "
                "to verify: run flambeau verify MODEL VERSION --store URL on a worker's machine"
            )
        return self._desk

    async def _verify(self, asked: pb.VerifyModelRequest) -> Message:
        desk = self._open_desk
        if asked.id:
            found = desk.find(asked.id)
        else:
            found = desk.begin(asked.model_name, asked.model_version)
        await desk.wait(found, asked.wait.seconds + asked.wait.nanos / 1e9)
        return verification_message(found)


def verification_message(found: Verification) -> pb.Verification:
    """A verification as a message."""
    message = pb.Verification(
        id=found.id,
        over=found.outcome is not None,
        artifact=found.artifact,
        artifacts_done=found.done,
        artifacts=found.total,
    )
    if isinstance(found.outcome, ServingError):
        message.error = str(found.outcome)
    elif isinstance(found.outcome, Verified):
        message.certificate = found.outcome.certificate
        message.recorded_as = found.outcome.recorded_as
        message.record_failure = found.outcome.record_failure
    return message
