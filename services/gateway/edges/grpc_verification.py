"""Verifications over gRPC, by protos/flambeau/v1/verification.proto.

In: its messages, on the event loop. Out: its responses; a `ServingError` becomes a gRPC status.
"""

from google.protobuf.message import Message

from protos.flambeau.v1 import verification_pb2 as pb
from services.access.audit import audited, refusals_audited
from services.access.caller import Principal
from services.errors import ServingError
from services.gateway.edges.binary_texts import Reserve
from services.gateway.edges.grpc_large_answer import SlowAnswer
from services.gateway.edges.raw_parts import Part
from services.gateway.jobs.verification_service import Verification, VerificationService
from services.queueing.verification_records import Verified

SERVICE = "flambeau.v1.VerificationService"
ACT = "verify"
"""The act's name in the audit log."""


class GrpcVerification:
    """Handlers of the verification calls."""

    def __init__(self, service: VerificationService) -> None:
        self._service = service

    def calls(self) -> dict[str, tuple[SlowAnswer, type[Message]]]:
        """Returns, by name, the handler of a call on the event loop and its message type."""
        return {"VerifyModel": (self._verify, pb.VerifyModelRequest)}

    def check(self, peer: str, *, is_known: bool) -> None:
        """Refuses callers without permission; called before anything else.

        Raises:
            ForbiddenError: the caller may not ask for verifications.
        """
        with refusals_audited(ACT, "", "", peer):
            self._service.check(peer, is_known=is_known)

    async def _verify(
        self, asked: pb.VerifyModelRequest, principal: Principal, _: Reserve
    ) -> list[Part]:
        service = self._service
        if asked.id:
            found = service.find(asked.id)
            principal.require("manage", found.asked[0])
        else:
            target = f"{asked.model_name} {asked.model_version}".strip()
            with audited(ACT, target, principal.name, principal.peer):
                principal.require("manage", asked.model_name)
                found = service.begin(asked.model_name, asked.model_version)
        await service.wait(found, asked.wait.seconds + asked.wait.nanos / 1e9)
        if isinstance(found.outcome, ServingError) and found.outcome.retryable:
            raise found.outcome  # as a status: the same call may succeed later
        return [verification_message(found).SerializeToString()]


def verification_message(found: Verification) -> pb.Verification:
    """Converts a verification to a message."""
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
