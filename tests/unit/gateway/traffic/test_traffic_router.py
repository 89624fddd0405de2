"""Requests on their way to drawn versions: who answers, what is counted, what is mirrored."""

import asyncio
import re
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from msgspec import structs

from flambeau.protocol.sequence_spec import Sequences
from model_store.rollouts.traffic import Arm, Rollout, Shadow, Split
from services.errors import (
    BackendError,
    DeadlineExceededError,
    DisplacedError,
    ServingError,
)
from services.gateway.traffic.mirrors import FEW_ELEMENTS, MOST_IN_FLIGHT, MOST_IN_FLIGHT_BYTES
from services.queueing.memory_queue import Entry
from services.queueing.records import MIRROR_PRIORITY, InferReply, SequenceStep, ServedVersion
from services.rollouts.traffic_counts import MOST_LATENCIES_A_BLOCK, arm_id
from tests.fixtures.drawn_traffic import (
    ALWAYS,
    CANDIDATE,
    LIVE,
    SIGNATURE,
    Place,
    counts_of,
    rollout,
)
from tests.fixtures.redis_servers import until
from tests.fixtures.signatures import one_to_one


@pytest.mark.parametrize("version", ["", "production"])
async def test_candidate_gets_requests_that_name_no_version(version: str) -> None:
    place, one = Place(), rollout()
    place.share(rollout=one)
    inference, sink = place.begin(version)
    assert place.waiting() == (0, 1)
    place.answer(CANDIDATE)
    assert [reply.lane for reply in sink.replies] == [CANDIDATE]
    assert inference.version == "2"
    assert counts_of(place.router.counts.of(one.id)) == {"candidate/requests": 1}


@pytest.mark.parametrize(("version", "waiting"), [("1", (1, 0)), ("2", (0, 1))])
async def test_named_version_is_kept_and_not_counted(
    version: str, waiting: tuple[int, int]
) -> None:
    place, one = Place(), rollout(0.5)
    place.share(rollout=one, shadow=Shadow(candidate=2, sample=1.0))
    place.begin(version)
    assert place.waiting() == waiting
    place.answer(LIVE if version == "1" else CANDIDATE)
    assert place.waiting() == (0, 0)
    assert not place.router.counts.of(one.id).counts


async def test_rollout_of_another_baseline_draws_nothing() -> None:
    place = Place()
    place.share(rollout=Rollout(candidate=2, baseline=3, steps=(ALWAYS,)))
    place.begin()
    assert place.waiting() == (1, 0)


async def test_key_is_sticky() -> None:
    place = Place()
    place.share(rollout=rollout(0.5, sticky="header:x-user"))
    drawn: dict[str, bool] = {}
    for _ in range(3):
        for user in map(str, range(20)):
            before = place.waiting()[1]
            place.begin(user=user)
            is_candidate = place.waiting()[1] > before
            assert drawn.setdefault(user, is_candidate) is is_candidate
    assert set(drawn.values()) == {False, True}


async def test_sequence_keeps_its_version_as_the_share_grows() -> None:
    signature = SIGNATURE.model_copy(update={"sequence": Sequences(max_idle_s=60)})
    place, ids = Place(signature, signature), [str(number) for number in range(20)]
    first = rollout(0.1)
    place.share(rollout=first)
    for name in ids:
        place.begin(sequence=SequenceStep(name, is_start=True))
    before = place.waiting()
    assert before[0] > 10
    for lane in (LIVE, CANDIDATE):
        for _ in list(place.shelves[lane].entries):
            place.answer(lane)
    place.share(rollout=first.model_copy(update={"steps": (0.9,)}))
    for name in ids:
        place.begin(sequence=SequenceStep(name))
    assert place.waiting() == before


async def test_baseline_answers_for_a_candidate_that_is_not_ready() -> None:
    place, one = Place(), rollout()
    place.directory.announce(ServedVersion(lane=CANDIDATE, state="loading"))
    place.share(rollout=one)
    _, sink = place.begin()
    place.answer(LIVE)
    assert len(sink.replies) == 1
    assert not place.router.counts.of(one.id).counts
    assert place.counted("drawn_fallbacks", reason="not_ready") == 1


