import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ListModelsRequest(_message.Message):
    __slots__ = ("after", "limit")
    AFTER_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    after: str
    limit: int
    def __init__(self, after: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListModelsResponse(_message.Message):
    __slots__ = ("models", "next")
    MODELS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    models: _containers.RepeatedCompositeFieldContainer[ModelSummary]
    next: str
    def __init__(self, models: _Optional[_Iterable[_Union[ModelSummary, _Mapping]]] = ..., next: _Optional[str] = ...) -> None: ...

class ModelSummary(_message.Message):
    __slots__ = ("name", "newest", "aliases", "error")
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEWEST_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    newest: int
    aliases: _containers.ScalarMap[str, int]
    error: str
    def __init__(self, name: _Optional[str] = ..., newest: _Optional[int] = ..., aliases: _Optional[_Mapping[str, int]] = ..., error: _Optional[str] = ...) -> None: ...

class GetModelRequest(_message.Message):
    __slots__ = ("model", "before", "limit")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    model: str
    before: int
    limit: int
    def __init__(self, model: _Optional[str] = ..., before: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class RegistryModel(_message.Message):
    __slots__ = ("name", "description", "tags", "aliases", "generation", "versions", "next", "error")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    name: str
    description: str
    tags: _containers.ScalarMap[str, str]
    aliases: _containers.ScalarMap[str, int]
    generation: int
    versions: _containers.RepeatedCompositeFieldContainer[VersionSummary]
    next: int
    error: str
    def __init__(self, name: _Optional[str] = ..., description: _Optional[str] = ..., tags: _Optional[_Mapping[str, str]] = ..., aliases: _Optional[_Mapping[str, int]] = ..., generation: _Optional[int] = ..., versions: _Optional[_Iterable[_Union[VersionSummary, _Mapping]]] = ..., next: _Optional[int] = ..., error: _Optional[str] = ...) -> None: ...

class VersionSummary(_message.Message):
    __slots__ = ("version", "aliases", "semver", "created_at", "size_bytes", "description", "tags", "error")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    SEMVER_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    version: int
    aliases: _containers.RepeatedScalarFieldContainer[str]
    semver: str
    created_at: _timestamp_pb2.Timestamp
    size_bytes: int
    description: str
    tags: _containers.ScalarMap[str, str]
    error: str
    def __init__(self, version: _Optional[int] = ..., aliases: _Optional[_Iterable[str]] = ..., semver: _Optional[str] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., size_bytes: _Optional[int] = ..., description: _Optional[str] = ..., tags: _Optional[_Mapping[str, str]] = ..., error: _Optional[str] = ...) -> None: ...

class GetVersionRequest(_message.Message):
    __slots__ = ("model", "version")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ...) -> None: ...

class RegistryVersion(_message.Message):
    __slots__ = ("model", "version", "description", "tags", "aliases", "is_signed", "manifest_json", "report_json", "error")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    IS_SIGNED_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_JSON_FIELD_NUMBER: _ClassVar[int]
    REPORT_JSON_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    description: str
    tags: _containers.ScalarMap[str, str]
    aliases: _containers.RepeatedScalarFieldContainer[str]
    is_signed: bool
    manifest_json: str
    report_json: str
    error: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., description: _Optional[str] = ..., tags: _Optional[_Mapping[str, str]] = ..., aliases: _Optional[_Iterable[str]] = ..., is_signed: _Optional[bool] = ..., manifest_json: _Optional[str] = ..., report_json: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...

class ListMovesRequest(_message.Message):
    __slots__ = ("model", "before", "limit")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    model: str
    before: int
    limit: int
    def __init__(self, model: _Optional[str] = ..., before: _Optional[int] = ..., limit: _Optional[int] = ...) -> None: ...

class ListMovesResponse(_message.Message):
    __slots__ = ("name", "moves", "next")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MOVES_FIELD_NUMBER: _ClassVar[int]
    NEXT_FIELD_NUMBER: _ClassVar[int]
    name: str
    moves: _containers.RepeatedCompositeFieldContainer[AliasMove]
    next: int
    def __init__(self, name: _Optional[str] = ..., moves: _Optional[_Iterable[_Union[AliasMove, _Mapping]]] = ..., next: _Optional[int] = ...) -> None: ...

class AliasChange(_message.Message):
    __slots__ = ("alias", "before", "after")
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    alias: str
    before: int
    after: int
    def __init__(self, alias: _Optional[str] = ..., before: _Optional[int] = ..., after: _Optional[int] = ...) -> None: ...

class AliasMove(_message.Message):
    __slots__ = ("generation", "aliases", "who", "when", "why", "changes", "traffic_json", "evidence_json", "approval", "request", "ended")
    class AliasesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ALIASES_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    TRAFFIC_JSON_FIELD_NUMBER: _ClassVar[int]
    EVIDENCE_JSON_FIELD_NUMBER: _ClassVar[int]
    APPROVAL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    generation: int
    aliases: _containers.ScalarMap[str, int]
    who: str
    when: _timestamp_pb2.Timestamp
    why: str
    changes: _containers.RepeatedCompositeFieldContainer[AliasChange]
    traffic_json: str
    evidence_json: str
    approval: MoveApproval
    request: MoveRequest
    ended: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, generation: _Optional[int] = ..., aliases: _Optional[_Mapping[str, int]] = ..., who: _Optional[str] = ..., when: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., why: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[AliasChange, _Mapping]]] = ..., traffic_json: _Optional[str] = ..., evidence_json: _Optional[str] = ..., approval: _Optional[_Union[MoveApproval, _Mapping]] = ..., request: _Optional[_Union[MoveRequest, _Mapping]] = ..., ended: _Optional[_Iterable[str]] = ...) -> None: ...

