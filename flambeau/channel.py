"""Channels of the client: TLS or plain text, the methods of the protocol, limits and retries.

A call that fails raises an error of `flambeau.errors`.

Rules:
- gRPC retries UNAVAILABLE, within the deadline of the call: no server accepted the request, or the
  connection broke; inference changes no state, so running it twice is safe;
- refusals of an overloaded server are retried by the clients (`connection.py`);
- every limit is set explicitly, none is left to gRPC's defaults.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

from flambeau.calling.attempts import check_retries
from flambeau.errors import GRPC_ADDRESS, AddressError, from_status
from flambeau.protocol.messages import inference as pb

if TYPE_CHECKING:
    from google.protobuf.timestamp_pb2 import Timestamp

SERVICE = "inference.GRPCInferenceService"

Messages = Mapping[str, tuple[type[Any], type[Any]]]
"""Request and response types of a service's methods."""
MESSAGES: Messages = {
    "ServerLive": (pb.ServerLiveRequest, pb.ServerLiveResponse),
    "ServerReady": (pb.ServerReadyRequest, pb.ServerReadyResponse),
    "ModelReady": (pb.ModelReadyRequest, pb.ModelReadyResponse),
    "ServerMetadata": (pb.ServerMetadataRequest, pb.ServerMetadataResponse),
    "ModelMetadata": (pb.ModelMetadataRequest, pb.ModelMetadataResponse),
    "ModelInfer": (pb.ModelInferRequest, pb.ModelInferResponse),
    "ModelStreamInfer": (pb.ModelInferRequest, pb.ModelStreamInferResponse),
}
STREAMS = frozenset(("ModelStreamInfer",))
"""Methods of many messages both ways."""

# Backoff of about 0.1, 0.3 and 0.9 s, each jittered by gRPC: long enough for a draining server to
# leave the load balancer, short enough for a caller to wait.
RETRY_POLICY = {
    "initialBackoff": "0.1s",
    "backoffMultiplier": 3,
    "maxBackoff": "1s",
    "retryableStatusCodes": ["UNAVAILABLE"],
}

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Default limit of one message, in either direction."""

LARGEST_MESSAGE_BYTES = 2**31 - 1
"""Largest message that Protocol Buffers can serialise."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """TLS settings: trusted authorities, and the client's own certificate. The files are PEM."""

    ca_file: str | Path | None = None
    """Certificate authorities of the server; None for gRPC's list of public ones."""
    certificate_file: str | Path | None = None
    """The client's certificate, if the server requires one (mutual TLS)."""
    key_file: str | Path | None = None
    """Its private key, without a passphrase."""

    def credentials(self) -> grpc.ChannelCredentials:
        """Reads the files, and returns the credentials of a channel.

        Raises:
            ValueError: only one of certificate and key is given.
            OSError: a file cannot be read.
        """
        if (self.certificate_file is None) != (self.key_file is None):
            given = self.certificate_file or self.key_file
            raise ValueError(
                f"'{given}' is given alone; give both a certificate_file and a key_file"
            )
        ca, key, certificate = (
            None if file is None else Path(file).read_bytes()
            for file in (self.ca_file, self.key_file, self.certificate_file)
        )
        return grpc.ssl_channel_credentials(ca, key, certificate)


URL = re.compile(r"(https?|grpcs?|tcp)://", re.IGNORECASE)
NAMED_BY_SCHEME = re.compile(r"(dns|unix|unix-abstract|ipv4|ipv6|vsock|xds):", re.IGNORECASE)
"""Schemes with name resolution of gRPC's own."""
WITH_PORT = re.compile(r".+:\d{1,5}", re.DOTALL)

Options = Sequence[tuple[str, int | str]]


def open_channel(target: str, options: Options, tls: Tls | None) -> grpc.Channel:
    """Opens a channel, with TLS if given.

    Raises:
        ValueError, OSError: as `Tls.credentials`.
        AddressError: the target is a URL, or has no port.
    """
    _check_target(target)
    if tls is None:
        return grpc.insecure_channel(target, options=options)
    return grpc.secure_channel(target, tls.credentials(), options=options)


def open_async_channel(target: str, options: Options, tls: Tls | None) -> grpc.aio.Channel:
    """Opens an asyncio channel, with TLS if given.

    Raises:
        ValueError, OSError: as `Tls.credentials`.
        AddressError: the target is a URL, or has no port.
    """
    _check_target(target)
    if tls is None:
        return grpc.aio.insecure_channel(target, options=options)
    return grpc.aio.secure_channel(target, tls.credentials(), options=options)


