"""The settings of a TorchServe server: `config.properties`, and variables of the environment.

In: the file's bytes, and the environment. Out: a record, and the keys that are not followed.

Rules: `$$NAME$$` in a value is a variable of the environment; variables named `TS_` and the key
replace values if `enable_envvars_config` is true; a key that is unknown, or known and without a
meaning here, is listed, and never an error; a value that cannot be read is one.
Source: TorchServe's documentation of its configuration, 0.12.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from model_store.archives.model_config import ModelConfig, config_of
from model_store.archives.model_metrics import DEFAULT_METRICS, ModelMetric
from model_store.archives.model_snapshot import OF_ARCHIVE, SnapshotModel, parse_snapshot
from model_store.archives.properties_text import parse_properties
from model_store.document import LARGE, parse_document
from model_store.errors import DocumentError, ServerPropertiesError

_VARIABLE = re.compile(r"\$\$([^$]+)\$\$")
_HOST = re.compile(r"[!-~]+")
_HEADER = re.compile(r"[\t -~\xa0-\xff]*")
_MAX_SHOWN = 100

Address = tuple[str, int, bool]
"""Host, port, and whether TLS was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerProperties:
    """Settings that are followed; the defaults are TorchServe's."""

    inference_address: Address = ("127.0.0.1", 8080, False)
    management_address: Address = ("127.0.0.1", 8081, False)
    metrics_address: Address = ("127.0.0.1", 8082, False)
    grpc_inference_address: str = "127.0.0.1"
    grpc_inference_port: int = 7070
    grpc_management_address: str = "127.0.0.1"
    grpc_management_port: int = 7071
    model_store: str | None = None
    """Folder of the archives that may be registered by name."""
    load_models: str | None = None
    """Archives to register at the start: `all`, `standalone`, or `NAME=ARCHIVE` by commas."""
    metrics_config: str | None = None
    """File with the metrics that handlers find by `get_metric`."""
    model_metrics: tuple[ModelMetric, ...] = DEFAULT_METRICS
    """What the file has."""
    models: Mapping[str, Mapping[str, ModelConfig]] = field(default_factory=dict)
    """Settings by model and version, which go behind those of the archive."""
    snapshot: tuple[SnapshotModel, ...] | None = None
    """Archives to register at the start, in place of `load_models`; None without a snapshot."""
    allowed_urls: tuple[str, ...] = ("file://.*|http(s)?://.*",)
    """Regular expressions of the URLs that archives may be registered from."""
    default_workers_per_model: int = 0
    """Workers of a model that is registered without a number; 0 for one."""
    default_response_timeout: int = 120
    default_startup_timeout: int = 120
    job_queue_size: int = 100
    max_request_size: int = 6_553_500
    service_envelope: str | None = None
    decode_input_request: bool = True
    limit_max_image_pixels: bool = True
    install_py_dep_per_model: bool = False
    disable_token_authorization: bool = False
    enable_model_api: bool = False
    enable_metrics_api: bool = True
    disable_system_metrics: bool = False
    token_expiration_min: float = 60.0
    cors_allowed_origin: str | None = None
    cors_allowed_methods: str | None = None
    cors_allowed_headers: str | None = None
    private_key_file: str | None = None
    certificate_file: str | None = None
    enable_grpc_ssl: bool = False
    ignored: tuple[str, ...] = ()
    """Keys that are not followed, each with the reason."""