class MoveApproval(_message.Message):
    __slots__ = ("request", "by", "why")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    BY_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    request: int
    by: str
    why: str
    def __init__(self, request: _Optional[int] = ..., by: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class MoveRequest(_message.Message):
    __slots__ = ("number", "model", "act", "alias", "version", "move_json", "who", "when", "why", "until", "generation", "state", "decided_by", "decided_when", "decided_why", "error", "ends")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[MoveRequest.State]
        STATE_OPEN: _ClassVar[MoveRequest.State]
        STATE_EXECUTED: _ClassVar[MoveRequest.State]
        STATE_APPROVED: _ClassVar[MoveRequest.State]
        STATE_REFUSED: _ClassVar[MoveRequest.State]
        STATE_WITHDRAWN: _ClassVar[MoveRequest.State]
        STATE_EXPIRED: _ClassVar[MoveRequest.State]
        STATE_OUTDATED: _ClassVar[MoveRequest.State]
    STATE_UNSPECIFIED: MoveRequest.State
    STATE_OPEN: MoveRequest.State
    STATE_EXECUTED: MoveRequest.State
    STATE_APPROVED: MoveRequest.State
    STATE_REFUSED: MoveRequest.State
    STATE_WITHDRAWN: MoveRequest.State
    STATE_EXPIRED: MoveRequest.State
    STATE_OUTDATED: MoveRequest.State
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    MOVE_JSON_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DECIDED_BY_FIELD_NUMBER: _ClassVar[int]
    DECIDED_WHEN_FIELD_NUMBER: _ClassVar[int]
    DECIDED_WHY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    ENDS_FIELD_NUMBER: _ClassVar[int]
    number: int
    model: str
    act: str
    alias: str
    version: int
    move_json: str
    who: str
    when: _timestamp_pb2.Timestamp
    why: str
    until: _timestamp_pb2.Timestamp
    generation: int
    state: MoveRequest.State
    decided_by: str
    decided_when: _timestamp_pb2.Timestamp
    decided_why: str
    error: str
    ends: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, number: _Optional[int] = ..., model: _Optional[str] = ..., act: _Optional[str] = ..., alias: _Optional[str] = ..., version: _Optional[int] = ..., move_json: _Optional[str] = ..., who: _Optional[str] = ..., when: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., why: _Optional[str] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., generation: _Optional[int] = ..., state: _Optional[_Union[MoveRequest.State, str]] = ..., decided_by: _Optional[str] = ..., decided_when: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., decided_why: _Optional[str] = ..., error: _Optional[str] = ..., ends: _Optional[_Iterable[str]] = ...) -> None: ...

class ListMoveRequestsRequest(_message.Message):
    __slots__ = ("model", "limit")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    model: str
    limit: int
    def __init__(self, model: _Optional[str] = ..., limit: _Optional[int] = ...) -> None: ...

class ListMoveRequestsResponse(_message.Message):
    __slots__ = ("requests",)
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    requests: _containers.RepeatedCompositeFieldContainer[MoveRequest]
    def __init__(self, requests: _Optional[_Iterable[_Union[MoveRequest, _Mapping]]] = ...) -> None: ...

