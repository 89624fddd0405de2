"""Parts of pipelines in a store: what is refused when a pipeline or a part is published."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from model_store.errors import BumpTooSmallError, ManifestError, PipelinePartError
from model_store.manifest import parse_manifest
from model_store.pipelines.parts import answers_alike
from model_store.store import ModelStore
from tests.fixtures.onnx_models import finder, linear, publish, scorer
from tests.fixtures.pipelines import READER, ROWS, publish_graph, publish_parts
from tests.fixtures.store_versions import artifact_in, draft_in


@pytest.fixture
def url(tmp_path: Path) -> str:
    publish_parts(str(tmp_path / "store"))
    return str(tmp_path / "store")


def with_model(number: int, model: str) -> dict[str, Any]:
    """Returns the graph with another model in one of its steps."""
    steps = [dict(step) for step in READER["steps"]]
    steps[number]["model"] = model
    return {**READER, "steps": steps}


def test_a_pipeline_is_a_version_without_artifacts(url: str) -> None:
    manifest = publish_graph(url)
    assert manifest.artifacts == ()
    assert manifest.pipeline is not None
    assert manifest.pipeline.recorded_with == {"finder@^1": "1.0.0", "scorer@^1": "1.0.0"}
    assert ModelStore(url).manifest("reader", 1) == manifest
    assert parse_manifest(manifest.to_json(), "here").to_json() == manifest.to_json()


def test_a_manifest_that_lacks_a_recorded_version_is_refused_by_name(url: str) -> None:
    data = publish_graph(url).to_json().replace(b'"finder@^1": "1.0.0"', b'"other@^1": "1.0.0"')
    with pytest.raises(ManifestError, match=r"recorded_with lacks 'finder@\^1'"):
        parse_manifest(data, "here")


def test_a_manifest_without_a_pipeline_has_no_such_key(url: str) -> None:
    assert b"pipeline" not in ModelStore(url).manifest("finder", 1).to_json()


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (with_model(1, "scorer@^2"), "step 'score' names scorer@^2: no version of 'scorer' fits"),
        (with_model(1, "scorer@9"), "step 'score' names scorer@9: model 'scorer' has no version 9"),
        (with_model(1, "scorr@^1"), "step 'score' names scorr@^1: "),
        (with_model(1, "finder@^1"), "step 'score': finder@^1 has no input 'crop'"),
    ],
)
def test_a_part_that_is_missing_or_does_not_fit_is_refused(
    url: str, graph: dict[str, Any], words: str
) -> None:
    with pytest.raises(PipelinePartError) as caught:
        publish_graph(url, graph=graph)
    assert words in str(caught.value)
    assert "reader" not in ModelStore(url).models()


def test_a_pipeline_of_pipelines_is_refused(url: str) -> None:
    publish_graph(url)
    outer = {
        "steps": [{"name": "inner", "model": "reader@^1", "inputs": {"x": "input.x"}}],
        "outputs": {"scores": "inner.scores"},
    }
    with pytest.raises(PipelinePartError, match=r"step 'inner' names reader@\^1, which is a pipe"):
        publish_graph(url, "outer", outer)


def test_a_pipeline_does_not_contain_itself(url: str) -> None:
    with pytest.raises(PipelinePartError, match="the pipeline itself"):
        publish_graph(url, "finder")


def test_a_model_that_becomes_a_pipeline_leaves_the_ranges_of_other_pipelines(url: str) -> None:
    same = {
        "steps": [{"name": "again", "model": "scorer@^1", "inputs": {"crop": "input.crop"}}],
        "outputs": {"score": "again.score"},
    }
    publish(url, "other", scorer(), max_batch_size=8)
    second = publish_graph(url, "other", same, {"crop": np.ones((2, 1), np.float32)})
    assert second.semver == "2.0.0"


def test_a_part_with_other_tensors_is_a_major_version_outside_the_range(
    url: str, tmp_path: Path
) -> None:
    publish_graph(url)
    assert publish(url, "scorer", linear(), max_batch_size=8).semver == "2.0.0"
    assert publish_graph(url).semver == "1.1.0"  # with the version that still fits
    draft = draft_in(tmp_path / "draft", "scorer")
    with pytest.raises(BumpTooSmallError, match="takes a major one") as caught:
        ModelStore(url).publish(draft, tmp_path / "draft", bump="minor")
    words = "It would break these pipelines: reader (scorer@^1). They go on with the versions"
    assert words in str(caught.value)
    assert ModelStore(url).versions("scorer") == [1, 2]


def test_a_damaged_pipeline_does_not_hide_the_refusal_of_a_part(url: str, tmp_path: Path) -> None:
    publish_graph(url)
    publish_graph(url, "second")
    (Path(url) / "reader/1/manifest.json").write_text("{")
    draft = draft_in(tmp_path / "draft", "scorer")
    with pytest.raises(BumpTooSmallError, match=r"these pipelines: second \(scorer@\^1\)\. They"):
        ModelStore(url).publish(draft, tmp_path / "draft", bump="patch")


def test_a_refusal_without_pipelines_speaks_of_none(url: str, tmp_path: Path) -> None:
    draft = draft_in(tmp_path / "draft", "scorer")
    with pytest.raises(BumpTooSmallError) as caught:
        ModelStore(url).publish(draft, tmp_path / "draft", bump="minor")
    assert "pipelines" not in str(caught.value)


def test_a_part_with_other_weights_stays_in_the_range(url: str) -> None:
    publish_graph(url)
    assert publish(url, "scorer", scorer(3.0), max_batch_size=8).semver == "1.1.0"
    manifest = publish_graph(url)
    assert manifest.pipeline is not None
    assert manifest.pipeline.recorded_with["scorer@^1"] == "1.1.0"
    assert manifest.semver == "1.1.0"  # other answers


@pytest.mark.parametrize(
    ("recorded", "alike"), [("1.4.0", True), ("1.4.7", True), ("1.3.9", False), ("2.4.1", False)]
)
def test_versions_of_one_minor_number_answer_alike(url: str, recorded: str, alike: bool) -> None:
    manifest = ModelStore(url).manifest("finder", 1).model_copy(update={"semver": "1.4.1"})
    assert answers_alike(recorded, manifest) is alike


def test_a_version_without_a_semantic_one_answers_like_itself(url: str) -> None:
    manifest = ModelStore(url).manifest("finder", 1).model_copy(update={"semver": None})
    assert answers_alike("1", manifest)
    assert not answers_alike("2", manifest)


def test_a_pipeline_has_no_artifact_of_its_own(url: str, tmp_path: Path) -> None:
    manifest = publish_graph(url)
    with pytest.raises(ValueError, match="a pipeline has no artifacts"):
        type(manifest).model_validate({**dict(manifest), "artifacts": (artifact_in(tmp_path),)})
    with pytest.raises(ValueError, match="give at least 1 of them"):
        type(manifest).model_validate({**dict(manifest), "pipeline": None})


def test_a_pipeline_of_other_tensors_than_its_parts_is_refused(url: str, tmp_path: Path) -> None:
    manifest = publish_graph(url, rows=ROWS)
    draft = draft_in(tmp_path / "draft", "reader").model_copy(
        update={"pipeline": manifest.pipeline, "artifacts": ()}
    )
    with pytest.raises(PipelinePartError, match="other tensors than its draft has"):
        ModelStore(url).publish(draft, tmp_path / "draft")


def test_the_parts_of_a_pipeline_may_be_named_twice(url: str) -> None:
    publish(url, "finder", finder(), max_batch_size=8)
    graph = {
        "steps": [
            {"name": "one", "model": "finder@1", "inputs": {"x": "input.x"}},
            {"name": "two", "model": "finder@^1", "inputs": {"x": "input.x"}},
        ],
        "outputs": {"a": "one.found", "b": "two.found"},
    }
    manifest = publish_graph(url, "twice", graph)
    assert manifest.pipeline is not None
    assert len(manifest.pipeline.recorded_with) == 2
