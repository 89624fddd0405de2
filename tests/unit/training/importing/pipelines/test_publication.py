"""Publishing pipelines: graphs from YAML and from Python, their golden outputs, and refusals."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import flambeau
from flambeau.publishing.errors import ExampleError
from flambeau.publishing.pipeline import stage_pipeline
from model_store.errors import PipelinePartError, StoreError
from model_store.golden import read_golden
from model_store.store import ModelStore
from tests.fixtures import shaped_models
from tests.fixtures.onnx_models import batch_rows, lookup, publish
from tests.fixtures.pipelines import (
    READER,
    ROWS,
    TEXT_GRAPH,
    TEXT_SCORES,
    TEXTS,
    publish_graph,
    publish_parts,
    publish_words,
    right,
)
from training.errors import DataError, NothingProvenError, RecipeError
from training.importing.pipelines.pipeline_source import read_pipeline
from training.importing.pipelines.publication import PublicationOptions, publish_pipeline
from training.importing.pipelines.request import publish_request, read_pipeline_request

ABOUT = ("model", "store", "gates", "alias", "metadata", "bump")
TEXT = """
steps:
  - {name: find, model: finder, inputs: {x: input.x}}
  - name: score
    model: scorer@~1.0
    for_each: find.crops
    where: find.found
    inputs: {crop: find.crops}
