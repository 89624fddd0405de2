"""What a caller asks for when an archive is registered, and what follows from it. Pure.

In: the request, the archive's own settings, those of the server. Out: the version to register.
Source: TorchServe 0.12: settings of a snapshot go before those of the archive, these before those
of the server's file for the model, and these before those of the request.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flambeau.protocol.sequence_spec import MAX_OPEN
from model_store.archives.archive_settings import MAX_BATCH_SIZE, MAX_WORKERS, RunSettings
from model_store.archives.model_archive import ModelArchive
from model_store.archives.model_config import ModelConfig
from model_store.archives.model_metrics import ModelMetric
from model_store.archives.registrations import RegisteredVersion
from model_store.archives.server_properties import ServerProperties
from services.errors import InvalidRequestError

BATCH_SIZE, BATCH_DELAY_MS = 1, 100
"""TorchServe's defaults."""
DAY_S, LARGE = 86_400, 2**31


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterRequest:
    """The registration that a caller asks for; None where the archive or the server decides."""

    archive: Path
    """The archive: a file or a folder of this machine that the caller may name."""
    url: str
    """The text by which the caller named it."""
    model_name: str | None = None
    handler: str | None = None
    batch_size: int | None = None
    max_batch_delay_ms: int | None = None
    initial_workers: int | None = None
    response_timeout_s: int | None = None
    startup_timeout_s: int | None = None
    config: ModelConfig | None = None
    """Settings of a snapshot, which go before those of the archive."""
    at_start: bool = False


@dataclass(frozen=True, slots=True)
class Registered:
    """A version that was registered."""

    name: str
    version: str
    workers: int
    ignored: tuple[str, ...]
    """What the archive asks for and is not followed."""


def version_of(
    archive: ModelArchive, name: str, request: RegisterRequest, properties: ServerProperties
) -> RegisteredVersion:
    """Returns the version to register; it has no number yet.

    Raises:
        InvalidRequestError: a number is out of range.
    """
    own = archive.config
    of_server = properties.models.get(name, {}).get(archive.manifest.model.version)

    def chosen(field: str, asked: int | None, default: int, least: int, most: int) -> int:
        settings = (request.config, own, of_server)
        values = (getattr(one, field) for one in settings if one is not None)
        found: Any = next((one for one in (*values, asked) if one is not None), default)
        return _within(field, int(found), least, most)

    start_s = properties.default_startup_timeout
    answer_s = properties.default_response_timeout
    workers = properties.default_workers_per_model
    workers = chosen("min_workers", request.initial_workers, workers, 0, MAX_WORKERS)
    most = chosen("max_workers", None, workers, 0, LARGE)
    batch = chosen("batch_size", request.batch_size, BATCH_SIZE, 1, MAX_BATCH_SIZE)
    return RegisteredVersion(
        url=request.url,
        handler=request.handler,
        folder=str(archive.folder),
        is_own_folder=archive.folder != request.archive,
        min_workers=workers,
        max_workers=max(workers, most),
        batch_size=batch,
        max_batch_delay_ms=chosen(
            "max_batch_delay_ms", request.max_batch_delay_ms, BATCH_DELAY_MS, 0, LARGE
        ),
        response_timeout_s=chosen(
            "response_timeout_s", request.response_timeout_s, answer_s, 1, DAY_S
        ),
        startup_timeout_s=chosen("startup_timeout_s", request.startup_timeout_s, start_s, 1, DAY_S),
        client_timeout_ms=chosen("client_timeout_ms", None, 0, 0, LARGE),
        **_sequences_of(own),
        job_queue_size=chosen("job_queue_size", None, properties.job_queue_size, 1, LARGE),
        envelope=properties.service_envelope,
        limit_max_image_pixels=properties.limit_max_image_pixels,
        decode_input_request=properties.decode_input_request,
        runtime=archive.manifest.runtime,
        device_type=own.device_type or (of_server.device_type if of_server else None),
        at_start=request.at_start,
    )


def run_of(one: RegisteredVersion, metrics: tuple[ModelMetric, ...] = ()) -> RunSettings:
    """Returns how a registered version with workers is run.

    Args:
        one: the version.
        metrics: metrics that its handler finds.
    """
    return RunSettings(
        batch_size=one.batch_size,
        workers=one.min_workers,
        response_timeout_s=one.response_timeout_s,
        startup_timeout_s=one.startup_timeout_s,
        handler=one.handler,
        envelope=one.envelope,
        limit_max_image_pixels=one.limit_max_image_pixels,
        decode_input_request=one.decode_input_request,
        sequence_idle_ms=one.sequence_idle_ms,
        sequence_timeout_ms=one.sequence_timeout_ms,
        max_sequences=most_sequences(one) or 1,
        metrics=metrics,
    )


def most_sequences(one: RegisteredVersion) -> int:
    """Returns the most open sequences: the archive's number, or else as many as run at once.

    A version whose requests are independent has 0.
    """
    if not one.sequence_idle_ms:
        return 0
    at_once = one.batch_size * max(one.min_workers, one.max_workers, 1)
    return min(MAX_OPEN, one.max_sequences or at_once)


def _sequences_of(own: ModelConfig) -> dict[str, int]:
    """Returns the fields of a version's sequences, none if its requests are independent."""
    if not own.sequence_idle_ms:
        return {}
    return {
        "sequence_idle_ms": own.sequence_idle_ms,
        "sequence_timeout_ms": own.sequence_timeout_ms or 0,
        "max_sequences": own.max_sequences or 0,
        "sequence_queue_size": own.sequence_queue_size or 1,
    }


def checked_workers(least: int, most: int | None) -> tuple[int, int]:
    """Returns the least and the largest number of workers.

    Raises:
        InvalidRequestError: one is negative or too large, or the largest is below the least.
    """
    least = _within("min_worker", least, 0, MAX_WORKERS)
    if most is not None and most < least:
        raise InvalidRequestError(
            f"max_worker is {most}, and min_worker is {least}; give no less than min_worker"
        )
    return least, least if most is None else most


def _within(name: str, value: int, least: int, most: int) -> int:
    if not least <= value <= most:
        raise InvalidRequestError(
            f"{name} is {value}; give a whole number from {least:,} to {most:,}"
        )
    return value
