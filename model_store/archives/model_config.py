"""The settings that an archive has for its own model: its YAML file, `configFile`. Pure.

In: text. Out: a record, and the keys that nothing here follows, with the reasons.

Rule: as in TorchServe, a value of a wrong type is left out, not refused; here it is reported, too.
The handler reads the whole document from `context.model_yaml_config`.
Source: TorchServe's documentation of `model-config.yaml`, 0.12.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flambeau.protocol.sequence_spec import MAX_IDLE_S, MAX_OPEN
from model_store.errors import ModelArchiveError
from model_store.yaml_text import YamlError, read_yaml

MAX_CONFIG_BYTES = 2**20
TIMEOUT_S = 120
"""Timeouts of an archive whose file has none: as in TorchServe, not those of the server."""
MAX_IDLE_MS = int(MAX_IDLE_S * 1000)
FOR_HANDLERS = frozenset(("handler", "pt2", "micro_batching", "deepspeed", "pippy"))
"""Keys that handlers read."""
_NOT_SERVED = "continuousBatching"
"""A key whose handlers are called again with the same requests until these have ended."""
_SEQUENCES = "sequenceBatching"
"""A key that says no more than `sequenceMaxIdleMSec` does, unlike in TorchServe's documentation."""
_UNFOLLOWED = {
    "asyncCommunication": "a worker answers one batch after the other",
    "useJobTicket": "requests wait for a worker",
    "maxSequenceJobQueueSize": "up to 64 requests of a sequence wait",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Settings of an archive; None where it has none."""

    min_workers: int | None = None
    max_workers: int | None = None
    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    """Upper limit of the wait for a batch: batches here do not wait."""
    response_timeout_s: int | None = None
    startup_timeout_s: int | None = None
    client_timeout_ms: int | None = None
    job_queue_size: int | None = None
    device_type: str | None = None
    """`cpu` or `gpu`."""
    sequence_idle_ms: int | None = None
    """Time without a request after which a sequence ends; without it, requests are independent."""
    sequence_timeout_ms: int | None = None
    """Time from its first request after which a sequence ends; 0 for no such limit."""
    max_sequences: int | None = None
    """Sequences that may be open at once."""
    sequence_queue_size: int | None = None
    ignored: tuple[str, ...] = ()
    """Keys that are not followed, each with the reason."""


@dataclass(frozen=True, slots=True)
class _Key:
    field: str
    fits: Callable[[Any], bool]
    words: str


def _whole(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and least <= value < 2**31


def _within(most: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and 0 <= value <= most


_KEYS = {
    "minWorkers": _Key("min_workers", _whole(0), "a whole number, 0 or more"),
    "maxWorkers": _Key("max_workers", _whole(0), "a whole number, 0 or more"),
    "batchSize": _Key("batch_size", _whole(1), "a whole number, 1 or more"),
    "maxBatchDelay": _Key("max_batch_delay_ms", _whole(0), "a whole number of milliseconds"),
    "responseTimeout": _Key("response_timeout_s", _whole(1), "a whole number of seconds"),
    "startupTimeout": _Key("startup_timeout_s", _whole(1), "a whole number of seconds"),
    "clientTimeoutInMills": _Key("client_timeout_ms", _whole(0), "a number of milliseconds"),
    "jobQueueSize": _Key("job_queue_size", _whole(1), "a whole number, 1 or more"),
    "sequenceMaxIdleMSec": _Key(
        "sequence_idle_ms", _within(MAX_IDLE_MS), f"a number of milliseconds up to {MAX_IDLE_MS:,}"
    ),
    "sequenceTimeoutMSec": _Key("sequence_timeout_ms", _whole(0), "a number of milliseconds"),
    "maxNumSequence": _Key("max_sequences", _whole(0), "a whole number, 0 or more"),
    "maxSequenceJobQueueSize": _Key("sequence_queue_size", _whole(1), "a whole number, 1 or more"),
    "deviceType": _Key("device_type", lambda value: value in ("cpu", "gpu"), "cpu or gpu"),
}


def parse_model_config(data: bytes, where: str) -> ModelConfig:
    """Reads the YAML file of an archive.

    Args:
        data: the file's bytes.
        where: the archive and the file, for messages.

    Raises:
        ModelArchiveError: it is no YAML, no mapping, exceeds a limit, or asks for what cannot be
            served.
    """
    if len(data) > MAX_CONFIG_BYTES:
        raise ModelArchiveError(
            f"{where} has {len(data):,} bytes, and at most {MAX_CONFIG_BYTES:,} are read; move "
            "data into other files of the archive"
        )
    try:
        document = read_yaml(data)
    except YamlError as error:
        raise ModelArchiveError(f"{where} is no YAML: {error}; correct it") from error
    if document is None:
        return ModelConfig()
    if not isinstance(document, Mapping):
        raise ModelArchiveError(
            f"{where} has a {type(document).__name__}; write a mapping, as in minWorkers: 1"
        )
    if document.get(_NOT_SERVED):
        raise ModelArchiveError(
            f"{where} has '{_NOT_SERVED}', and a handler here answers each batch once; remove the "
            "key and have the handler return whole answers, or send parts of them"
        )
    found = config_of(document)
    return replace(
        found,
        response_timeout_s=found.response_timeout_s or TIMEOUT_S,
        startup_timeout_s=found.startup_timeout_s or TIMEOUT_S,
    )


def config_of(document: Mapping[Any, Any]) -> ModelConfig:
    """Returns the settings of a document that has been read."""
    found: dict[str, Any] = {}
    ignored = []
    for name, value in document.items():
        key = _KEYS.get(name)
        if name in _UNFOLLOWED and value:
            ignored.append(f"'{name}' is not followed: {_UNFOLLOWED[name]}")
        if key is None:
            if name in _UNFOLLOWED or name == _SEQUENCES:
                continue
            if name not in FOR_HANDLERS:
                ignored.append(f"'{str(name)[:100]}' has no meaning here but for handlers")
        elif key.fits(value):
            found[key.field] = value
        else:
            ignored.append(f"'{name}' is {str(value)[:100]!r}, and not {key.words}")
    least, most = found.get("min_workers"), found.get("max_workers")
    if least is not None and most is not None and most < least:
        del found["max_workers"]
        ignored.append(f"'maxWorkers' is {most}, less than minWorkers, which is {least}")
    if (sequences := found.get("max_sequences", 0)) > MAX_OPEN:
        found["max_sequences"] = MAX_OPEN
        ignored.append(f"'maxNumSequence' is {sequences}, and at most {MAX_OPEN} are open")
    return replace(ModelConfig(ignored=tuple(ignored)), **found)