class ApproveMoveRequest(_message.Message):
    __slots__ = ("model", "number", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    number: int
    why: str
    def __init__(self, model: _Optional[str] = ..., number: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class RefuseMoveRequest(_message.Message):
    __slots__ = ("model", "number", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    number: int
    why: str
    def __init__(self, model: _Optional[str] = ..., number: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class GetAliasesRequest(_message.Message):
    __slots__ = ("model", "at")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    model: str
    at: str
    def __init__(self, model: _Optional[str] = ..., at: _Optional[str] = ...) -> None: ...

class PromoteRequest(_message.Message):
    __slots__ = ("model", "alias", "version", "why", "allow_breaking", "first")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    ALLOW_BREAKING_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    model: str
    alias: str
    version: int
    why: str
    allow_breaking: bool
    first: bool
    def __init__(self, model: _Optional[str] = ..., alias: _Optional[str] = ..., version: _Optional[int] = ..., why: _Optional[str] = ..., allow_breaking: _Optional[bool] = ..., first: _Optional[bool] = ...) -> None: ...

class RollbackRequest(_message.Message):
    __slots__ = ("model", "alias", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    alias: str
    why: str
    def __init__(self, model: _Optional[str] = ..., alias: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class RemoveAliasRequest(_message.Message):
    __slots__ = ("model", "alias", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    alias: str
    why: str
    def __init__(self, model: _Optional[str] = ..., alias: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class AnnotateRequest(_message.Message):
    __slots__ = ("model", "version", "description", "tags", "removed_tags")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_TAGS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    description: str
    tags: _containers.ScalarMap[str, str]
    removed_tags: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., description: _Optional[str] = ..., tags: _Optional[_Mapping[str, str]] = ..., removed_tags: _Optional[_Iterable[str]] = ...) -> None: ...

class Annotations(_message.Message):
    __slots__ = ("description", "tags", "who", "when")
    class TagsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    description: str
    tags: _containers.ScalarMap[str, str]
    who: str
    when: _timestamp_pb2.Timestamp
    def __init__(self, description: _Optional[str] = ..., tags: _Optional[_Mapping[str, str]] = ..., who: _Optional[str] = ..., when: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class DeleteVersionRequest(_message.Message):
    __slots__ = ("model", "version", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    why: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., why: _Optional[str] = ...) -> None: ...

class Tombstone(_message.Message):
    __slots__ = ("model", "version", "semver", "manifest_sha256", "who", "when", "why")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEMVER_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_SHA256_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    semver: str
    manifest_sha256: str
    who: str
    when: _timestamp_pb2.Timestamp
    why: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., semver: _Optional[str] = ..., manifest_sha256: _Optional[str] = ..., who: _Optional[str] = ..., when: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., why: _Optional[str] = ...) -> None: ...

class DeclaredFile(_message.Message):
    __slots__ = ("file", "size_bytes", "sha256")
    FILE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    file: str
    size_bytes: int
    sha256: str
    def __init__(self, file: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class BeginUploadRequest(_message.Message):
    __slots__ = ("model", "version", "files")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    files: _containers.RepeatedCompositeFieldContainer[DeclaredFile]
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., files: _Optional[_Iterable[_Union[DeclaredFile, _Mapping]]] = ...) -> None: ...

class UploadedFile(_message.Message):
    __slots__ = ("file", "size_bytes", "received", "is_linked")
    FILE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    IS_LINKED_FIELD_NUMBER: _ClassVar[int]
    file: str
    size_bytes: int
    received: int
    is_linked: bool
    def __init__(self, file: _Optional[str] = ..., size_bytes: _Optional[int] = ..., received: _Optional[int] = ..., is_linked: _Optional[bool] = ...) -> None: ...

class Upload(_message.Message):
    __slots__ = ("id", "model", "version", "is_published", "files", "taken_semvers")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    TAKEN_SEMVERS_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    version: int
    is_published: bool
    files: _containers.RepeatedCompositeFieldContainer[UploadedFile]
    taken_semvers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., is_published: _Optional[bool] = ..., files: _Optional[_Iterable[_Union[UploadedFile, _Mapping]]] = ..., taken_semvers: _Optional[_Iterable[str]] = ...) -> None: ...

class ListUploadsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListUploadsResponse(_message.Message):
    __slots__ = ("uploads",)
    UPLOADS_FIELD_NUMBER: _ClassVar[int]
    uploads: _containers.RepeatedCompositeFieldContainer[OpenUpload]
    def __init__(self, uploads: _Optional[_Iterable[_Union[OpenUpload, _Mapping]]] = ...) -> None: ...

class OpenUpload(_message.Message):
    __slots__ = ("id", "model", "version", "size_bytes", "received", "begun_at")
    ID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_AT_FIELD_NUMBER: _ClassVar[int]
    id: str
    model: str
    version: int
    size_bytes: int
    received: int
    begun_at: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., size_bytes: _Optional[int] = ..., received: _Optional[int] = ..., begun_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class GetUploadRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class AppendChunkRequest(_message.Message):
    __slots__ = ("id", "file", "offset", "data")
    ID_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    id: str
    file: str
    offset: int
    data: bytes
    def __init__(self, id: _Optional[str] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class AppendChunkResponse(_message.Message):
    __slots__ = ("file", "received")
    FILE_FIELD_NUMBER: _ClassVar[int]
    RECEIVED_FIELD_NUMBER: _ClassVar[int]
    file: str
    received: int
    def __init__(self, file: _Optional[str] = ..., received: _Optional[int] = ...) -> None: ...

class FinishUploadRequest(_message.Message):
    __slots__ = ("id", "why")
    ID_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    id: str
    why: str
    def __init__(self, id: _Optional[str] = ..., why: _Optional[str] = ...) -> None: ...

class FinishUploadResponse(_message.Message):
    __slots__ = ("model", "version", "is_published", "files", "breaks")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_PUBLISHED_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    BREAKS_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: int
    is_published: bool
    files: int
    breaks: str
    def __init__(self, model: _Optional[str] = ..., version: _Optional[int] = ..., is_published: _Optional[bool] = ..., files: _Optional[int] = ..., breaks: _Optional[str] = ...) -> None: ...

class AbandonUploadRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class AbandonUploadResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DownloadRequest(_message.Message):
    __slots__ = ("model", "version", "file", "offset")
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    model: str
    version: str
    file: str
    offset: int
    def __init__(self, model: _Optional[str] = ..., version: _Optional[str] = ..., file: _Optional[str] = ..., offset: _Optional[int] = ...) -> None: ...

class DownloadChunk(_message.Message):
    __slots__ = ("data", "size_bytes", "sha256")
    DATA_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    size_bytes: int
    sha256: str
    def __init__(self, data: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: str
    def __init__(self, after: _Optional[str] = ...) -> None: ...

class RegistryEvent(_message.Message):
    __slots__ = ("id", "kind", "model", "version", "at", "who", "why", "semver", "generation", "changes", "approved_by", "request", "act", "alias", "until")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[RegistryEvent.Kind]
        KIND_PUSHED: _ClassVar[RegistryEvent.Kind]
        KIND_PROMOTED: _ClassVar[RegistryEvent.Kind]
        KIND_ROLLED_BACK: _ClassVar[RegistryEvent.Kind]
        KIND_DELETED: _ClassVar[RegistryEvent.Kind]
        KIND_ANNOTATED: _ClassVar[RegistryEvent.Kind]
        KIND_TRAFFIC: _ClassVar[RegistryEvent.Kind]
        KIND_ASKED: _ClassVar[RegistryEvent.Kind]
        KIND_ALIAS_REMOVED: _ClassVar[RegistryEvent.Kind]
    KIND_UNSPECIFIED: RegistryEvent.Kind
    KIND_PUSHED: RegistryEvent.Kind
    KIND_PROMOTED: RegistryEvent.Kind
    KIND_ROLLED_BACK: RegistryEvent.Kind
    KIND_DELETED: RegistryEvent.Kind
    KIND_ANNOTATED: RegistryEvent.Kind
    KIND_TRAFFIC: RegistryEvent.Kind
    KIND_ASKED: RegistryEvent.Kind
    KIND_ALIAS_REMOVED: RegistryEvent.Kind
    ID_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WHO_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    SEMVER_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    APPROVED_BY_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ACT_FIELD_NUMBER: _ClassVar[int]
    ALIAS_FIELD_NUMBER: _ClassVar[int]
    UNTIL_FIELD_NUMBER: _ClassVar[int]
    id: str
    kind: RegistryEvent.Kind
    model: str
    version: int
    at: _timestamp_pb2.Timestamp
    who: str
    why: str
    semver: str
    generation: int
    changes: _containers.RepeatedCompositeFieldContainer[AliasChange]
    approved_by: str
    request: int
    act: str
    alias: str
    until: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., kind: _Optional[_Union[RegistryEvent.Kind, str]] = ..., model: _Optional[str] = ..., version: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., who: _Optional[str] = ..., why: _Optional[str] = ..., semver: _Optional[str] = ..., generation: _Optional[int] = ..., changes: _Optional[_Iterable[_Union[AliasChange, _Mapping]]] = ..., approved_by: _Optional[str] = ..., request: _Optional[int] = ..., act: _Optional[str] = ..., alias: _Optional[str] = ..., until: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
