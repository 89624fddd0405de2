"""Steps that are code of the pipeline's own: published with it, verified on its examples."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from typer.testing import CliRunner

import flambeau
from flambeau.cli import app
from flambeau.publishing.errors import ExampleError, PublishError
from flambeau.publishing.pipeline import stage_pipeline
from model_store.errors import BadNameError, BumpTooSmallError, StorageError
from model_store.golden import read_golden
from model_store.manifest import Manifest
from model_store.pipelines.graph import Pipeline
from model_store.store import ModelStore
from tests.fixtures.pipelines import ROWS, publish_parts, right, scored
from training.errors import DataError, RecipeError, TrainingError
from training.importing.pipelines.pipeline_source import read_pipeline
from training.importing.pipelines.publication import PublicationOptions, publish_pipeline
from training.importing.pipelines.request import publish_request, read_pipeline_request

CODE = """
import numpy as np

class Double:
    def infer(self, inputs):
        return {"x": inputs["x"] * np.float32(2)}

class Sum:
    def infer(self, inputs):
        return {"sum": inputs["item"].sum(1) + inputs["row"].sum(1)}

class Broken:
    def infer(self, inputs):
        raise ValueError("no such word")

class Counts:
    calls = 0
    def infer(self, inputs):
        self.calls += 1
        return {"x": inputs["x"] + np.float32(self.calls)}