WITHOUT_MEANING = {
    "async_logging": "logs are written by the server's own rules",
    "blacklist_env_vars": "handlers see the server's environment",
    "cpp_log_config": "there is no C++ backend",
    "cpu_launcher_args": "threads are a setting of the server",
    "cpu_launcher_enable": "threads are a setting of the server",
    "debug": "log_level is a setting of the server",
    "default_service_handler": "each archive names its handler",
    **{
        f"grpc_{api}_max_connection_age{grace}_ms": "connections stay open until the server ends"
        for api in ("inference", "management")
        for grace in ("", "_grace")
    },
    "initial_distribution_port": "workers have no ports",
    "initial_worker_port": "workers have no ports",
    "io_ratio": "there is no Netty",
    "ipex_enable": "there is no IPEX",
    "ipex_gpu_enable": "there is no IPEX",
    "keystore": "give private_key_file and certificate_file",
    "keystore_pass": "give private_key_file and certificate_file",
    "keystore_type": "give private_key_file and certificate_file",
    "max_response_size": "answers of a batch have at most 64 MiB",
    "metric_time_interval": "the machine's metrics are read for each scrape",
    "metrics_format": "metrics are Prometheus'",
    "metrics_mode": "metrics are Prometheus'",
    "model_metrics_auto_detect": "metrics of handlers are exported as they come",
    "model_server_home": "handlers run in the folder of their archive",
    "netty_client_threads": "there is no Netty",
    "number_of_gpu": "the device is a setting of the server",
    "number_of_netty_threads": "there is no Netty",
    "prefer_direct_buffer": "there is no Netty",
    "preload_model": "each worker loads its model",
    "system_metrics_cmd": "the machine's metrics are read for each scrape",
    **{
        f"ts_header_key_sequence_{name}": f"the header is ts_request_sequence_{name}"
        for name in ("id", "start", "end")
    },
    "ts_open_inference_protocol": "flambeau serve without --torchserve speaks it",
    "tsConfigFile": "it names the file that a snapshot was made of",
    "unregister_model_timeout": "a model is unregistered once its requests are answered",
    "use_native_io": "there is no Netty",
    "version": "it is the version of the TorchServe that wrote a snapshot",
    "vmargs": "there is no Java",
    "workflow_store": "workflows are pipelines here (docs/guides/pipelines.md)",
}
"""Keys of TorchServe that are not followed, with the reasons."""
_SWITCHES = ("enable_envvars_config", "use_env_allowed_urls")


def parse_server_properties(
    data: bytes, where: str, environment: Mapping[str, str]
) -> ServerProperties:
    """Reads the settings of a server.

    Args:
        data: bytes of `config.properties`; empty for none.
        where: the file's name, for messages.
        environment: variables of the environment.

    Raises:
        ServerPropertiesError: a value cannot be read, or the file exceeds a limit.
    """
    texts = {
        key: _VARIABLE.sub(lambda found: environment.get(found[1], found[0]), text).strip()
        for key, text in parse_properties(data, where).items()
    }
    if _true(texts.get("enable_envvars_config", "false")):
        known = (*_READERS, *WITHOUT_MEANING)
        texts |= {
            key: environment[name] for key in known if (name := f"TS_{key.upper()}") in environment
        }
    if _true(texts.get("use_env_allowed_urls", "false")) and "TS_ALLOWED_URLS" in environment:
        texts["allowed_urls"] = environment["TS_ALLOWED_URLS"]
    found: dict[str, Any] = {}
    ignored = []
    for key, text in texts.items():
        reader = _READERS.get(key)
        if reader is not None and (text or key not in _MAY_BE_EMPTY):
            found[_FIELDS.get(key, key)] = _read(reader, key, text, where)
        elif reader is None and key not in _SWITCHES:
            reason = WITHOUT_MEANING.get(key, "it is unknown")
            ignored.append(f"'{key[:_MAX_SHOWN]}': {reason}")
    ignored += [
        f"'models', {name} {version}: {reason}"
        for name, versions in found.get("models", {}).items()
        for version, config in versions.items()
        for reason in config.ignored
    ]
    if found.get("snapshot") is not None:
        ignored.append("'model_snapshot': its models are registered, and no snapshots are written")
        ignored += [
            f"'model_snapshot', {one.name}: {reason}"
            for one in found["snapshot"]
            for reason in one.config.ignored
        ]
    return ServerProperties(**found, ignored=tuple(ignored))


def _read(reader: Callable[[str], Any], key: str, text: str, where: str) -> Any:
    try:
        return reader(text)
    except (ValueError, re.error, DocumentError) as error:
        raise ServerPropertiesError(
            f"{where}: '{key}' is {text[:_MAX_SHOWN]!r}: {error}; correct it, or leave it out"
        ) from error


