"""The registry over gRPC: `flambeau.v1.Registry` (protos/flambeau/v1/registry.proto).

In: its messages, on the event loop. Out: serialised responses, one or a stream of them; every
failure is a `ServingError`, with its gRPC code.
"""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.message import Message

from model_store.approvals.asked_move import AskedMove
from protos.flambeau.v1 import registry_pb2 as pb
from services.access.caller import Principal
from services.errors import InvalidRequestError, UnsupportedError
from services.registry import grpc_messages as messages
from services.registry.alias_moves import AliasMoves
from services.registry.call_arguments import NOWHERE, USUAL_PAGE, check_page
from services.registry.grpc_requests import (
    CHUNK_MESSAGE_BYTES,
    DECLARATION_BYTES,
    Chunk,
    check_declaration,
    declaration_in,
    read_chunk,
)
from services.registry.registry import Registry
from services.wire.body import SMALL_BODY_BYTES, Body
from services.wire.http2.grpc_call import parsed

SERVICE = "flambeau.v1.Registry"
ANNOTATION_BYTES = 64 * 1024
"""Limit of a message that annotates."""

Reserve = Callable[[int], object]
Answer = Callable[[Any, Principal, Reserve], Awaitable[list[bytes | memoryview]]]
Stream = Callable[[Any, Principal], AsyncGenerator[bytes, None]]


class RegistryCall(NamedTuple):
    """A call with one response."""

    read: Callable[[Body], Any]
    """Reads the request."""
    answer: Answer
    most_bytes: int = SMALL_BODY_BYTES
    """Limit of the request."""


