"""Settings common to all server processes, and their command line; validated once, at startup."""

import argparse
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar, get_origin

from pydantic import ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo

from flambeau.protocol.strict import Matching, StrictModel, explain
from model_store.yaml_text import YamlError, read_yaml
from services.readiness import ReadinessRule

_COLLECTOR = "a URL such as http://collector:4318/v1/traces, or nothing"


class ConfigError(Exception):
    """A setting that is unknown or has a bad value; the message names it."""


class ServiceSettings(StrictModel):
    """Settings of all server processes; a field's docstring is the help of its option."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    host: str = "127.0.0.1"
    """Address to listen on. Set `0.0.0.0` to accept connections from other machines, and then
    configure access (docs/guides/security.md)."""
    metrics_port: int = Field(8002, ge=0, le=65_535)
    """Port of Prometheus metrics; 0 picks a free port."""
    drain_timeout_s: float = Field(20.0, ge=0, le=3600)
    """Seconds that accepted requests may still take after SIGTERM. Keep it below the termination
    grace period of the process's supervisor."""
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """Lowest level that is logged."""

    def ports(self) -> dict[str, int]:
        """Returns the ports to listen on, by setting."""
        names = sorted(name for name in type(self).model_fields if name.endswith("_port"))
        return {name: getattr(self, name) for name in names}

    @model_validator(mode="after")
    def _has_a_port_for_each(self) -> Self:
        if shared := shared_port(self.ports().items()):
            raise ValueError(shared)
        return self


class ProcessSettings(ServiceSettings):
    """Settings of all processes that serve models."""

    models: tuple[str, ...] = ()
    """Names of the only models to serve; a name that does not exist keeps the process not ready.
    Empty serves all models."""
    readiness: ReadinessRule = "all_models_once"
    """Condition of `/v2/health/ready`. `all_models_once`: the production versions of all models
    have been served once; later refusals are reported and do not change readiness. `all_models`:
    all are served now, as Triton's `--strict-readiness`; set it if a server with one broken model
    should get no traffic. `any_model`: at least one is served; set it if one broken model among
    many must not keep new processes from traffic."""
    triton_metrics: bool = False
    """The metrics of models under Triton's names (`nv_inference_count` and others), too; set it for
    dashboards that were made for Triton."""
    trace_endpoint: Annotated[str, Matching(r"^(https?://.+)?$", _COLLECTOR)] = ""
    """URL of the collector for spans over OTLP/HTTP, such as `http://collector:4318/v1/traces`;
    set it to trace requests. Empty disables tracing."""
    trace_ratio: float = Field(0.01, ge=0, le=1)
    """Share of requests traced if the caller sends no sampling decision (`traceparent`). Raise it
    at low request rates; set it to 0 to trace only requests that callers sample."""


def shared_port(ports: Iterable[tuple[str, int]]) -> str:
    """Reports two settings with the same port; empty if there are none. 0 never conflicts.

    Args:
        ports: setting and number of each port.
    """
    owners: dict[int, str] = {}
    for owner, port in ports:
        if port and port in owners:
            return f"{owners[port]} and {owner} are both {port}: give each a port of its own"
        owners[port] = owner
    return ""


Texts = tuple[str, ...]
Settings = TypeVar("Settings", bound=ServiceSettings)


def checked(kind: type[Settings], settings: Mapping[str, Any]) -> Settings:
    """Checks settings and fills in the defaults.

    Raises:
        ConfigError: a setting is unknown or invalid; names each, and the nearest valid name.
    """
    try:
        return kind.model_validate(dict(settings))
    except ValidationError as error:
        raise ConfigError(explain(error, kind)) from error


def settings_from(
    arguments: Sequence[str], kind: type[Settings], purpose: str, program: str = "flambeau"
) -> Settings:
    """Reads settings from a command line: `--name value`, and a list as `--model a --model b`.

    Args:
        arguments: arguments without the program's name.
        kind: class of the settings, whose fields are the options.
        purpose: purpose of the program, for its help.
        program: name of the program, for its help.

    Raises:
        ConfigError: as `checked`; or an option does not exist, or has no value.
        SystemExit: the help was requested.
    """
    parser = argparse.ArgumentParser(
        program, description=purpose, allow_abbrev=False, exit_on_error=False
    )
    options = {name: _option(name, field) for name, field in kind.model_fields.items()}
    for name, field in kind.model_fields.items():
        is_list = get_origin(field.annotation) is tuple
        parser.add_argument(
            options[name],
            dest=name,
            action="append" if is_list else "store",
            help=_help(field).replace("%", "%%"),
            metavar="VALUE",
        )
    try:
        found, unknown = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error}; {program} --help lists all options") from error
    if unknown:
        name = unknown[0].partition("=")[0]
        close = difflib.get_close_matches(name, options.values(), n=1)
        hint = f" (did you mean '{close[0]}'?)" if close else ""
        if name == "--set":
            hint = "; each setting is an option here, such as --http-port 9000"
        raise ConfigError(f"unknown option '{name}'{hint}; {program} --help lists all options")
    given = {name: value for name, value in vars(found).items() if value}
    for name, field in kind.model_fields.items():
        if field.is_required() and name not in given:
            raise ConfigError(f"{options[name]} is required: {field.description}")
    texts = [name for name, field in kind.model_fields.items() if field.annotation in (str, Texts)]
    return checked(
        kind, {name: value if name in texts else _value(value) for name, value in given.items()}
    )


def _option(name: str, field: FieldInfo) -> str:
    """Returns the option of a setting; a repeatable option is in the singular."""
    option = f"--{name.replace('_', '-')}"
    return option.removesuffix("s") if get_origin(field.annotation) is tuple else option


def _help(field: FieldInfo) -> str:
    more = " Repeat the option for each." if get_origin(field.annotation) is tuple else ""
    return f"{field.description}{_default(field)}{more}".replace("\n", " ")


def _default(field: FieldInfo) -> str:
    """Returns what the help says of a default; nothing of an empty one, which the text explains."""
    if field.is_required():
        return " Required."
    value = field.get_default(call_default_factory=True)
    if isinstance(value, tuple):
        value = ", ".join(map(str, value))
    if isinstance(value, bool):
        value = str(value).lower()
    return "" if value in ("", {}) else f" (default: {value})"


def command_line(settings: Mapping[str, object]) -> list[str]:
    """Returns the arguments from which `settings_from` reads these settings."""
    found = []
    for name, value in settings.items():
        option = f"--{name.replace('_', '-')}"
        if isinstance(value, list | tuple):
            found += [f"{option.removesuffix('s')}={item}" for item in value]
        else:
            found.append(f"{option}={value if isinstance(value, str) else json.dumps(value)}")
    return found


def _value(text: str | list[str]) -> Any:
    """Parses a value of the command line: numbers, booleans and mappings as in YAML."""
    if isinstance(text, list):
        return tuple(_value(item) for item in text)
    try:
        return read_yaml(text)
    except YamlError:
        return text
