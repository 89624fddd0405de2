"""Decodes and encodes REST bodies in one go, whatever their size."""

from flambeau.protocol.signature import Signature
from services.gateway.edges import rest_codec
from services.gateway.edges.binary_texts import Buffer
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.gateway.edges.rest_codec import RestBody
from services.gateway.sliced_work import at_once
from services.queueing.records import InferReply


def decode(body: Buffer, header_length: str | None, signature: Signature | None) -> RestRequest:
    """Runs `rest_codec.decode` to its end."""
    found = rest_codec.decode(body, header_length, signature)
    return found if isinstance(found, RestRequest) else at_once(found)


def encode(reply: InferReply, request: RestRequest) -> RestBody:
    """Runs `rest_codec.encode` to its end."""
    found = rest_codec.encode(reply, request)
    return found if isinstance(found, RestBody) else at_once(found)