async def test_request_that_the_candidate_does_not_take_is_its_failure_and_answered() -> None:
    place, one = Place(SIGNATURE, one_to_one((5,), rows=8)), rollout()
    place.share(rollout=one)
    _, sink = place.begin()
    place.answer(LIVE)
    assert len(sink.replies) == 1
    found = counts_of(place.router.counts.of(one.id))
    assert found == {"candidate/requests": 1, "candidate/errors": 1}


async def test_wrong_request_is_the_callers_fault() -> None:
    place, one = Place(), rollout()
    place.share(rollout=one)
    _, sink = place.begin(columns=3)
    assert [error.http_status for error in sink.errors] == [400]
    assert not place.router.counts.of(one.id).counts


async def test_nan_is_counted() -> None:
    place, one = Place(), rollout()
    place.share(rollout=one)
    place.begin()
    place.answer(CANDIDATE, float("nan"))
    assert counts_of(place.router.counts.of(one.id))["candidate/nan"] == 1


async def test_arms_of_a_split_are_compared_with_the_first() -> None:
    place = Place()
    split = Split(name="s", arms=(Arm(version=1, share=0.5), Arm(version=2, share=0.5)))
    place.share(split=split)
    for _ in range(60):
        place.begin()
    live, candidate = place.waiting()
    assert live + candidate == 60
    assert min(live, candidate) > 0
    for lane, count in ((LIVE, live), (CANDIDATE, candidate)):
        for _ in range(count):
            place.answer(lane)
    found = counts_of(place.router.counts.evidence("p")[arm_id(split.id, 2)][1])
    assert found == {"live/requests": live, "candidate/requests": candidate}


async def test_arms_of_a_split_share_the_latencies_of_a_block() -> None:
    """One answer of the first arm may end the blocks of all others."""
    place = Place(SIGNATURE, SIGNATURE, SIGNATURE)
    split = Split(name="s", arms=tuple(Arm(version=n, share=1 / 3) for n in (1, 2, 3)))
    place.share(split=split)
    place.begin()
    arms = [place.router.counts.arm(split.id, version) for version in (2, 3)]
    for _ in range(MOST_LATENCIES_A_BLOCK):
        for arm in arms:
            arm.count(0.5, "live", 0.01)
            arm.count(0.5, "candidate", 0.01)
    for arm in arms:
        arm.end_block()
        counts = arm.evidence.counts.items()
        pairs = sum(n for name, n in counts if re.fullmatch("latency/.*/candidate/.*", name))
        assert 0 < pairs <= MOST_LATENCIES_A_BLOCK // 2


async def until_compared(place: Place, **labels: str) -> None:
    await until(lambda: place.counted("mirrored_pairs", **labels))


@pytest.mark.parametrize(
    ("outcome", "result", "step"),
    [(1.0, "agreed", 0), (-1.0, "differed", 1000), (BackendError("x"), "failed", 1000)],
)
async def test_mirrored_request_is_compared_once_the_caller_has_its_answer(
    outcome: float | ServingError, result: str, step: int
) -> None:
    place, one = Place(), rollout(0.000001, mirrored=1.0, guards={"outputs": None})
    place.share(rollout=one)
    _, sink = place.begin()
    assert place.waiting() == (1, 0)
    place.answer(LIVE)
    assert len(sink.replies) == 1
    await place.until_mirrored()
    (entry,) = place.shelves[CANDIDATE].entries
    assert entry.request.priority == MIRROR_PRIORITY
    place.answer(CANDIDATE, outcome)
    await until_compared(place, result=result)
    assert place.router.counts.of(one.id).counts[f"pairs/{step}"] == 1
    assert len(sink.replies) == 1
    assert place.admission.mirrored == 0


async def test_shadow_keeps_the_worst_pairs() -> None:
    place, shadow = Place(), Shadow(candidate=2, sample=1.0, keep=1)
    place.share(shadow=shadow)
    for outcome in (0.9, -1.0, 0.8):
        place.begin()
        place.answer(LIVE)
        await place.until_mirrored()
        place.answer(CANDIDATE, outcome)
    await until(lambda: place.router.counts.shadow(shadow.id).pairs == 3)
    figures = place.router.counts.shadow(shadow.id)
    assert (figures.difference, figures.agreed, figures.failed) == (2.0, 0, 0)
    (worst,) = figures.worst
    assert worst.candidate[0]["values"] == [-1.0] * 4
    assert worst.inputs[0]["values"] == [1.0] * 4


