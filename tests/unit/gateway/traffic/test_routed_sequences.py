"""Steps of sequences on their way to drawn versions, across rollouts and fallbacks."""

import logging
from typing import Any

import pytest

from flambeau.protocol.sequence_spec import Sequences
from model_store.rollouts.traffic import Arm, Split
from services.queueing.records import SequenceStep, ServedVersion
from tests.fixtures.drawn_traffic import (
    ALWAYS,
    CANDIDATE,
    LIVE,
    SIGNATURE,
    THIRD,
    Place,
    rollout,
)

KEEPING = SIGNATURE.model_copy(update={"sequence": Sequences(max_idle_s=60)})
FIRST, NEXT = SequenceStep("s", is_start=True), SequenceStep("s")


@pytest.mark.parametrize("kind", ["rollout", "split"])
async def test_step_of_a_sequence_that_an_ended_rollout_drew_is_drawn_anew(kind: str) -> None:
    place = Place(KEEPING, KEEPING, KEEPING)
    place.share(rollout=rollout())
    place.begin(sequence=FIRST)
    place.answer(CANDIDATE)
    if kind == "rollout":
        place.share(rollout=rollout(candidate=3))
    else:
        arms = Arm(version=1, share=1 - ALWAYS), Arm(version=3, share=ALWAYS)
        place.share(split=Split(name="s", arms=arms))
    _, sink = place.begin(sequence=NEXT)
    place.answer(THIRD)
    assert not sink.errors
    assert len(sink.replies) == 1


async def test_sequence_stays_with_the_version_that_answered_for_the_drawn_one() -> None:
    place = Place(KEEPING, KEEPING)
    place.directory.announce(ServedVersion(lane=CANDIDATE, state="loading"))
    place.share(rollout=rollout())
    place.begin(sequence=FIRST)
    place.answer(LIVE)
    place.directory.announce(ServedVersion(lane=CANDIDATE, state="ready", signature=KEEPING))
    place.begin(sequence=NEXT)
    assert place.waiting() == (1, 0)


class FailingRouter:
    def route(self, *_: Any) -> None:
        raise KeyError("a defect")


async def test_fault_of_the_router_reaches_no_caller(caplog: pytest.LogCaptureFixture) -> None:
    place = Place()
    place.share(rollout=rollout())
    place.admission.router = FailingRouter()
    with caplog.at_level(logging.ERROR, "flambeau.inference"):
        for _ in range(300):
            _, sink = place.begin()
            place.answer(LIVE)
            assert (len(sink.replies), sink.errors) == (1, [])
    assert 0 < len(caplog.records) < 300
