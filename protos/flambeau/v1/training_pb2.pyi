import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitTrainingRequest(_message.Message):
    __slots__ = ("recipe", "name", "overrides", "bundle", "idempotency_key")
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    OVERRIDES_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    recipe: str
    name: str
    overrides: _containers.RepeatedScalarFieldContainer[str]
    bundle: bytes
    idempotency_key: str
    def __init__(self, recipe: _Optional[str] = ..., name: _Optional[str] = ..., overrides: _Optional[_Iterable[str]] = ..., bundle: _Optional[bytes] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class GetTrainingRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class CancelTrainingRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ResumeTrainingRequest(_message.Message):
    __slots__ = ("id",)
    ID_FIELD_NUMBER: _ClassVar[int]
    id: str
    def __init__(self, id: _Optional[str] = ...) -> None: ...

class ListTrainingRequest(_message.Message):
    __slots__ = ("state", "limit")
    STATE_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    state: TrainingJob.State
    limit: int
    def __init__(self, state: _Optional[_Union[TrainingJob.State, str]] = ..., limit: _Optional[int] = ...) -> None: ...

class ListTrainingResponse(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[TrainingJob]
    def __init__(self, jobs: _Optional[_Iterable[_Union[TrainingJob, _Mapping]]] = ...) -> None: ...

class WatchTrainingRequest(_message.Message):
    __slots__ = ("id", "after", "follow")
    ID_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    id: str
    after: int
    follow: bool
    def __init__(self, id: _Optional[str] = ..., after: _Optional[int] = ..., follow: _Optional[bool] = ...) -> None: ...

class TrainingJob(_message.Message):
    __slots__ = ("id", "name", "model", "state", "created_at", "started_at", "finished_at", "submitter", "attempts", "epoch", "worker", "run_folder", "version", "error", "cancel_asked", "bundle_sha256", "recipe")
    class State(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        STATE_UNSPECIFIED: _ClassVar[TrainingJob.State]
        STATE_QUEUED: _ClassVar[TrainingJob.State]
        STATE_RUNNING: _ClassVar[TrainingJob.State]
        STATE_SUCCEEDED: _ClassVar[TrainingJob.State]
        STATE_FAILED: _ClassVar[TrainingJob.State]
        STATE_CANCELLED: _ClassVar[TrainingJob.State]
    STATE_UNSPECIFIED: TrainingJob.State
    STATE_QUEUED: TrainingJob.State
    STATE_RUNNING: TrainingJob.State
    STATE_SUCCEEDED: TrainingJob.State
    STATE_FAILED: TrainingJob.State
    STATE_CANCELLED: TrainingJob.State
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CREATED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_AT_FIELD_NUMBER: _ClassVar[int]
    SUBMITTER_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    WORKER_FIELD_NUMBER: _ClassVar[int]
    RUN_FOLDER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CANCEL_ASKED_FIELD_NUMBER: _ClassVar[int]
    BUNDLE_SHA256_FIELD_NUMBER: _ClassVar[int]
    RECIPE_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    model: str
    state: TrainingJob.State
    created_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    finished_at: _timestamp_pb2.Timestamp
    submitter: str
    attempts: int
    epoch: int
    worker: str
    run_folder: str
    version: int
    error: str
    cancel_asked: bool
    bundle_sha256: str
    recipe: str
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., model: _Optional[str] = ..., state: _Optional[_Union[TrainingJob.State, str]] = ..., created_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., finished_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., submitter: _Optional[str] = ..., attempts: _Optional[int] = ..., epoch: _Optional[int] = ..., worker: _Optional[str] = ..., run_folder: _Optional[str] = ..., version: _Optional[int] = ..., error: _Optional[str] = ..., cancel_asked: _Optional[bool] = ..., bundle_sha256: _Optional[str] = ..., recipe: _Optional[str] = ...) -> None: ...

class TrainingEvent(_message.Message):
    __slots__ = ("seq", "time", "attempt", "kind", "text", "state", "epoch", "metrics")
    class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        KIND_UNSPECIFIED: _ClassVar[TrainingEvent.Kind]
        KIND_STATE: _ClassVar[TrainingEvent.Kind]
        KIND_LOG: _ClassVar[TrainingEvent.Kind]
        KIND_METRIC: _ClassVar[TrainingEvent.Kind]
    KIND_UNSPECIFIED: TrainingEvent.Kind
    KIND_STATE: TrainingEvent.Kind
    KIND_LOG: TrainingEvent.Kind
    KIND_METRIC: TrainingEvent.Kind
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    SEQ_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    seq: int
    time: _timestamp_pb2.Timestamp
    attempt: int
    kind: TrainingEvent.Kind
    text: str
    state: TrainingJob.State
    epoch: int
    metrics: _containers.ScalarMap[str, float]
    def __init__(self, seq: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., attempt: _Optional[int] = ..., kind: _Optional[_Union[TrainingEvent.Kind, str]] = ..., text: _Optional[str] = ..., state: _Optional[_Union[TrainingJob.State, str]] = ..., epoch: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ...) -> None: ...