"""
DOUBLED: dict[str, Any] = {
    "steps": [
        {"name": "double", "python": "code.py:Double", "inputs": {"x": "input.x"}},
        {"name": "find", "model": "finder@^1", "inputs": {"x": "double.x"}},
        scored("find.crops"),
    ],
    "outputs": {"scores": "score.score"},
}


def tripled(inputs: dict[str, Any]) -> dict[str, Any]:
    """Returns three times an input."""
    return {"x": inputs["x"] * np.float32(3)}


class Names:
    """Gives each item the name of its score."""

    def load(self, context: Any) -> None:
        self.unit = context.args["unit"]
        self.mark = context.files["mark.txt"].read_text()

    def infer(self, inputs: dict[str, Any]) -> dict[str, Any]:
        texts = [f"{float(score[0]):g}{self.unit}{self.mark}" for score in inputs["score"]]
        return {"text": np.array([text.encode() for text in texts], object)}


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    publish_parts(str(tmp_path / "store"))
    (tmp_path / "code.py").write_text(CODE)
    return ModelStore(str(tmp_path / "store"))


def graph_of(manifest: Manifest) -> Pipeline:
    assert manifest.pipeline is not None
    return manifest.pipeline.graph


def published(
    store: ModelStore,
    folder: Path,
    graph: dict[str, Any] = DOUBLED,
    options: PublicationOptions | None = None,
) -> Manifest:
    return publish_pipeline(store, "reader", read_pipeline(graph, store, folder), ROWS, options)


def one_step(**keys: Any) -> dict[str, Any]:
    """Returns a pipeline of one step of code."""
    step = {"name": "own", "python": "code.py:Double", "inputs": {"x": "input.x"}, **keys}
    return {"steps": [step], "outputs": {"x": "own.x"}}


def test_a_class_and_a_function_are_steps(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "mark.txt").write_text("!")
    pipeline = flambeau.Pipeline(
        steps=[
            flambeau.Step("triple", tripled, {"x": "input.x"}),
            flambeau.Step("find", "finder", {"x": "triple.x"}),
            flambeau.Step(
                "score", "scorer", {"crop": "find.crops"}, for_each="find.crops", where="find.found"
            ),
            flambeau.Step(
                "name", Names, {"score": "score.score"}, for_each="score.score",
                where="find.found", args={"unit": "m"}, files=[tmp_path / "mark.txt"],
            ),
        ],
        outputs={"names": "name.text", "scores": "score.score"},
    )  # fmt: skip
    about = dict.fromkeys(("gates", "bump", "alias")) | {"store": store.url, "metadata": {}}
    folder = tmp_path / "request"
    folder.mkdir()
    stage_pipeline(pipeline, ROWS, folder, about | {"model": "reader"})
    request = read_pipeline_request(folder)
    assert request is not None
    publish_request(request, folder, lambda _: None, None)
    manifest = store.manifest("reader", 1)
    models = ("reader.triple@1", "finder@^1", "scorer@^1", "reader.name@1")
    assert graph_of(manifest).models() == models
    golden = read_golden(store, manifest).outputs
    np.testing.assert_array_equal(golden["scores"], right(3 * ROWS["x"]))
    assert golden["names"][0].tolist() == [b"31m!", b"", b"61m!", b""]
    own = store.manifest("reader.name", 1)
    assert own.artifacts[0].kind == "python"
    assert [spec.datatype for spec in own.signature.outputs] == ["BYTES"]
    function = store.manifest("reader.triple", 1).artifacts[0].python
    assert function is not None
    assert function.name == "tripled"
    listed = ["models", "list", "--store", store.url]
    assert "reader." not in CliRunner().invoke(app, listed).output
    assert "reader.triple " in CliRunner().invoke(app, [*listed, "--all"]).output


def test_a_file_names_code_beside_it(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "reader.yaml").write_text(yaml.safe_dump(DOUBLED))
    said: list[str] = []
    source = read_pipeline(tmp_path / "reader.yaml", store)
    manifest = publish_pipeline(store, "reader", source, ROWS, say=said.append)
    outputs = read_golden(store, manifest).outputs
    np.testing.assert_array_equal(outputs["scores"], right(2 * ROWS["x"]))
    assert "step 'double': verifying python" in said


def test_each_version_of_a_pipeline_has_its_own_code(store: ModelStore, tmp_path: Path) -> None:
    published(store, tmp_path)
    (tmp_path / "code.py").write_text(CODE.replace("float32(2)", "float32(4)"))
    second = published(store, tmp_path)
    assert graph_of(second).models()[0] == "reader.double@2"
    outputs = read_golden(store, store.manifest("reader", 1)).outputs
    np.testing.assert_array_equal(outputs["scores"], right(2 * ROWS["x"]))
    outputs = read_golden(store, second).outputs
    np.testing.assert_array_equal(outputs["scores"], right(4 * ROWS["x"]))


def test_items_and_their_row_are_inputs_of_code(store: ModelStore, tmp_path: Path) -> None:
    graph = {
        "steps": [
            DOUBLED["steps"][1] | {"inputs": {"x": "input.x"}},
            {
                "name": "sum",
                "python": "code.py:Sum",
                "for_each": "find.crops",
                "where": "find.found",
                "inputs": {"item": "find.crops", "row": "input.x"},
            },
        ],
        "outputs": {"sum": "sum.sum"},
    }
    manifest = published(store, tmp_path, graph)
    sums = read_golden(store, manifest).outputs["sum"]
    x = ROWS["x"]
    np.testing.assert_array_equal(sums, np.where(x > 0, x + x.sum(1, keepdims=True), 0))
    specs = {spec.name: spec.shape for spec in store.manifest("reader.sum", 1).signature.inputs}
    assert specs == {"item": (-1, 1), "row": (-1, 4)}


def test_code_is_signed_like_its_pipeline(store: ModelStore, tmp_path: Path) -> None:
    signed: list[dict[str, str]] = []

    def sign(digests: Any) -> bytes:
        signed.append(dict(digests))
        return b"signature"

    published(store, tmp_path, options=PublicationOptions(sign=sign))
    assert ["python.py" in digests or "model.py" in digests for digests in signed] == [True, False]
    assert store.signature("reader.double", 1) == b"signature"


def test_a_refused_pipeline_leaves_no_code_behind(store: ModelStore, tmp_path: Path) -> None:
    published(store, tmp_path)
    (tmp_path / "code.py").write_text(CODE.replace("float32(2)", "float32(4)"))
    with pytest.raises(BumpTooSmallError):
        published(store, tmp_path, options=PublicationOptions(bump="patch"))
    assert store.versions("reader") == [1]
    assert store.versions("reader.double") == [1]
    assert graph_of(published(store, tmp_path)).models()[0] == "reader.double@3"


class Unsure(ModelStore):
    """A store whose answer to the publication of a pipeline is lost."""

    def publish(self, *arguments: Any, **options: Any) -> Manifest:
        manifest = super().publish(*arguments, **options)
        if manifest.pipeline is not None:
            raise StorageError("the connection was closed")
        return manifest


def test_code_of_a_pipeline_that_exists_after_all_stays(store: ModelStore, tmp_path: Path) -> None:
    with pytest.raises(StorageError):
        published(Unsure(store.url), tmp_path)
    assert graph_of(store.manifest("reader", 1)).models()[0] == "reader.double@1"
    assert store.versions("reader.double") == [1]


@pytest.mark.parametrize(
    ("graph", "error", "words"),
    [
        (one_step(model="finder@^1"), RecipeError, "has a model and python"),
        (one_step(python="code.py"), RecipeError, "write file.py:Class"),
        (one_step(python="code.py:Other"), TrainingError, "step 'own': class Other cannot be"),
        (one_step(python="absent.py:Own"), TrainingError, "step 'own': cannot read"),
        (one_step(args=3), RecipeError, "step 'own': 'args' is 3"),
        (one_step(files=["a/x.txt", "b/x.txt"]), RecipeError, "two of its files have one name"),
        (one_step(files=["absent.txt"]), TrainingError, "'absent.txt' is to be read from"),
        (one_step(python="code.py:Broken"), TrainingError, "step 'own': .*no such word"),
        (one_step(python="code.py:Counts"), TrainingError, "step 'own': .*differs between two"),
        (one_step(inputs={"x": "input.z"}), DataError, "it reads 'input.z', and the examples"),
        (one_step(for_each="input.x", inputs={"y": "input.x"}), TrainingError, "step 'own'"),
        (one_step(name="own " * 9), RecipeError, "name"),
    ],
)
def test_code_that_cannot_be_a_step_is_refused_by_its_name(
    store: ModelStore, tmp_path: Path, graph: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        published(store, tmp_path, graph)
    assert set(store.models()) == {"finder", "scorer"}


def test_code_that_no_example_reaches_is_refused(store: ModelStore, tmp_path: Path) -> None:
    graph = {
        "steps": [
            DOUBLED["steps"][1] | {"inputs": {"x": "input.x"}},
            one_step(for_each="find.crops", where="find.found", inputs={"x": "find.crops"})[
                "steps"
            ][0],
        ],
        "outputs": {"x": "own.x"},
    }
    source = read_pipeline(graph, store, tmp_path)
    with pytest.raises(DataError, match="step 'own': the examples give it no row to run on"):
        publish_pipeline(store, "reader", source, {"x": -ROWS["x"][2:]})


def test_a_step_before_code_that_fails_is_named(store: ModelStore, tmp_path: Path) -> None:
    graph = one_step(inputs={"x": "find.crops"})
    graph["steps"].append(DOUBLED["steps"][1] | {"inputs": {"x": "input.x"}})
    source = read_pipeline(graph, store, tmp_path)
    with pytest.raises(DataError, match="the example 'x' is FP64"):
        publish_pipeline(store, "reader", source, {"x": ROWS["x"].astype(np.float64)})


def test_the_name_of_a_step_is_part_of_a_name_of_the_store(
    store: ModelStore, tmp_path: Path
) -> None:
    source = read_pipeline(DOUBLED, store, tmp_path)
    with pytest.raises(BadNameError):
        publish_pipeline(store, "r" * 125, source, ROWS)


@pytest.mark.parametrize(
    ("model", "options", "error", "words"),
    [
        (dict, {}, ExampleError, "its model is the class dict; give a model of the store"),
        (3, {}, ExampleError, "its model is a int"),
        (lambda image, mask: {}, {}, ExampleError, "all inputs by name"),
        ("finder", {"args": {"a": 1}}, PublishError, "args and files are for a class"),
        (tripled, {"files": ["x"]}, PublishError, "args and files are for a class"),
    ],
)
def test_what_is_no_step_is_refused_where_it_is_written(
    model: Any, options: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        flambeau.Step("own", model, {"x": "input.x"}, **options)
