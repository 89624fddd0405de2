"""The choice of an artifact: preferences in requests, and their effect under overload."""

from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest

from protos import open_inference_pb2 as pb
from services.errors import (
    InvalidRequestError,
    QueueFullError,
    ServingError,
    UnknownArtifactError,
    WouldMissDeadlineError,
)
from services.gateway.admission import Admission, InferCall, InputTensor
from services.gateway.artifact_preference import (
    ArtifactPreference,
    faster_artifact,
    find_artifact,
    find_lane,
)
from services.gateway.edges import grpc_codec
from services.gateway.edges.json_bodies.strict_request import RestRequest
from services.queueing.directory import Directory
from services.queueing.memory_queue import MemoryQueue, Outcome
from services.queueing.records import (
    PIPELINE_PLATFORM,
    InferReply,
    Lane,
    ServedArtifact,
    ServedVersion,
)
from services.telemetry.metrics import Metrics
from tests.fixtures.queue_ends import MAX_DEPTH, Shelf, reply, reply_of
from tests.fixtures.signatures import one_to_one
from tests.unit.gateway.edges.rest_bodies import decode, encode

LANE = Lane("m", 1)
TENSOR = {"name": "x", "datatype": "FP32", "shape": [1, 1], "data": [1]}
SIGNATURE = one_to_one((1,), rows=4)


def known(name: str, precision: str, row_ms: float, loss: float = 0.0) -> ServedArtifact:
    """Returns a loaded artifact; the one called `default` answers by default."""
    lane = LANE if name == "default" else LANE._replace(artifact=name)
    return ServedArtifact(
        name=name, precision=precision, accuracy_loss=loss, row_ms=row_ms, lane=lane
    )


def version(*artifacts: ServedArtifact) -> ServedVersion:
    return ServedVersion(
        lane=LANE, state="ready", signature=SIGNATURE, artifact="default", artifacts=artifacts
    )


EXACT = version(
    known("default", "fp32", 4.0),
    known("slow", "fp32", 5.0),
    known("half", "bf16", 3.0),
    known("small", "int8", 1.0, loss=0.008),
)
QUICK = version(known("default", "int8", 1.0, loss=0.008), known("whole", "fp32", 4.0))
ROUGH = version(known("default", "int8", 1.0, loss=0.008))


def over_rest(**parameters: Any) -> ArtifactPreference | None:
    body = orjson.dumps({"inputs": [TENSOR], "parameters": parameters})
    return decode(body, None, None).preference


def over_grpc(**parameters: Any) -> ArtifactPreference | None:
    request = pb.ModelInferRequest()
    choices = {int: "int64_param", str: "string_param", bool: "bool_param"}
    for name, value in parameters.items():
        setattr(request.parameters[name], choices[type(value)], value)
    sent = pb.ModelInferRequest.FromString(request.SerializeToString())
    return grpc_codec.asked_parameters(sent).preference


EDGES = pytest.mark.parametrize("read", [over_rest, over_grpc])


@EDGES
@pytest.mark.parametrize(
    ("parameters", "preference"),
    [
        ({}, None),
        ({"priority": 1}, None),
        ({"artifact": "", "accuracy": ""}, None),
        ({"artifact": "onnx-int8"}, ("onnx-int8", "")),
        ({"accuracy": "exact"}, ("", "exact")),
        ({"accuracy": "balanced"}, ("", "balanced")),
        ({"accuracy": "fast", "priority": 1}, ("", "fast")),
    ],
)
def test_what_a_caller_may_ask_for(read: Any, parameters: dict[str, Any], preference: Any) -> None:
    assert read(**parameters) == preference


@EDGES
@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"accuracy": "perfect"}, "must be one of exact, balanced, fast, and is 'perfect'"),
        ({"accuracy": 1}, "must be one of exact, balanced, fast, and is 1"),
        ({"artifact": True}, "must be the name of an artifact, and is True"),
        ({"artifact": "onnx", "accuracy": "fast"}, "are both given"),
    ],
)
def test_what_is_no_wish_is_refused_in_words(
    read: Any, parameters: dict[str, Any], reason: str
) -> None:
    with pytest.raises(InvalidRequestError, match=reason):
        read(**parameters)


