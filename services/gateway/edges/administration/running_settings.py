"""Settings of logs and traces that callers may change while the server runs, under Triton's names.

In: names and values of a request. Out: the settings as they are then. What has no counterpart here
is refused by name, so that no caller believes it set.

Logs: levels are thresholds, so without warnings there are no informations either; `debug` is
`log_verbose_level` 1. Traces: a share of the requests is sampled, one of `trace_rate`.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Literal

from services.access.audit import audited
from services.access.caller import Principal
from services.access.grants import ALL_MODELS
from services.errors import InvalidRequestError, UnsupportedError
from services.gateway.edges.administration.repository import require_management
from services.tracing.setting import KEPT_RATIO, Change, apply_change
from services.tracing.tracer import Tracer

LogValue = bool | int | str
Tell = Callable[[Change], Awaitable[None]]

MAX_TRACE_RATE = 1_000_000_000
_LOG_NAMES = ("log_file", "log_info", "log_warning", "log_error", "log_verbose_level", "log_format")
_TRACE_NAMES = (
    "trace_level", "trace_rate", "trace_count", "log_frequency", "trace_file", "trace_mode"
)  # fmt: skip
_FORMAT = "ISO8601"
"""Logs are lines of JSON whose times have this format."""
_MODE = "opentelemetry"
_ONLY = {"trace_count": "-1", "log_frequency": "0", "trace_mode": _MODE}
_SHOWN = 60


class RunningSettings:
    """The settings of a server.

    Args:
        tracer: tracer of its requests; None if it was started without a collector.
        tell: changes the settings of all processes of the server; None if this is the only one.
        is_closed: see `require_management`.
        as_triton: True for Triton's words.
    """

    def __init__(
        self,
        tracer: Tracer | None = None,
        tell: Tell | None = None,
        *,
        is_closed: bool = False,
        as_triton: bool = False,
    ) -> None:
        self._tracer = tracer
        self._tell = tell or self._apply
        self._is_closed, self._as_triton = is_closed, as_triton
        self._first_ratio = tracer.ratio if tracer is not None else 0.0
        self._last_ratio = self._first_ratio

    async def _apply(self, change: Change) -> None:
        self.take(change)

    def take(self, change: Change) -> None:
        """Applies a change that this process, or another one of the server, was asked for."""
        apply_change(change, self._tracer)
        if KEPT_RATIO in change:
            self._last_ratio = float(change[KEPT_RATIO])

    def logs(self) -> dict[str, LogValue]:
        """Returns the settings of logs."""
        level = logging.getLogger().getEffectiveLevel()
        return {
            "log_file": "",
            "log_info": level <= logging.INFO,
            "log_warning": level <= logging.WARNING,
            "log_error": True,
            "log_verbose_level": int(level <= logging.DEBUG),
            "log_format": _FORMAT,
        }

    async def set_logs(self, values: Mapping[str, LogValue], principal: Principal) -> None:
        """Changes settings of logs.

        Raises:
            ServingError: a value cannot be set, or the caller may not.
        """
        with audited("set", "logs", principal.name, principal.peer):
            require_management(principal, ALL_MODELS, self._is_closed)
            _check_names(values, _LOG_NAMES, "logging")
            if values.get("log_file"):
                raise UnsupportedError(
                    "log file location can not be updated through network protocol"
                )
            asked = {**self.logs(), **values}
            for name in ("log_info", "log_warning", "log_error"):
                if not isinstance(asked[name], bool):
                    raise InvalidRequestError(f"'{name}' must be true or false")
            if not asked["log_error"]:
                raise UnsupportedError("log_error cannot be false: errors are always logged")
            if asked["log_format"] != _FORMAT:
                raise UnsupportedError(
                    f"log_format can only be '{_FORMAT}': logs are lines of JSON with such times"
                )
            await self._tell({"log_level": _level(asked, values)})

    def traces(self) -> dict[str, list[str]]:
        """Returns the settings of traces."""
        ratio = self._tracer.ratio if self._tracer is not None else 0.0
        rate = ratio or self._last_ratio
        return {
            "trace_level": ["TIMESTAMPS" if ratio else "OFF"],
            "trace_rate": [str(max(round(1 / rate), 1) if rate else 0)],
            "trace_count": ["-1"],
            "log_frequency": ["0"],
            "trace_file": [""],
            "trace_mode": [_MODE],
        }

    async def set_traces(
        self, values: Mapping[str, list[str]], model: str, principal: Principal
    ) -> None:
        """Changes settings of traces; a setting without a value gets its first one again.

        Raises:
            ServingError: a value cannot be set, or the caller may not.
        """
        with audited("set", "traces", principal.name, principal.peer):
            require_management(principal, ALL_MODELS, self._is_closed)
            if model:
                raise UnsupportedError(
                    "settings of traces are those of the whole server; leave the model out"
                )
            _check_names(values, _TRACE_NAMES, "trace")
            if values.get("trace_file", [""]) not in ([], [""]):
                raise UnsupportedError(
                    "trace file location can not be updated through network protocol"
                )
            for name, only in (
                ("trace_count", "-1"),
                ("log_frequency", "0"),
                ("trace_mode", _MODE),
            ):
                if values.get(name, []) not in ([], [only]):
                    raise UnsupportedError(f"{name} can only be '{only}' here")
            await self._set_ratio(values)

    async def _set_ratio(self, values: Mapping[str, list[str]]) -> None:
        tracer = self._tracer
        ratio, last_ratio = tracer.ratio if tracer is not None else 0.0, self._last_ratio
        rate = values.get("trace_rate")
        if rate is not None:
            last_ratio = 1 / self._rate(rate) if rate else self._first_ratio
            ratio = last_ratio if ratio else 0.0
        level = values.get("trace_level")
        if level is not None:
            is_on = _is_on(level) if level else bool(self._first_ratio)
            ratio = (last_ratio or 1.0) if is_on else 0.0
        if ratio and tracer is None:
            raise UnsupportedError(
                "requests cannot be traced: the server was started without trace_endpoint"
            )
        await self._tell({"trace_ratio": ratio, KEPT_RATIO: last_ratio})

    def _rate(self, values: list[str]) -> int:
        text = values[0]
        if len(values) != 1 or not (text.isascii() and text.isdecimal() and len(text) <= 10):
            raise InvalidRequestError(
                f"Unable to parse 'trace_rate', got: {text[:_SHOWN]}"
                if self._as_triton
                else "'trace_rate' must be one whole number, as text"
            )
        if not 1 <= int(text) <= MAX_TRACE_RATE:
            raise InvalidRequestError(f"'trace_rate' must be from 1 to {MAX_TRACE_RATE}")
        return int(text)


def _level(
    asked: Mapping[str, LogValue], given: Mapping[str, LogValue]
) -> Literal["DEBUG", "INFO", "WARNING", "ERROR"]:
    """Returns the level of logs for the settings that are asked for.

    Raises:
        InvalidRequestError: those that were given contradict each other.
    """
    verbose = asked["log_verbose_level"]
    if isinstance(verbose, bool) or not isinstance(verbose, int) or not 0 <= verbose < 2**32:
        raise InvalidRequestError("'log_verbose_level' must be a whole number from 0 up")
    is_on = {name: bool(asked[name]) for name in ("log_warning", "log_info")}
    is_on["log_verbose_level"] = verbose > 0
    off = ""
    for name, on in is_on.items():
        if not on and not off:
            off = name
        if on and off and name in given:
            raise InvalidRequestError(
                f"{off} is off and {name} is on; levels are thresholds, so turn both on or off"
            )
        is_on[name] = on and not off
    if is_on["log_verbose_level"]:
        return "DEBUG"
    return "INFO" if is_on["log_info"] else "WARNING" if is_on["log_warning"] else "ERROR"


def _is_on(levels: list[str]) -> bool:
    for level in levels:
        if level == "TENSORS":
            raise UnsupportedError("trace_level cannot be 'TENSORS': spans have no tensors")
        if level not in ("OFF", "TIMESTAMPS"):
            raise InvalidRequestError(
                f"trace_level '{level[:_SHOWN]}' is unknown; use OFF or TIMESTAMPS"
            )
    return "TIMESTAMPS" in levels


def _check_names(values: Mapping[str, object], known: tuple[str, ...], what: str) -> None:
    for name in values:
        if name not in known:
            raise InvalidRequestError(
                f"there is no {what} setting '{name[:_SHOWN]}'; there are {', '.join(known)}"
            )