outputs: {scores: score.score, found: find.found}
"""


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    publish_parts(str(tmp_path / "store"))
    return ModelStore(str(tmp_path / "store"))


def test_a_yaml_file_becomes_a_version_with_recorded_outputs(
    store: ModelStore, tmp_path: Path
) -> None:
    (tmp_path / "reader.yaml").write_text(TEXT)
    pipeline = read_pipeline(tmp_path / "reader.yaml", store)
    assert pipeline.graph.models() == ("finder@^1", "scorer@~1.0")  # a range for the name alone
    said: list[str] = []
    manifest = publish_pipeline(store, "reader", pipeline, ROWS, say=said.append)
    golden = read_golden(store, manifest)
    np.testing.assert_array_equal(golden.outputs["scores"], right(ROWS["x"]))
    assert manifest.pipeline is not None
    assert set(manifest.pipeline.tolerance.gates) == {"scores", "found"}
    assert [entry.file for entry in manifest.files] == ["pipeline.yaml"]
    assert said == ["running 2 steps on 3 rows", "publishing reader"]


def test_a_pipeline_in_python_is_staged_and_published(store: ModelStore, tmp_path: Path) -> None:
    pipeline = flambeau.Pipeline(
        steps=[
            flambeau.Step("find", "finder@production", {"x": "input.x"}),
            flambeau.Step(
                "score", "scorer", {"crop": "find.crops"}, for_each="find.crops", where="find.found"
            ),
        ],
        outputs={"scores": "score.score"},
    )
    store.promote("finder", 1)
    about = {
        "model": "reader", "store": store.url, "alias": "canary", "metadata": {"team": "a"},
        "bump": None, "gates": {"scores": {"absolute": 0.5}}, "artifacts": "auto",
    }  # fmt: skip
    stage_pipeline(pipeline, ROWS, tmp_path, about)
    request = read_pipeline_request(tmp_path)
    assert request is not None
    result = publish_request(request, tmp_path, lambda _: None, None)
    assert result["alias"] == "canary"
    manifest = store.manifest("reader", result["version"])
    assert manifest.pipeline is not None
    assert manifest.pipeline.graph.models() == ("finder@^1", "scorer@^1")
    assert manifest.pipeline.tolerance.gates["scores"].absolute == 0.5
    assert manifest.metadata == {"team": "a"}
    pointers = store.pointers("reader")
    assert pointers is not None
    assert pointers.aliases == {"canary": 1}


def test_a_python_model_is_a_step(store: ModelStore) -> None:
    publish_words(store.url)
    manifest = publish_pipeline(store, "texts", read_pipeline(TEXT_GRAPH, store), TEXTS)
    outputs = read_golden(store, manifest).outputs
    assert outputs["scores"][..., 0].tolist() == TEXT_SCORES


def test_a_step_leaves_out_an_optional_input(store: ModelStore) -> None:
    shaped_models.publish(store.url, "biased")  # y = x + 1, 2, 3
    graph = {
        "steps": [{"name": "bias", "model": "biased", "inputs": {"x": "input.x"}}],
        "outputs": {"y": "bias.y"},
    }
    rows = {"x": np.ones((2, 3), np.float32)}
    manifest = publish_pipeline(store, "reader", read_pipeline(graph, store), rows)
    np.testing.assert_array_equal(read_golden(store, manifest).outputs["y"], [[2, 3, 4]] * 2)


def test_a_request_about_a_model_is_none_about_a_pipeline(tmp_path: Path) -> None:
    (tmp_path / "request.json").write_text(json.dumps({"model": "m"}))
    assert read_pipeline_request(tmp_path) is None


@pytest.mark.parametrize("examples", [np.zeros(3), {}, []])
def test_examples_are_arrays_by_name(tmp_path: Path, examples: Any) -> None:
    pipeline = flambeau.Pipeline([], {})
    with pytest.raises(ExampleError, match="give arrays by input name"):
        stage_pipeline(pipeline, examples, tmp_path, dict.fromkeys(ABOUT))


@pytest.mark.parametrize(
    ("text", "error", "words"),
    [
        ("steps: [", RecipeError, "cannot be read"),
        ("[1]", RecipeError, "write steps: and outputs:"),
        ("steps: []\noutputs: {}", RecipeError, "at least 1"),
        (TEXT.replace("where:", "were:"), RecipeError, "(did you mean 'where'?)"),
        (TEXT.replace("input.x", "score.score"), RecipeError, "the steps form a cycle"),
        (TEXT.replace("finder", "findr"), StoreError, "step 'find' names findr: "),
        (TEXT.replace("~1.0", "canary"), StoreError, "step 'score' names scorer@canary: "),
        (TEXT + "#" * 2**20, RecipeError, "is larger than"),
    ],
)
def test_a_file_that_is_no_pipeline_is_refused(
    store: ModelStore, tmp_path: Path, text: str, error: type[Exception], words: str
) -> None:
    path = tmp_path / "reader.yaml"
    path.write_text(text)
    with pytest.raises(error) as caught:
        read_pipeline(path, store)
    assert words in str(caught.value)
    with pytest.raises(RecipeError, match="cannot be read"):
        read_pipeline(tmp_path / "absent.yaml", store)


@pytest.mark.parametrize(
    ("examples", "words"),
    [
        ({"y": ROWS["x"]}, "the examples have ['y'], and the pipeline takes ['x']"),
        ({"x": ROWS["x"].astype(np.float64)}, "'x' is FP64 [3, 4], and the pipeline takes FP32"),
        ({"x": ROWS["x"][:, :3]}, "'x' is FP32 [3, 3]"),
        ({"x": ROWS["x"][:0]}, "at least 1"),
    ],
)
def test_examples_that_do_not_fit_are_refused(
    store: ModelStore, examples: dict[str, Any], words: str
) -> None:
    with pytest.raises(DataError) as caught:
        publish_pipeline(store, "reader", read_pipeline(READER, store), examples)
    assert words in str(caught.value)


@pytest.mark.parametrize("gates", [{"score": {"absolute": 1}}, "own.py:gate"])
def test_gates_that_no_server_can_keep_are_refused(store: ModelStore, gates: object) -> None:
    options = PublicationOptions(gates=gates)
    with pytest.raises(RecipeError, match="gates"):
        publish_pipeline(store, "reader", read_pipeline(READER, store), ROWS, options)
    assert "reader" not in store.models()


def lookups(model: str, output: str) -> dict[str, Any]:
    name = "index" if model == "lookup" else "x"
    inputs = {name: f"input.{name}"}
    return {
        "steps": [{"name": "a", "model": f"{model}@^1", "inputs": inputs}],
        "outputs": {output: f"a.{output}"},
    }


def test_a_step_that_fails_on_the_examples_is_named(store: ModelStore) -> None:
    publish(store.url, "lookup", lookup())
    pipeline = read_pipeline(lookups("lookup", "value"), store)
    with pytest.raises(NothingProvenError, match="does not run on the examples") as caught:
        publish_pipeline(store, "p", pipeline, {"index": np.array([99])})
    assert "step 'a'" in str(caught.value)


def test_a_row_that_depends_on_the_others_is_refused(store: ModelStore) -> None:
    one = {"x": np.ones((1, 4), np.float32)}
    publish(store.url, "rows", batch_rows(), golden=one)
    pipeline = read_pipeline(lookups("rows", "rows"), store)
    with pytest.raises(NothingProvenError, match="each row independent of the others"):
        publish_pipeline(store, "p", pipeline, {"x": np.ones((2, 4), np.float32)})


def test_a_pipeline_of_pipelines_is_refused(store: ModelStore) -> None:
    publish_graph(store.url)
    graph = {
        "steps": [{"name": "inner", "model": "reader", "inputs": {"x": "input.x"}}],
        "outputs": {"scores": "inner.scores"},
    }
    with pytest.raises(PipelinePartError, match="write its steps into this one"):
        publish_pipeline(store, "outer", read_pipeline(graph, store), ROWS)
