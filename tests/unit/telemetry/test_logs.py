"""Logs: one JSON object a line, whatever a record holds."""

import json
import logging

import pytest

from services.telemetry.logs import JsonFormatter


@pytest.mark.parametrize("value", ["\udcff", 2**70, object(), {"a": (1, 2)}])
def test_every_record_is_one_line_of_json(value: object) -> None:
    record = logging.makeLogRecord({"msg": "told", "levelname": "INFO", "value": value})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "told"
    assert "value" in json.loads(line)
