"""Log lines while Redis is out of reach."""

import logging

import pytest

from services.queueing.redis_streams.clients import RedisClients
from services.queueing.redis_streams.outage import AGAIN_S, QUIET_S, Outage

URL = "redis://127.0.0.1:6399"


def test_an_outage_is_told_once_then_now_and_then_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 1000.0
    outage = Outage(URL, lambda: now_s)
    with caplog.at_level(logging.INFO):
        for _ in range(int(2 * AGAIN_S / 0.25) + 1):  # four faults a second
            outage.failed(ConnectionError("refused"))
            outage.answered()  # another server of the cluster
            now_s += 0.25
        assert [record.message for record in caplog.records] == ["the queue is unreachable"] * 3
        caplog.clear()
        now_s += QUIET_S
        outage.answered()
        outage.answered()
    assert [record.message for record in caplog.records] == ["the queue is reachable"]
    assert outage.why == ""


def test_an_outage_names_the_address_and_the_setting(caplog: pytest.LogCaptureFixture) -> None:
    outage = RedisClients("redis://user:secret@10.0.0.1:6399").outage
    outage.failed(TimeoutError())
    (record,) = caplog.records
    reason = vars(record)["reason"]
    assert reason == outage.why
    assert "redis://user:***@10.0.0.1:6399: TimeoutError" in reason
    assert "--queue" in reason


def test_a_redis_that_answers_again_is_told_anew_when_it_fails(
    caplog: pytest.LogCaptureFixture,
) -> None:
    now_s = 0.0
    outage = Outage(URL, lambda: now_s)
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            outage.answered()
            outage.failed(ConnectionError("refused"))
            now_s += QUIET_S
    assert [record.levelname for record in caplog.records] == ["ERROR"] * 3