@pytest.mark.parametrize(
    ("served", "artifact", "accuracy", "found"),
    [
        (EXACT, "small", "", "small"),
        (EXACT, "default", "", "default"),
        (EXACT, "", "exact", "default"),
        (EXACT, "", "balanced", "half"),
        (EXACT, "", "fast", "small"),
        (QUICK, "", "exact", "whole"),
        (QUICK, "", "balanced", "whole"),
        (QUICK, "", "fast", "default"),
    ],
)
def test_the_artifact_that_a_wish_means(
    served: ServedVersion, artifact: str, accuracy: str, found: str
) -> None:
    assert find_artifact(served, ArtifactPreference(artifact, accuracy)).name == found


@pytest.mark.parametrize(
    ("preference", "reason"),
    [
        (("big", ""), r"artifact 'big' of model 'm' version 1 is not loaded; loaded: default"),
        (("", "exact"), r"gives accuracy 'exact'; loaded: default \(int8\).*keep_artifacts=exact"),
        (("", "balanced"), r"keep_artifacts=balanced"),
    ],
)
def test_a_preference_that_no_loaded_artifact_meets_names_those_that_are_loaded(
    preference: tuple[str, str], reason: str
) -> None:
    with pytest.raises(UnknownArtifactError, match=reason):
        find_artifact(ROUGH, ArtifactPreference(*preference))
    assert UnknownArtifactError.http_status == 404


def test_an_accuracy_holds_for_the_steps_of_a_pipeline_which_has_no_artifact() -> None:
    pipeline = replace(version(), platform=PIPELINE_PLATFORM)
    assert find_lane(pipeline, None) == find_lane(pipeline, ArtifactPreference("", "exact")) == LANE
    words = "artifact 'onnx' was asked for, and model 'm' version 1 is a pipeline"
    with pytest.raises(UnknownArtifactError, match=words):
        find_lane(pipeline, ArtifactPreference("onnx", ""))


def test_only_what_is_faster_by_more_than_noise_is_faster() -> None:
    found = faster_artifact(EXACT, LANE)
    assert found is not None
    assert found.name == "small"
    assert faster_artifact(EXACT, found.lane) is None
    assert faster_artifact(QUICK, LANE) is None
    as_fast = version(known("default", "fp32", 4.0), known("small", "int8", 3.9))
    assert faster_artifact(as_fast, LANE) is None
    assert faster_artifact(version(), LANE) is None


class Gateway:
    """Admission over a queue; each lane ends on a shelf of its own."""

    def __init__(self, served: ServedVersion, *, degrades: bool) -> None:
        directory, self.queue, self.metrics = Directory(), MemoryQueue(MAX_DEPTH), Metrics("0")
        directory.announce(served)
        directory.make_live(LANE)
        self.shelves = {one.lane.artifact: Shelf() for one in served.artifacts}
        for one in served.artifacts:
            self.queue.open(one.lane, self.shelves[one.lane.artifact])
        self.admission = Admission(
            directory,
            self.queue,
            self.metrics,
            max_in_flight_requests=99,
            request_timeout_s=60,
            degrades=degrades,
        )
        self.heard: list[Outcome] = []

    def ask(self, artifact: str = "", accuracy: str = "") -> Any:
        preference = ArtifactPreference(artifact, accuracy) if artifact or accuracy else None
        tensor = InputTensor(name="x", datatype="FP32", array=np.ones((1, 1), np.float32))
        call = InferCall(
            request_id="r", model="m", version="", inputs=[tensor], preference=preference
        )
        return self.admission.infer(call, self.heard.append)

    def fill(self, artifact: str = "") -> None:
        """Fills a lane."""
        self.shelves[artifact].entries = [None] * MAX_DEPTH  # type: ignore[list-item]

    def answer(self, artifact: str) -> InferReply:
        """Makes the worker of a lane answer its only request."""
        lane = LANE._replace(artifact=artifact)
        (entry,) = self.shelves[artifact].entries
        assert entry.request.lane == lane
        entry.finish(reply(1, lane=lane))
        (outcome,) = self.heard
        assert isinstance(outcome, InferReply), outcome
        return outcome

    @property
    def degraded(self) -> float | None:
        return self.metrics.registry.get_sample_value(
            "flambeau_degraded_requests_total", {"model": "m", "version": "1"}
        )


@pytest.mark.parametrize("degrades", [False, True])
async def test_who_asks_for_nothing_is_told_nothing(degrades: bool) -> None:
    gateway = Gateway(EXACT, degrades=degrades)
    gateway.ask()
    outcome = gateway.answer("")
    assert (outcome.artifact, outcome.degraded) == ("", False)
    assert not gateway.degraded