class GrpcRegistry:
    """Handlers of the calls.

    Args:
        registry: the registry; None refuses every call.
    """

    def __init__(self, registry: Registry | None) -> None:
        self._found = registry

    def calls(self) -> dict[str, RegistryCall]:
        """Returns the calls by name."""
        small: dict[str, tuple[Answer, type[Message]]] = {
            "ListModels": (self._models, pb.ListModelsRequest),
            "GetModel": (self._model, pb.GetModelRequest),
            "GetVersion": (self._version, pb.GetVersionRequest),
            "ListMoves": (self._moves, pb.ListMovesRequest),
            "GetAliases": (self._aliases, pb.GetAliasesRequest),
            "Promote": (self._promote, pb.PromoteRequest),
            "Rollback": (self._rollback, pb.RollbackRequest),
            "RemoveAlias": (self._remove_alias, pb.RemoveAliasRequest),
            "ListMoveRequests": (self._requests, pb.ListMoveRequestsRequest),
            "ApproveMove": (self._approve, pb.ApproveMoveRequest),
            "RefuseMove": (self._refuse, pb.RefuseMoveRequest),
            "DeleteVersion": (self._delete, pb.DeleteVersionRequest),
            "ListUploads": (self._uploads, pb.ListUploadsRequest),
            "GetUpload": (self._upload, pb.GetUploadRequest),
            "FinishUpload": (self._finish, pb.FinishUploadRequest),
            "AbandonUpload": (self._abandon, pb.AbandonUploadRequest),
        }
        return {
            **{
                name: RegistryCall(partial(parsed, kind), answer)
                for name, (answer, kind) in small.items()
            },
            "Annotate": RegistryCall(
                partial(parsed, pb.AnnotateRequest), self._annotate, most_bytes=ANNOTATION_BYTES
            ),
            "BeginUpload": RegistryCall(
                check_declaration, self._begin, most_bytes=DECLARATION_BYTES
            ),
            "AppendChunk": RegistryCall(read_chunk, self._append, most_bytes=CHUNK_MESSAGE_BYTES),
        }

    def streams(self) -> dict[str, tuple[Stream, type[Message]]]:
        """Returns the calls with a stream of responses, and their requests, by name."""
        return {
            "Download": (self._download, pb.DownloadRequest),
            "WatchEvents": (self._events, pb.WatchEventsRequest),
        }

    @property
    def _registry(self) -> Registry:
        if self._found is None:
            raise UnsupportedError(NOWHERE)
        return self._found

    async def _models(
        self, asked: pb.ListModelsRequest, principal: Principal, reserve: Reserve
    ) -> list[bytes | memoryview]:
        encode = messages.models_message
        size = _page_size(asked.limit)
        data = await self._registry.models(principal, asked.after[:128], size, encode)
        return _document(data, reserve)

    async def _model(
        self, asked: pb.GetModelRequest, principal: Principal, reserve: Reserve
    ) -> list[bytes | memoryview]:
        data = await self._registry.model(
            principal,
            asked.model,
            asked.before or None,
            _page_size(asked.limit),
            messages.model_message,
        )
        return _document(data, reserve)

    async def _version(
        self, asked: pb.GetVersionRequest, principal: Principal, reserve: Reserve
    ) -> list[bytes | memoryview]:
        encode = messages.version_message
        return _document(
            await self._registry.version(principal, asked.model, asked.version, encode), reserve
        )

    async def _moves(
        self, asked: pb.ListMovesRequest, principal: Principal, reserve: Reserve
    ) -> list[bytes | memoryview]:
        data = await self._registry.history(
            principal,
            asked.model,
            asked.before or None,
            _page_size(asked.limit),
            messages.history_message,
        )
        return _document(data, reserve)

    async def _aliases(
        self, asked: pb.GetAliasesRequest, principal: Principal, reserve: Reserve
    ) -> list[bytes | memoryview]:
        encode = messages.aliases_message
        return _document(
            await self._registry.aliases_at(principal, asked.model, asked.at, encode), reserve
        )

    async def _promote(
        self, asked: pb.PromoteRequest, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        move = AskedMove(
            act="promote",
            alias=asked.alias,
            version=_version_number(asked.version),
            allow_breaking=asked.allow_breaking,
            first=asked.first,
            why=asked.why,
        )
        found = await AliasMoves(self._registry).move(principal, asked.model, move)
        return [messages.move_message(found).SerializeToString()]

    async def _rollback(
        self, asked: pb.RollbackRequest, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        move = AskedMove(act="rollback", alias=asked.alias, why=asked.why or "rollback")
        found = await AliasMoves(self._registry).move(principal, asked.model, move)
        return [messages.move_message(found).SerializeToString()]

    async def _remove_alias(
        self, asked: pb.RemoveAliasRequest, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        move = AskedMove(act="remove alias", alias=asked.alias, why=asked.why)
        found = await AliasMoves(self._registry).move(principal, asked.model, move)
        return [messages.move_message(found).SerializeToString()]

    async def _requests(
        self, asked: pb.ListMoveRequestsRequest, principal: Principal, reserve: Reserve
    ) -> list[bytes | memoryview]:
        moves, size = AliasMoves(self._registry), _page_size(asked.limit)
        data = await moves.requests(principal, asked.model, size, messages.requests_message)
        return _document(data, reserve)

    async def _approve(
        self, asked: pb.ApproveMoveRequest, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        moves = AliasMoves(self._registry)
        found = await moves.approve(principal, asked.model, asked.number, asked.why)
        return [messages.move_message(found).SerializeToString()]

    async def _refuse(
        self, asked: pb.RefuseMoveRequest, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        moves = AliasMoves(self._registry)
        found = await moves.refuse(principal, asked.model, asked.number, asked.why)
        return [messages.request_message(found["request"]).SerializeToString()]

    async def _annotate(
        self, asked: pb.AnnotateRequest, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        registry = self._registry
        tags: dict[str, str | None] = {**asked.tags, **dict.fromkeys(asked.removed_tags)}
        version = asked.version or None
        description = asked.description if asked.HasField("description") else None
        found = await registry.annotate(principal, asked.model, version, description, tags)
        return [messages.annotations_message(found).SerializeToString()]

    async def _delete(
        self, asked: pb.DeleteVersionRequest, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        registry, version = self._registry, _version_number(asked.version)
        found = await registry.delete(principal, asked.model, version, asked.why)
        return [messages.tombstone_message(found).SerializeToString()]

    async def _begin(
        self, body: Body, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        found = await self._registry.begin(principal, partial(declaration_in, body))
        return [messages.upload_message(found).SerializeToString()]

    async def _uploads(
        self, _: pb.ListUploadsRequest, principal: Principal, reserve: Reserve
    ) -> list[bytes | memoryview]:
        return _document(
            await self._registry.own_uploads(principal, messages.uploads_message), reserve
        )

    async def _upload(
        self, asked: pb.GetUploadRequest, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        found = await self._registry.upload(principal, asked.id)
        return [messages.upload_message(found).SerializeToString()]

    async def _append(
        self, chunk: Chunk, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        found = await self._registry.append(principal, *chunk)
        return [pb.AppendChunkResponse(**found).SerializeToString()]

    async def _finish(
        self, asked: pb.FinishUploadRequest, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        found = await self._registry.finish(principal, asked.id, asked.why)
        return [pb.FinishUploadResponse(**found).SerializeToString()]

    async def _abandon(
        self, asked: pb.AbandonUploadRequest, principal: Principal, _: Reserve
    ) -> list[bytes | memoryview]:
        await self._registry.abandon(principal, asked.id)
        return [b""]

    async def _download(
        self, asked: pb.DownloadRequest, principal: Principal
    ) -> AsyncGenerator[bytes, None]:
        registry = self._registry
        file = await registry.open_file(principal, asked.model, asked.version, asked.file)
        if asked.offset > file.size_bytes:
            raise InvalidRequestError(
                f"'offset' is {asked.offset:,}, and '{asked.file}' has {file.size_bytes:,} bytes; "
                "begin within it"
            )
        facts = pb.DownloadChunk(size_bytes=file.size_bytes, sha256=file.sha256)
        if asked.offset == file.size_bytes:
            yield facts.SerializeToString()
        async for data in registry.read(file, asked.offset, file.size_bytes):
            facts.data = data
            yield facts.SerializeToString()
            facts = pb.DownloadChunk()

    async def _events(
        self, asked: pb.WatchEventsRequest, principal: Principal
    ) -> AsyncGenerator[bytes, None]:
        async with aclosing(self._registry.events(principal, asked.after)) as events:
            async for event in events:
                if event is not None:
                    yield messages.event_message(event.document).SerializeToString()


def _page_size(limit: int) -> int:
    return check_page(limit) if limit else USUAL_PAGE


def _version_number(version: int) -> int:
    if not version:
        raise InvalidRequestError("'version' is 0; give the number of a version")
    return version


def _document(data: bytes, reserve: Reserve) -> list[bytes | memoryview]:
    """Returns a document, which counts against the memory of large responses.

    Raises:
        BufferFullError: there is no room for it.
    """
    reserve(len(data))
    return [data]
