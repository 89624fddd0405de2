"""Logs: one JSON object a line, whatever a record holds."""

import json
import logging

import pytest

from services.telemetry.logs import CUT, MAX_TEXT_CHARACTERS, JsonFormatter


@pytest.mark.parametrize("value", ["\udcff", 2**70, object(), {"a": (1, 2)}])
def test_every_record_is_one_line_of_json(value: object) -> None:
    record = logging.makeLogRecord({"msg": "told", "levelname": "INFO", "value": value})
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["message"] == "told"
    assert "value" in json.loads(line)


def test_long_texts_are_cut() -> None:
    text = "x" * 10_000_000
    error = ValueError(text)
    record = logging.makeLogRecord({"msg": text, "value": text})
    record.exc_info = (ValueError, error, None)
    found = json.loads(JsonFormatter().format(record))
    assert found["message"] == found["value"] == "x" * MAX_TEXT_CHARACTERS + CUT
    assert found["exception"].startswith("ValueError: xxx")
    assert len(found["exception"]) == MAX_TEXT_CHARACTERS + len(CUT)