@pytest.mark.parametrize("kind", ["rollout", "shadow"])
async def test_pairs_are_compared_on_the_scale_of_the_spreads(kind: str) -> None:
    """Distance 0.04 of rows whose spread is 0.02: half; without a spread 0.04 / 3.96."""
    place, spreads = Place(), {"y": 0.02}
    one = rollout(0.000001, mirrored=1.0, spreads=spreads)
    shadow = Shadow(candidate=2, sample=1.0, spreads=spreads)
    place.share(**{kind: one if kind == "rollout" else shadow})
    place.begin()
    place.answer(LIVE)
    await place.until_mirrored()
    place.answer(CANDIDATE, 0.98)
    await until_compared(place, result="differed")
    counts = place.router.counts
    if kind == "shadow":
        assert counts.shadow(shadow.id).disagreement == pytest.approx(0.5, rel=0.01)
    else:
        pairs = [name for name in counts.of(one.id).counts if name.startswith("pairs/")]
        assert pairs == ["pairs/500"]


@contextmanager
def shadowed(**fields: Any) -> Iterator[tuple[Place, Shadow]]:
    place, shadow = Place(**fields), Shadow(candidate=2, sample=1.0)
    place.share(shadow=shadow)
    yield place, shadow


async def test_no_request_is_mirrored_while_callers_wait() -> None:
    with shadowed() as (place, shadow):
        place.begin()
        place.begin("2")
        place.answer(LIVE)
        await until(lambda: place.counted("dropped_mirrors", reason="busy") == 1)
        assert place.waiting() == (0, 1)
        assert place.router.counts.shadow(shadow.id).dropped == {"busy": 1}
        assert place.admission.mirrored == 0


async def test_mirrored_request_waits_a_moment_for_those_of_callers() -> None:
    with shadowed() as (place, shadow):
        place.begin()
        place.begin("2")
        place.answer(LIVE)
        place.answer(CANDIDATE)
        await place.until_mirrored()
        place.answer(CANDIDATE)
        await until(lambda: place.router.counts.shadow(shadow.id).agreed == 1)
        assert place.router.counts.shadow(shadow.id).dropped == {}


async def test_no_request_is_mirrored_while_the_loop_has_work_for_callers() -> None:
    with shadowed() as (place, shadow):
        place.begin()
        place.answer(LIVE)
        dropped = place.router.counts.shadow(shadow.id).dropped
        async with asyncio.timeout(30):
            while not dropped:
                place.begin("1")  # requests that name a version are not mirrored
                place.answer(LIVE)
                await asyncio.sleep(0)
                place.begin("1")
                await asyncio.sleep(0)
                place.answer(LIVE)
                assert place.waiting() == (0, 0)
        assert dropped == {"busy": 1}


async def test_requests_of_one_moment_are_mirrored_together() -> None:
    with shadowed() as (place, _):
        for _ in range(3):
            place.begin()
            place.answer(LIVE)
            assert place.waiting() == (0, 0)
        await place.until_mirrored(3)


@pytest.mark.parametrize("elements", [8, FEW_ELEMENTS])
async def test_pairs_are_compared_on_the_loop_or_in_a_thread(elements: int) -> None:
    signature = one_to_one((elements,), rows=8)
    place, shadow = Place(signature, signature), Shadow(candidate=2, sample=1.0)
    place.share(shadow=shadow)
    for _ in range(2):
        place.begin(columns=elements)
        place.answer(LIVE)
    await place.until_mirrored(2)
    for outcome in (1.0, 0.5):
        place.answer(CANDIDATE, outcome)
    await until(lambda: place.router.counts.shadow(shadow.id).pairs == 2)
    figures = place.router.counts.shadow(shadow.id)
    assert (figures.agreed, figures.difference) == (1, 0.5)


async def test_mirrored_requests_in_flight_are_limited_and_take_no_permit() -> None:
    with shadowed(limit=1) as (place, shadow):
        for _ in range(MOST_IN_FLIGHT + 2):
            _, sink = place.begin()
            assert not sink.errors
            place.answer(LIVE)
        await place.until_mirrored(MOST_IN_FLIGHT)
        held: list[Entry] = list(place.shelves[CANDIDATE].entries)
        assert place.router.counts.shadow(shadow.id).dropped == {"in_flight": 2}
        place.router.mirrors.abandon()
        assert place.queue.unanswered == place.admission.mirrored == 0
        assert all(entry.dead for entry in held)


