import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerifyModelRequest(_message.Message):
    __slots__ = ("model_name", "model_version", "id", "wait")
    MODEL_NAME_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    ID_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    model_name: str
    model_version: str
    id: str
    wait: _duration_pb2.Duration
    def __init__(self, model_name: _Optional[str] = ..., model_version: _Optional[str] = ..., id: _Optional[str] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Verification(_message.Message):
    __slots__ = ("id", "over", "artifact", "artifacts_done", "artifacts", "certificate", "recorded_as", "record_failure", "error")
    ID_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    ARTIFACT_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_DONE_FIELD_NUMBER: _ClassVar[int]
    ARTIFACTS_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    RECORDED_AS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FAILURE_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    id: str
    over: bool
    artifact: str
    artifacts_done: int
    artifacts: int
    certificate: bytes
    recorded_as: str
    record_failure: str
    error: str
    def __init__(self, id: _Optional[str] = ..., over: _Optional[bool] = ..., artifact: _Optional[str] = ..., artifacts_done: _Optional[int] = ..., artifacts: _Optional[int] = ..., certificate: _Optional[bytes] = ..., recorded_as: _Optional[str] = ..., record_failure: _Optional[str] = ..., error: _Optional[str] = ...) -> None: ...
