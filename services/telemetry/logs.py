"""Logs: one JSON object per line on standard error, with the fields of `extra`."""

import contextlib
import datetime
import json
import logging
import sys
from typing import Any

import orjson

from services.telemetry.log_output import LogHandler, LogOutput, may_wait

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
            "message": record.getMessage(),
        }
        line.update((key, value) for key, value in vars(record).items() if key not in _STANDARD)
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        try:
            return orjson.dumps(line, default=str).decode()
        except TypeError:  # text with lone surrogates, or an integer of more than 64 bits
            return json.dumps(line, default=str)


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
