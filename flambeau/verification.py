"""Client of the verification service: verifies a version on the server's machine.

    with VerificationClient("models.internal:8001") as client:
        found = client.verify("digits", 3)
        print(found.certificate.holds)

Rule: a repeated call joins the verification that the first one started.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Self

from google.protobuf.duration_pb2 import Duration

from flambeau.channel import (
    MAX_MESSAGE_BYTES,
    Messages,
    Tls,
    bind_methods,
    channel_options,
    failing,
    open_channel,
)
from flambeau.errors import ServerError
from model_store.certificates.certificate import Certificate, parse_certificate
from protos.flambeau.v1 import verification_pb2 as pb

SERVICE = "flambeau.v1.VerificationService"
WAIT_S = 10
"""Longest time in seconds that the server holds a call before it reports progress."""
CALL_TIMEOUT_S = 30.0
ASK_AGAIN_S = 0.2
_MESSAGES: Messages = {"VerifyModel": (pb.VerifyModelRequest, pb.Verification)}

Progress = Callable[[str, int, int], None]
"""Callback with the name of a started artifact, the number done, and the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundCertificate:
    """The server's certificate of a version."""

    certificate: Certificate
    recorded_as: str
    """Path of the certificate in the server's store; empty if it could not be written."""
    record_failure: str
    """Reason of the failure to write it."""


class VerificationClient:
    """A connection to a server.

    Args:
        target: `host:port` of its gRPC.
        tls: TLS settings; None for plain text.
        token: token of a caller with the scope `manage`; empty if none is needed.
    """

    def __init__(self, target: str, *, tls: Tls | None = None, token: str = "") -> None:
        options = channel_options(MAX_MESSAGE_BYTES, SERVICE)
        self._channel = open_channel(target, options, tls)
        self._methods = bind_methods(self._channel, SERVICE, _MESSAGES, token)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._channel.close()

    def verify(
        self, model: str, version: int | None = None, progress: Progress | None = None
    ) -> FoundCertificate:
        """Requests the verification of a version, and waits for the result.

        Args:
            model: name of the model in the server's store.
            version: version number; None for the one in production, otherwise the newest.
            progress: callback for each started artifact.

        Raises:
            ClientError: the server refuses or fails; `ServerError` if the version is broken.
            CertificateError: the server is newer than this client.
        """
        asked = pb.VerifyModelRequest(
            model_name=model,
            model_version="" if version is None else str(version),
            wait=Duration(seconds=WAIT_S),
        )
        told = ""
        while True:
            asked_at = time.monotonic()
            found = self._call(asked)
            if progress and found.artifact and found.artifact != told and not found.over:
                progress(found.artifact, found.artifacts_done, found.artifacts)
                told = found.artifact
            if found.over:
                break
            asked.id = found.id
            if found.artifact == told:  # a server with too many waiters responds at once
                time.sleep(max(asked_at + ASK_AGAIN_S - time.monotonic(), 0))
        if found.error:
            raise ServerError(found.error)
        return FoundCertificate(
            certificate=parse_certificate(found.certificate, "the server's certificate"),
            recorded_as=found.recorded_as,
            record_failure=found.record_failure,
        )

    def _call(self, asked: pb.VerifyModelRequest) -> Any:
        with failing(CALL_TIMEOUT_S):
            return self._methods["VerifyModel"](asked, timeout=CALL_TIMEOUT_S)
