"""Requests to handlers with state: each is a step of a sequence, named by a header."""

import pytest

from model_store.archives.handler_calls import HandlerRequest
from services.gateway.sequence_parameters import MAX_ID_BYTES
from services.gateway.torchserve.predictions import SEQUENCE, SEQUENCE_START, step_of
from services.gateway.torchserve.refusals import RefusedError
from services.queueing.records import SequenceStep


def test_a_header_names_the_sequence() -> None:
    asked = HandlerRequest(id="r", headers={SEQUENCE: "a"})
    assert step_of(asked) == (asked, SequenceStep("a", may_start=True))


@pytest.mark.parametrize("headers", [{}, {SEQUENCE: ""}])
def test_a_request_without_a_sequence_begins_one(headers: dict[str, str]) -> None:
    asked = HandlerRequest(id="r", headers={"x": "y", **headers})
    (first, step), (_, other) = step_of(asked), step_of(asked)
    assert step == SequenceStep(step.id, is_start=True)
    assert step.id.startswith("ts-seq-")
    assert step.id != other.id
    assert first.headers == {"x": "y", SEQUENCE: step.id, SEQUENCE_START: "true"}


def test_an_id_that_is_too_long_is_refused() -> None:
    step_of(HandlerRequest(id="r", headers={SEQUENCE: "x" * MAX_ID_BYTES}))
    with pytest.raises(RefusedError, match="has over 128 bytes; choose a shorter id"):
        step_of(HandlerRequest(id="r", headers={SEQUENCE: "x" * (MAX_ID_BYTES + 1)}))
