"""Logs: one JSON object per line on standard error, with the fields of `extra`."""

import contextlib
import datetime
import json
import logging
import sys
from typing import Any

import orjson

from services.telemetry.log_output import LogHandler, LogOutput, may_wait

MAX_TEXT_CHARACTERS = 64 * 1024
"""Characters of a text in a line; models and callers write parts of it. The rest is dropped."""
CUT = " [cut]"
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """Formats time, level, logger, message, then all `extra` fields, then the traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """Returns one line of JSON."""
        moment = datetime.datetime.fromtimestamp(record.created, datetime.UTC)
        line: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": _limited(record.getMessage()),
        }
        fields = vars(record).items()
        line.update((key, _limited(value)) for key, value in fields if key not in _STANDARD)
        if record.exc_info:
            line["exception"] = _limited(self.formatException(record.exc_info))
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # text with lone surrogates, or an integer of more than 64 bits
            return json.dumps(line, default=str)


def _limited(value: Any) -> Any:
    """Returns a value; a text that is too long is cut."""
    if isinstance(value, str) and len(value) > MAX_TEXT_CHARACTERS:
        return value[:MAX_TEXT_CHARACTERS] + CUT
    return value


def configure_logs(level: str) -> None:
    """Sends all logs of the process to standard error as JSON lines.

    A slow reader of a pipe, a terminal or a socket delays nobody who logs (`log_output.py`).
    """
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if may_wait(sys.stderr):
        with contextlib.suppress(OSError):
            handler = LogHandler(LogOutput(sys.stderr))
    handler.setFormatter(JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
