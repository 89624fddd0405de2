"""Failed requests are logged, up to a limit a second."""

import logging

import pytest

from services.errors import QueueFullError
from services.gateway.request_accounting import FAILURES_LOGGED_A_SECOND, RequestAccounting
from services.queueing.directory import Directory
from services.telemetry.metrics import Metrics
from tests.fixtures.inferences import open_inference


@pytest.fixture
def accounting(caplog: pytest.LogCaptureFixture) -> RequestAccounting:
    caplog.set_level(logging.INFO, "flambeau.request")
    return RequestAccounting(Metrics("test"), Directory(), access_log=False)


def test_a_failed_request_has_a_line(
    accounting: RequestAccounting, caplog: pytest.LogCaptureFixture
) -> None:
    open_inference(accounting, "rest", "mine", "m", "3").fail(QueueFullError("full"))
    (line,) = caplog.records
    assert line.getMessage() == "request failed"
    facts = vars(line)
    assert (facts["request_id"], facts["model"], facts["version"]) == ("mine", "m", "3")
    assert (facts["code"], facts["error"]) == ("503", "full")


def test_a_flood_of_failures_has_few_lines_and_one_that_counts_the_rest(
    accounting: RequestAccounting, caplog: pytest.LogCaptureFixture
) -> None:
    allowed = [
        accounting.may_log_failure(7.0 + n / 1000) for n in range(FAILURES_LOGGED_A_SECOND + 40)
    ]
    assert allowed.count(True) == FAILURES_LOGGED_A_SECOND
    assert not any(allowed[FAILURES_LOGGED_A_SECOND:])
    assert not caplog.records
    assert accounting.may_log_failure(8.0)
    (line,) = caplog.records
    assert line.getMessage() == "failed requests left out"
    assert vars(line)["requests"] == 40


def test_all_of_a_flood_are_counted(accounting: RequestAccounting) -> None:
    for _ in range(3 * FAILURES_LOGGED_A_SECOND):
        open_inference(accounting).fail(QueueFullError("full"))
    counted = [
        sample.value
        for family in accounting.metrics.registry.collect()
        for sample in family.samples
        if sample.name == "flambeau_requests_total"
    ]
    assert counted == [3 * FAILURES_LOGGED_A_SECOND]


def test_a_request_for_no_model_is_closed_without_a_search_for_names(
    accounting: RequestAccounting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def nearest_name(*_: object) -> str:
        raise AssertionError("names are compared")

    monkeypatch.setattr("services.queueing.directory.nearest_name", nearest_name)
    for model in ("", "unknown"):
        gone = open_inference(accounting, "grpc", "", model)
        gone.cancel("CANCELLED", QueueFullError("gone"))
