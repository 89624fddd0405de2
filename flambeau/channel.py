"""How the client connects: the six calls of the protocol, limits, and when a call is retried.

Rules kept here:
- only UNAVAILABLE is retried: no server took the request, or the connection broke; inference
  changes nothing, so running it twice does no harm;
- retries happen inside gRPC and inside the deadline of the call;
- every limit is set, none is left to gRPC's defaults.
"""

import json
import math
from collections.abc import Mapping
from typing import Any

from protos import open_inference_pb2 as pb

SERVICE = "inference.GRPCInferenceService"

Messages = Mapping[str, tuple[type[Any], type[Any]]]
"""The methods of a service: what goes in, what comes out."""
MESSAGES: Messages = {
    "ServerLive": (pb.ServerLiveRequest, pb.ServerLiveResponse),
    "ServerReady": (pb.ServerReadyRequest, pb.ServerReadyResponse),
    "ModelReady": (pb.ModelReadyRequest, pb.ModelReadyResponse),
    "ServerMetadata": (pb.ServerMetadataRequest, pb.ServerMetadataResponse),
    "ModelMetadata": (pb.ModelMetadataRequest, pb.ModelMetadataResponse),
    "ModelInfer": (pb.ModelInferRequest, pb.ModelInferResponse),
}

# Waits of about 0.1, 0.3 and 0.9 s, each jittered by gRPC: long enough for a draining server to
# leave the load balancer, short enough for a caller to wait through.
RETRY_POLICY = {
    "maxAttempts": 4,
    "initialBackoff": "0.1s",
    "backoffMultiplier": 3,
    "maxBackoff": "1s",
    "retryableStatusCodes": ["UNAVAILABLE"],
}

MAX_MESSAGE_BYTES = 64 * 1024 * 1024
"""Default limit on one message, in either direction."""

LARGEST_MESSAGE_BYTES = 2**31 - 1
"""Protocol Buffers cannot serialise more."""


def channel_options(max_message_bytes: int, service: str = SERVICE) -> list[tuple[str, int | str]]:
    """The options of a channel.

    Args:
        max_message_bytes: limit on one message, in either direction.
        service: whose calls are retried.

    Raises:
        ValueError: the limit is not positive, or larger than any message can be.
    """
    if not 0 < max_message_bytes <= LARGEST_MESSAGE_BYTES:
        raise ValueError(
            f"max_message_bytes is {max_message_bytes}; give 1 to {LARGEST_MESSAGE_BYTES}"
        )
    service_config = {
        "methodConfig": [{"name": [{"service": service}], "retryPolicy": RETRY_POLICY}]
    }
    return [
        ("grpc.service_config", json.dumps(service_config)),
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
        # gRPC never retries a request larger than this buffer, which is 256 KiB unless set.
        ("grpc.per_rpc_retry_buffer_size", max_message_bytes),
        # A refused connection is tried again after up to 120 s unless set; half a second lies
        # within the retries of one call, so that the first call finds a server that is back.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 500),
    ]


def bind_methods(
    channel: Any, service: str = SERVICE, messages: Messages = MESSAGES
) -> dict[str, Any]:
    """Every method of a service on a channel, of `grpc` or `grpc.aio`, by its name."""
    return {
        method: channel.unary_unary(
            f"/{service}/{method}",
            request_serializer=request.SerializeToString,
            response_deserializer=response.FromString,
        )
        for method, (request, response) in messages.items()
    }


def check_timeout_s(timeout_s: float) -> float:
    """Returns a timeout in seconds that can be a deadline.

    Raises:
        ValueError: it is not positive, or has no end.
    """
    if not 0 < timeout_s < math.inf:
        raise ValueError(f"timeout_s is {timeout_s}; give a positive number of seconds")
    return timeout_s