def _check_target(target: str) -> None:
    if not isinstance(target, str) or not target.isprintable():
        raise AddressError(f"the address is {target!r}; {GRPC_ADDRESS}")
    if URL.match(target):
        raise AddressError(f"the address '{target}' is a URL; {GRPC_ADDRESS}")
    if not NAMED_BY_SCHEME.match(target) and not WITH_PORT.fullmatch(target):
        raise AddressError(f"the address '{target}' has no port; {GRPC_ADDRESS}")


def channel_options(
    max_message_bytes: int, service: str, retries: int
) -> list[tuple[str, int | str]]:
    """Returns the options of a channel.

    Args:
        max_message_bytes: limit of one message, in either direction.
        service: service whose calls are retried.
        retries: most retries of a call; gRPC makes 4 at most.

    Raises:
        ValueError: the limit is not positive, or exceeds the largest possible message; the number
            of retries is invalid.
    """
    is_whole = isinstance(max_message_bytes, int)
    if not is_whole or not 0 < max_message_bytes <= LARGEST_MESSAGE_BYTES:
        raise ValueError(
            f"max_message_bytes is {max_message_bytes!r}; give 1 to {LARGEST_MESSAGE_BYTES}"
        )
    policy = {**RETRY_POLICY, "maxAttempts": check_retries(retries) + 1}
    service_config = {"methodConfig": [{"name": [{"service": service}], "retryPolicy": policy}]}
    return [
        # A policy of one attempt is invalid.
        ("grpc.service_config", json.dumps(service_config if retries else {})),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        # gRPC does not retry requests larger than this buffer, which defaults to 256 KiB.
        ("grpc.per_rpc_retry_buffer_size", max_message_bytes),
        # By default a refused connection is retried after up to 120 s; half a second fits into the
        # retries of one call, so that the first call reaches a restarted server.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
    ]


def bind_methods(channel: Any, service: str, messages: Messages, token: str) -> dict[str, Any]:
    """Binds every method of a service to a channel, of `grpc` or `grpc.aio`, by its name.

    Args:
        channel: synchronous or asyncio channel.
        service: service of the methods.
        messages: request and response types.
        token: bearer token of every call; empty for none.
    """
    methods = {
        method: (channel.stream_stream if method in STREAMS else channel.unary_unary)(
            f"/{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        for method, (request, response) in messages.items()
    }
    if not token:
        return methods
    return {name: partial(call, metadata=bearer(token)) for name, call in methods.items()}


def bearer(token: str) -> tuple[tuple[str, str], ...]:
    """Returns the metadata of an API key or a token (RFC 6750); empty for an empty one.

    Raises:
        ValueError: the token has characters that a header cannot contain.
    """
    if not isinstance(token, str):
        raise ValueError(f"the token is a {type(token).__name__}; give text")
    if token and not (token.isascii() and token.isprintable() and " " not in token):
        raise ValueError("the token has blanks or characters that no header can carry")
    return (("authorization", f"Bearer {token}"),) if token else ()


@contextmanager
def failing(timeout_s: float) -> Iterator[None]:
    """Converts gRPC errors of the calls in its block to errors of `flambeau.errors`.

    Args:
        timeout_s: timeout of the call in seconds, for the message.

    Raises:
        ClientError: the call failed.
    """
    try:
        yield
    except grpc.RpcError as error:
        code, details = error.code().name, error.details() or ""
        raise from_status(code, details, timeout_s, _retry_after_s(error)) from error


def _retry_after_s(error: Any) -> float | None:
    """Returns the delay in seconds that the server sent, in gRPC's form (proposal A6) or HTTP's."""
    trailers = {key: str(value) for key, value in error.trailing_metadata() or ()}
    pushback_ms = trailers.get("grpc-retry-pushback-ms")
    if pushback_ms is not None:
        return int(pushback_ms) / 1000 if pushback_ms.isdecimal() else None
    after_s = trailers.get("retry-after", "")
    return int(after_s) if after_s.isdecimal() else None


def moment(stamp: "Timestamp") -> datetime:
    """Converts a timestamp message to a UTC time."""
    return stamp.ToDatetime(UTC)
