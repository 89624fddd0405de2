"""What both kinds of gRPC call need to read a request and to refuse it.

In: a request's bytes, or an error of ours. Out: a message, or a gRPC status with the error's text.
"""

from collections.abc import Callable
from typing import NoReturn

import grpc
from google.protobuf.message import DecodeError, Message

from services.access.credential import secret_of
from services.errors import InvalidRequestError, ServingError
from services.gateway.refusals import retry_after_s

Metadata = tuple[tuple[str, str], ...]


def retry_hint(after_s: int) -> Metadata:
    """When to try again.

    The first is for readers, the second for gRPC's own retries: a client whose retry policy names
    the status waits this long (gRPC proposal A6, server pushback); to others it means nothing.
    """
    return ("retry-after", str(after_s)), ("grpc-retry-pushback-ms", str(after_s * 1000))


def refuse(
    context: grpc.ServicerContext, error: ServingError, *metadata: tuple[str, str]
) -> NoReturn:
    """Ends a call with an error's status and message.

    Args:
        context: of the call.
        error: why; one that a retry may cure adds a hint when to.
        metadata: more to send behind the status.

    Raises:
        Exception: always; grpcio takes it for the end of the call.
    """
    if error.retryable:
        metadata += retry_hint(retry_after_s(error))
    context.set_trailing_metadata(metadata)
    context.abort(grpc.StatusCode[error.grpc_code], str(error))


def failure(error: Exception) -> ServingError:
    """What a caller is told of an error that is our own fault; the log has the rest."""
    return ServingError(f"the server failed on this request ({type(error).__name__}); see its log")


def refuse_gone(context: grpc.ServicerContext) -> NoReturn:
    """Ends a call whose caller is no longer there to read it."""
    context.abort(grpc.StatusCode.CANCELLED, "the caller cancelled the call")


def parser(message: type[Message]) -> Callable[[bytes], Message | InvalidRequestError]:
    """Parses requests; bytes that are not this message, such as text not in UTF-8, give the error.

    grpcio would answer INTERNAL to a parser that raises or gives None, as if the fault were ours.
    """

    def parse(data: bytes) -> Message | InvalidRequestError:
        try:
            return message.FromString(data)
        except DecodeError:
            return InvalidRequestError(
                "the request is not a valid message of this call: broken, or text not in UTF-8"
            )

    return parse


def secret_in(context: grpc.ServicerContext) -> str:
    """The credential in a call's metadata; empty if there is none that can be read."""
    found = {"authorization": "", "x-api-key": ""}
    for name, value in context.invocation_metadata():
        if name in found:
            found[name] = found[name] or str(value)
    return secret_of(found["authorization"], found["x-api-key"])