@pytest.mark.parametrize(
    ("asked", "lane", "name"),
    [
        ({"artifact": "small"}, "small", "small"),
        ({"accuracy": "fast"}, "small", "small"),
        ({"accuracy": "exact"}, "", "default"),
        ({"artifact": "default"}, "", "default"),
    ],
)
async def test_who_asks_is_told_what_answered(asked: dict[str, str], lane: str, name: str) -> None:
    gateway = Gateway(EXACT, degrades=False)
    gateway.ask(**asked)
    outcome = gateway.answer(lane)
    assert (outcome.artifact, outcome.degraded) == (name, False)


@pytest.mark.parametrize("asked", [{}, {"accuracy": "balanced"}])
async def test_a_full_lane_degrades_and_the_reply_says_so(asked: dict[str, str]) -> None:
    gateway = Gateway(EXACT, degrades=True)
    for lane in ("", "half"):
        gateway.fill(lane)
    gateway.ask(**asked)
    outcome = gateway.answer("small")
    assert (outcome.artifact, outcome.degraded) == ("small", True)
    assert gateway.degraded == 1
    assert gateway.queue.unanswered == 0


async def test_a_deadline_out_of_reach_degrades() -> None:
    gateway = Gateway(EXACT, degrades=True)
    entry = gateway.ask()
    gateway.shelves[""].take().refuse(WouldMissDeadlineError("no time"))
    assert not entry.dead
    assert gateway.answer("small").degraded


@pytest.mark.parametrize(
    "asked", [{"accuracy": "exact"}, {"artifact": "default"}, {"artifact": "half"}]
)
async def test_who_insists_is_refused(asked: dict[str, str]) -> None:
    gateway = Gateway(EXACT, degrades=True)
    for lane in ("", "half"):
        gateway.fill(lane)
    gateway.ask(**asked)
    assert [type(outcome) for outcome in gateway.heard] == [QueueFullError]
    assert not gateway.shelves["small"].entries


async def test_a_server_that_refuses_does_not_degrade() -> None:
    gateway = Gateway(EXACT, degrades=False)
    gateway.fill()
    gateway.ask()
    assert [type(outcome) for outcome in gateway.heard] == [QueueFullError]


async def test_nothing_faster_with_room_means_a_refusal() -> None:
    gateway = Gateway(EXACT, degrades=True)
    for lane in ("", "small"):
        gateway.fill(lane)
    gateway.ask()
    quick = Gateway(QUICK, degrades=True)
    quick.fill()
    quick.ask()
    for heard in (gateway.heard, quick.heard):
        assert [type(outcome) for outcome in heard] == [QueueFullError]
    assert gateway.queue.unanswered == quick.queue.unanswered == 0


async def test_a_degraded_request_keeps_its_deadline() -> None:
    gateway = Gateway(EXACT, degrades=True)
    entry = gateway.ask()
    deadline = entry.deadline
    gateway.shelves[""].take().refuse(QueueFullError("full"))
    (moved,) = gateway.shelves["small"].entries
    assert moved is entry
    assert moved.deadline == deadline
    entry.expire()
    assert not gateway.shelves["small"].entries
    assert len(gateway.heard) == 1
    assert isinstance(gateway.heard[0], ServingError)


@pytest.mark.parametrize(
    ("artifact", "degraded", "said"),
    [
        ("", False, None),
        ("onnx", False, {"artifact": "onnx"}),
        ("onnx-int8", True, {"artifact": "onnx-int8", "degraded": True}),
    ],
)
def test_what_a_reply_says(artifact: str, degraded: bool, said: dict[str, Any] | None) -> None:
    told = reply_of(reply(1).outputs, artifact=artifact, degraded=degraded)
    for asked in (RestRequest(inputs=[]), RestRequest(inputs=[], id="7", binary_by_default=True)):
        body = encode(told, asked)
        document = orjson.loads(b"".join(body.parts)[: body.json_length])
        assert document.get("parameters") == said
        assert document["outputs"][0]["name"] == "y"
    message = grpc_codec.encode(told, pb.ModelInferRequest())
    found = {n: getattr(p, p.WhichOneof("parameter_choice")) for n, p in message.parameters.items()}
    assert found == (said or {})
