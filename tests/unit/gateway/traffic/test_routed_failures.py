"""Failures of requests of drawn versions: which are the version's own."""

from asyncio import Event

import pytest

from services.errors import (
    BackendError,
    DeadlineExceededError,
    DeviceError,
    InputRefusedError,
    ModelNotReadyError,
    QueueFullError,
    QueueUnavailableError,
    ServingError,
    SeveralAnswersError,
    TooManyInFlightError,
    WouldMissDeadlineError,
)
from services.gateway.artifact_preference import ArtifactPreference
from services.gateway.sliced_work import Slices
from services.gateway.torchserve.refusals import Refusal, RefusedError
from services.queueing.records import Lane, SequenceStep, ServedArtifact, ServedVersion
from services.rollouts.evidence.evidence import Version
from tests.fixtures.drawn_traffic import (
    ALWAYS,
    CANDIDATE,
    LIVE,
    SIGNATURE,
    Place,
    counts_of,
    rollout,
)
from tests.fixtures.queue_ends import Shelf
from tests.fixtures.redis_servers import until
from tests.fixtures.signatures import one_to_one

NEVER = 0.000001
ARMS = pytest.mark.parametrize("share", [ALWAYS, NEVER])


def arm_of(share: float) -> Version:
    return "candidate" if share == ALWAYS else "live"


@ARMS
@pytest.mark.parametrize(
    ("error", "is_counted"),
    [
        (BackendError("x"), True),
        (DeviceError("x"), True),
        (QueueFullError("x"), True),
        (InputRefusedError("x"), False),
        (WouldMissDeadlineError("x"), False),
        (TooManyInFlightError("x"), False),
        (QueueUnavailableError("x"), False),
        (ModelNotReadyError("x"), False),
    ],
)
async def test_failures_of_a_version_are_counted(
    error: ServingError, is_counted: bool, share: float
) -> None:
    place, one = Place(), rollout(share)
    place.share(rollout=one)
    _, sink = place.begin()
    place.answer(CANDIDATE if share == ALWAYS else LIVE, error)
    assert sink.errors == [error]
    name, counts = arm_of(share), counts_of(place.router.counts.of(one.id))
    assert counts == ({f"{name}/requests": 1, f"{name}/errors": 1} if is_counted else {})


async def test_full_queue_of_its_own_sequence_is_the_callers() -> None:
    place, one = Place(), rollout()
    place.share(rollout=one)
    place.begin(sequence=SequenceStep("s"))
    place.answer(CANDIDATE, QueueFullError("x"))
    assert not place.router.counts.of(one.id).counts


@ARMS
@pytest.mark.parametrize("ending", ["disconnected", "late", "expired"])
@pytest.mark.parametrize(
    ("limit_s", "patience_s", "is_counted"), [(60, 5, False), (0, 5, True), (60, 0, True)]
)
async def test_request_without_an_answer_fails_once_it_has_waited_for_long(
    ending: str, limit_s: float, patience_s: float, is_counted: bool, share: float
) -> None:
    """A caller that sets a short deadline, or leaves early, moves no rollout."""
    place, one = Place(), rollout(share)
    place.admission.request_timeout_s = limit_s
    place.share(rollout=one)
    place.router.counts.comparison(one.id).patience_s = patience_s
    inference, _ = place.begin()
    if ending == "disconnected":
        inference.cancel("499", ServingError("gone"))
    elif ending == "late":
        inference.cancel("DEADLINE_EXCEEDED", DeadlineExceededError("late"))
    else:
        place.answer(CANDIDATE if share == ALWAYS else LIVE, DeadlineExceededError("late"))
    name, counts = arm_of(share), counts_of(place.router.counts.of(one.id))
    assert counts == ({f"{name}/requests": 1, f"{name}/errors": 1} if is_counted else {})


@ARMS
@pytest.mark.parametrize("patience_s", [0, 5])
async def test_hanging_request_fails_while_its_caller_waits(patience_s: int, share: float) -> None:
    """A caller may be patient; the candidate gets no larger share meanwhile."""
    place, one = Place(), rollout(share)
    place.share(rollout=one)
    place.router.counts.comparison(one.id).patience_s = patience_s
    _, sink = place.begin()
    name, failed = arm_of(share), patience_s == 0
    for _ in range(2):
        counts = counts_of(place.router.counts.evidence("p")[one.id][1])
        assert counts == ({f"{name}/requests": 1, f"{name}/errors": 1} if failed else {})
    place.answer(CANDIDATE if share == ALWAYS else LIVE)
    assert len(sink.replies) == 1
    counts = counts_of(place.router.counts.evidence("p")[one.id][1])
    assert counts == {f"{name}/requests": 1} | ({f"{name}/errors": 1} if failed else {})
    assert not place.router.counts.comparison(one.id).waiting


