"""The plan of a pipeline: the lane of each step, by the accuracy that a request asks for."""

from dataclasses import replace

import pytest

from services.errors import ModelNotReadyError, UnknownArtifactError
from services.queueing.records import Lane, ServedArtifact
from tests.fixtures.pipeline_parts import PipelineParts
from tests.fixtures.queue_ends import Shelf

EXACT = Lane("b", 1, "exact")


def parts_with(precision: str) -> PipelineParts:
    """Returns parts that are all fp32, but for one that has a second artifact."""
    parts = PipelineParts()
    for served in list(parts.directory.all_versions()):
        lane = served.lane
        own = ServedArtifact(
            name="onnx", precision="int8" if lane.model == "b" else "fp32",
            accuracy_loss=0.1, row_ms=1.0, lane=lane,
        )  # fmt: skip
        further = replace(own, name="exact", precision=precision, row_ms=3.0, lane=EXACT)
        both = (own, further) if lane.model == "b" else (own,)
        parts.directory.announce(replace(served, artifacts=both))
    return parts


def test_each_step_runs_on_an_artifact_that_gives_the_accuracy() -> None:
    parts = parts_with("fp32")
    parts.workers[EXACT] = Shelf()
    lanes = {step.name: step.lane for step in parts.planner.plan("exact").steps}
    assert lanes["left"] == EXACT
    assert lanes["right"] == Lane("c", 1)
    lanes = {step.name: step.lane for step in parts.planner.plan().steps}
    assert lanes["left"] == Lane("b", 1)
    assert parts.planner.plan("exact") is parts.planner.plan("exact")


def test_a_part_without_such_an_artifact_is_named_with_its_step() -> None:
    planner = parts_with("int8").planner
    for _ in range(2):  # a refusal is kept as a plan is, and is raised as an error of its own
        with pytest.raises(UnknownArtifactError, match=r"step 'left': no artifact .* 'exact'"):
            planner.plan("exact")
    assert planner.plan("fast").steps


def test_an_artifact_that_is_being_unloaded_is_not_ready() -> None:
    with pytest.raises(ModelNotReadyError, match=r"step 'left': .* is being unloaded; try again"):
        parts_with("fp32").planner.plan("exact")