def _true(text: str) -> bool:
    return text.strip().lower() == "true"  # as Java's Boolean.parseBoolean


def _text(text: str) -> str | None:
    return text or None


def _snapshot(text: str) -> tuple[SnapshotModel, ...] | None:
    return parse_snapshot(text) if text else None


def _path(text: str) -> str | None:
    if "\0" in text:
        raise ValueError("write a path, which has no NUL")
    return text or None


def _host(text: str) -> str:
    if not _HOST.fullmatch(text):
        raise ValueError("write a name or an address of this machine, such as 127.0.0.1")
    return text


def _header(text: str) -> str | None:
    if not _HEADER.fullmatch(text):
        raise ValueError("write the value of a header: one line, of Latin-1")
    return text or None


def _whole(least: int, most: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdecimal() and len(text) <= 18):
            raise ValueError("write a whole number")
        if not least <= int(text) <= most:
            raise ValueError(f"write a whole number from {least:,} to {most:,}")
        return int(text)

    return read


def _minutes(text: str) -> float:
    minutes = float(text)
    if not 0 < minutes < 2**31:
        raise ValueError("write a number of minutes above 0")
    return minutes


def _address(text: str) -> Address:
    parts = urlsplit(text)
    if parts.scheme == "unix":
        raise ValueError(
            "sockets of Unix are not listened on; write an address such as http://127.0.0.1:8080"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("write an address such as http://127.0.0.1:8080")
    port = parts.port
    if port is None:
        port = 443 if parts.scheme == "https" else 80
    return _host(parts.hostname), port, parts.scheme == "https"


def _urls(text: str) -> tuple[str, ...]:
    found = tuple(part.strip() for part in text.split(",") if part.strip())
    for pattern in found:
        re.compile(pattern)
    return found


def _models(text: str) -> dict[str, dict[str, ModelConfig]]:
    document = parse_document(text.encode(), "models", LARGE)
    if not isinstance(document, dict) or not all(
        isinstance(versions, dict) and all(isinstance(one, dict) for one in versions.values())
        for versions in document.values()
    ):
        raise ValueError('write {"MODEL": {"VERSION": {"minWorkers": 1}}}')
    return {
        str(name): {
            str(version): config_of({k: v for k, v in one.items() if k not in OF_ARCHIVE})
            for version, one in versions.items()
        }
        for name, versions in document.items()
    }


_FIELDS = {"model_snapshot": "snapshot"}
"""Fields with other names than their keys."""
_MAY_BE_EMPTY = (
    "default_workers_per_model", "default_response_timeout", "default_startup_timeout",
    "job_queue_size", "max_request_size", "grpc_inference_port", "grpc_management_port",
)  # fmt: skip
"""Numbers that are TorchServe's defaults where nothing is written."""
_COUNT = _whole(0, 2**31 - 1)
_SIZE = _whole(1, 2**31 - 1)
_READERS: dict[str, Callable[[str], Any]] = {
    "inference_address": _address,
    "management_address": _address,
    "metrics_address": _address,
    "metrics_config": _path,
    "grpc_inference_address": _host,
    "grpc_inference_port": _whole(0, 65_535),
    "grpc_management_address": _host,
    "grpc_management_port": _whole(0, 65_535),
    "model_store": _path,
    "load_models": _path,
    "models": _models,
    "model_snapshot": _snapshot,
    "allowed_urls": _urls,
    "default_workers_per_model": _COUNT,
    "default_response_timeout": _SIZE,
    "default_startup_timeout": _SIZE,
    "job_queue_size": _SIZE,
    "max_request_size": _SIZE,
    "service_envelope": _text,
    "decode_input_request": _true,
    "limit_max_image_pixels": _true,
    "install_py_dep_per_model": _true,
    "disable_token_authorization": _true,
    "enable_model_api": _true,
    "enable_metrics_api": _true,
    "disable_system_metrics": _true,
    "token_expiration_min": _minutes,
    "cors_allowed_origin": _header,
    "cors_allowed_methods": _header,
    "cors_allowed_headers": _header,
    "private_key_file": _path,
    "certificate_file": _path,
    "enable_grpc_ssl": _true,
}