@pytest.mark.parametrize(
    ("error", "is_counted"),
    [
        (BackendError("its handler failed"), True),
        (RefusedError(Refusal(503, "", "its handler failed")), True),
        (RefusedError(Refusal(404, "", "its handler does not know it")), False),
        (SeveralAnswersError("another call"), False),
        (TooManyInFlightError("no room"), False),
    ],
)
async def test_answer_that_cannot_be_written_fails_unless_the_request_is_wrong(
    error: ServingError, is_counted: bool
) -> None:
    place, one = Place(), rollout()
    place.share(rollout=one)
    _, sink = place.begin()
    sink.refusal = error
    place.answer(CANDIDATE)
    counts = counts_of(place.router.counts.of(one.id))
    assert counts == {"candidate/requests": 1} | ({"candidate/errors": 1} if is_counted else {})


def of_two_artifacts(lane: Lane) -> ServedVersion:
    artifacts = tuple(
        ServedArtifact(
            name=name, precision=name, accuracy_loss=0.0, row_ms=1.0,
            lane=lane if name == "fp32" else Lane(lane.model, lane.version, name),
        )
        for name in ("fp32", "int8")
    )  # fmt: skip
    return ServedVersion(lane=lane, state="ready", signature=SIGNATURE, artifacts=artifacts)


async def test_artifact_that_the_candidate_lacks_is_no_failure() -> None:
    """A caller chooses it, and a version's artifacts are loaded one after the other."""
    place, one = Place(), rollout()
    live = of_two_artifacts(LIVE)
    place.directory.announce(live)
    place.shelves[live.artifacts[1].lane] = Shelf()
    place.queue.open(live.artifacts[1].lane, place.shelves[live.artifacts[1].lane])
    place.share(rollout=one)
    _, sink = place.begin(preference=ArtifactPreference("int8", ""))
    place.answer(live.artifacts[1].lane)
    assert len(sink.replies) == 1
    assert not place.router.counts.of(one.id).counts
    assert place.counted("drawn_fallbacks", reason="not_ready") == 1


async def test_input_that_the_candidate_refuses_counts_once_the_live_version_takes_it() -> None:
    place, one = Place(SIGNATURE, one_to_one((5,), rows=8), limit=1), rollout()
    place.share(rollout=one)
    _, first = place.begin()
    _, second = place.begin()
    assert [error.http_status for error in second.errors] == [503]
    found = counts_of(place.router.counts.of(one.id))
    assert found == {"candidate/requests": 1, "candidate/errors": 1}
    place.answer(LIVE)
    assert len(first.replies) == 1


def encoding(goes_on: Event, error: ServingError | None = None) -> Slices[None]:
    """Returns the encoding of an answer in slices, the last of which may fail."""
    while not goes_on.is_set():
        yield
    if error is not None:
        raise error


@pytest.mark.parametrize("error", [None, BackendError("its handler failed")])
async def test_large_answer_counts_once_it_is_encoded(error: ServingError | None) -> None:
    place, one = Place(), rollout()
    place.share(rollout=one)
    _, sink = place.begin()
    goes_on = Event()
    sink.slices = encoding(goes_on, error)
    place.answer(CANDIDATE)
    assert not place.router.counts.of(one.id).counts
    goes_on.set()
    await until(lambda: len(place.router.counts.of(one.id).counts) > 0)
    evidence = place.router.counts.of(one.id)
    failed = {"candidate/errors": 1} if error else {}
    assert counts_of(evidence) == {"candidate/requests": 1} | failed
    assert (len(sink.replies), len(sink.errors)) == ((0, 1) if error else (1, 0))


async def test_caller_that_leaves_while_its_answer_is_encoded_got_an_answer() -> None:
    place, one = Place(), rollout()
    place.share(rollout=one)
    inference, sink = place.begin()
    sink.slices = encoding(Event())
    place.answer(CANDIDATE)
    inference.cancel("499", ServingError("gone"))
    assert counts_of(place.router.counts.of(one.id)) == {"candidate/requests": 1}