async def test_process_that_drains_sends_no_mirrored_request() -> None:
    with shadowed() as (place, _):
        place.begin()
        place.answer(LIVE)
        place.admission.draining = True
        await until(lambda: place.admission.mirrored == 0)
        assert place.waiting() == (0, 0)


async def test_too_large_requests_streams_and_steps_are_dropped_whole() -> None:
    with shadowed() as (place, shadow):
        dropped = place.router.counts.shadow(shadow.id).dropped
        _, sink = place.begin()
        part = InferReply(
            lane=LIVE, outputs={"y": np.ones((1, 4), np.float32)}, datatypes={"y": "FP32"},
            batch_rows=1, queue_s=0.0, execution_s=0.0, is_last=False,
        )  # fmt: skip
        place.shelves[LIVE].entries[0].part(part)
        place.answer(LIVE, number=1)
        assert len(sink.replies) == 2
        assert dropped == {"stream": 1}
        place.begin()
        entry = place.shelves[LIVE].entries.pop()
        large = np.zeros(MOST_IN_FLIGHT_BYTES // 4 + 1, np.float32)
        entry.finish(structs.replace(part, outputs={"y": large}, is_last=True))
        assert dropped == {"stream": 1, "too_large": 1}
        assert place.waiting() == (0, 0)


async def test_pair_whose_answers_are_too_large_is_dropped() -> None:
    with shadowed() as (place, shadow):
        place.begin()
        place.answer(LIVE)
        await place.until_mirrored()
        large = {"y": np.zeros(MOST_IN_FLIGHT_BYTES // 4, np.float32)}
        entry = place.shelves[CANDIDATE].entries.pop()
        entry.finish(
            InferReply(
                lane=CANDIDATE, outputs=large, datatypes={"y": "FP32"}, batch_rows=1, queue_s=0.0,
                execution_s=0.0,
            )
        )  # fmt: skip
        assert place.router.counts.shadow(shadow.id).dropped == {"too_large": 1}
        assert place.admission.mirrored == 0


async def test_candidate_that_is_not_ready_gets_no_mirrored_request() -> None:
    with shadowed() as (place, shadow):
        place.directory.announce(ServedVersion(lane=CANDIDATE, state="failed", reason="x"))
        _, sink = place.begin()
        place.answer(LIVE)
        assert len(sink.replies) == 1
        assert place.router.counts.shadow(shadow.id).dropped == {"not_ready": 1}


async def test_candidate_that_never_answers_has_failed() -> None:
    with shadowed() as (place, shadow):
        place.begin()
        place.answer(LIVE)
        await place.until_mirrored()
        place.answer(CANDIDATE, DeadlineExceededError("x"))
        await until_compared(place, result="failed")
        figures = place.router.counts.shadow(shadow.id)
        assert (figures.failed, figures.dropped) == (1, {})


async def test_mirrored_request_that_callers_keep_from_running_has_not_failed() -> None:
    """The worker refuses it, which knows of the requests of all processes."""
    with shadowed() as (place, shadow):
        place.begin()
        place.answer(LIVE)
        await place.until_mirrored()
        place.answer(CANDIDATE, DisplacedError("x"))
        assert place.router.counts.shadow(shadow.id).dropped == {"busy": 1}
        assert place.router.counts.shadow(shadow.id).failed == 0
        assert place.admission.mirrored == 0


async def test_counts_go_on_when_traffic_comes_back() -> None:
    """A gateway that loses its workers loses sight of the rollout, and hears of it again."""
    place, one = Place(), rollout()
    for count in (1, 2):
        place.share(rollout=one)
        place.begin()
        place.answer(CANDIDATE)
        assert counts_of(place.router.counts.of(one.id)) == {"candidate/requests": count}
        place.directory.set_traffic("m", None)
        place.router.counts.keep_only([])


@pytest.mark.parametrize("ending", ["answered", "failed", "cancelled"])
async def test_inputs_are_freed_without_the_garbage_collector(ending: str) -> None:
    place = Place()
    place.share(rollout=rollout())
    inference, sink = place.begin()
    gone = weakref.ref(sink.call.inputs[0].array)
    if ending == "cancelled":
        inference.cancel("499", ServingError("gone"))
        place.shelves[CANDIDATE].discarded.clear()
    else:
        place.answer(CANDIDATE, BackendError("x") if ending == "failed" else 1.0)
    del inference, sink
    assert gone() is None
