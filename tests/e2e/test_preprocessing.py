"""Raw inputs, from the recipe to a client: text through a Python step, images as integers."""

import io
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from model_store.errors import SignatureMissingError
from model_store.golden import parse_golden
from model_store.store import ModelStore
from services.inference.loading.loader import LoadOptions, load_version
from services.inference.trust import Trust
from tests.e2e.rest_calls import call, infer, tensor
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.triton_client import TritonClient, TritonError
from tests.fixtures.word_counter import WORDS
from training.data_sets.digits import as_raw
from training.pipeline import run
from training.recipe.file import load_recipe
from training.recipe.recipe import Recipe

ROOT = Path(__file__).parents[2]
KINDS = ["sun", "rain", "frost"]
TEXTS = ("Sunny, warm!", "rain; then a STORM", "ice")


def text_recipe() -> Recipe:
    counter = "tests/fixtures/word_counter.py:WordCounter"
    return Recipe.model_validate(
        {
            "name": "forecast",
            "model": {"target": "torch.nn:Linear", "args": {"in_features": 6, "out_features": 3}},
            "data": {"target": "tests.fixtures.word_counter:forecasts", "batch_size": 16},
            "preprocess": [
                {"python": {"target": counter, "args": {"words": list(WORDS)}}},
                {"scale": {"factor": 0.5}},
            ],
            "labels": {"logits": KINDS},
            "optim": {"adamw": {"lr": 0.1}},
            "train": {"epochs": 6, "threads": 1},
            "track": [],
            "export": [{"kind": "onnx"}],
            "publish": {"model": "forecast"},
        }
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Trains `forecast`, which takes text, and `digits-raw`, which takes integer images."""
    folder = tmp_path_factory.mktemp("raw")
    raw = load_recipe(
        str(ROOT / "training/recipes/digits_raw.yaml"),
        ["train.epochs=2", "model.args.width=8", "export=[{kind: onnx}]", "track=[]"],
    )
    for recipe in (text_recipe(), raw):
        console = Console(file=io.StringIO())
        run(recipe, str(folder / "store"), folder / "runs", console=console)
    return folder / "store"


@pytest.fixture(scope="module")
def server(store: Path) -> Iterator[ServerProcess]:
    """Runs each model, with its Python step, in a process of its own."""
    with running_server(store, isolate=True) as server:
        yield server


def by_tritonclient(server: ServerProcess, protocol: str, *texts: str) -> list[str]:
    kind, address = ("http", server.http) if protocol == "REST" else ("grpc", server.grpc)
    given = np.array([text.encode() for text in texts], object)
    with TritonClient(kind, address) as client:
        logits = client.infer("forecast", {"text": given}).outputs["logits"]
    return [KINDS[place] for place in logits.argmax(axis=1)]


@pytest.mark.parametrize("protocol", ["REST", "gRPC"])
def test_text_is_answered(server: ServerProcess, protocol: str) -> None:
    assert by_tritonclient(server, protocol, *TEXTS) == KINDS
    assert by_tritonclient(server, protocol, TEXTS[2]) == ["frost"]


def test_json_strings_are_answered(server: ServerProcess) -> None:
    reply = infer(server, "forecast", tensor("text", "BYTES", [3], list(TEXTS)))
    logits = np.array(reply.outputs()["logits"]).reshape(3, 3)
    assert logits.argmax(axis=1).tolist() == [0, 1, 2]


def test_text_that_the_step_refuses_is_the_callers_fault(server: ServerProcess) -> None:
    refused = infer(server, "forecast", tensor("text", "BYTES", [1], ["..."]))
    assert refused.status == 400
    assert "does not take this input: text '...' has no words; send at least" in refused.error()
    with pytest.raises(TritonError, match="has no words") as caught:
        by_tritonclient(server, "gRPC", "...")
    assert caught.value.status == "StatusCode.INVALID_ARGUMENT"
    failed = infer(server, "forecast", tensor("text", "BYTES", [1], ["explode"]))
    assert (failed.status, "the step exploded" in failed.error()) == (500, True)
    assert by_tritonclient(server, "REST", *TEXTS) == KINDS


def test_raw_images_of_any_size_are_answered_and_named(server: ServerProcess) -> None:
    inputs, labels = as_raw(seed=0, side=16)["test"]
    with TritonClient("http", server.http) as client:
        for rows in (inputs["image"][:60], inputs["image"][:60, :, ::2, ::2]):
            answer = client.infer("digits-raw", {"image": np.ascontiguousarray(rows)})
            logits = answer.outputs["logits"]
            assert (logits.argmax(axis=1) == labels[:60]).mean() > 0.4
    metadata = call(server, "GET", "/v2/models/digits-raw").json()
    assert metadata["inputs"][0]["datatype"] == "UINT8"
    assert metadata["properties"]["dynamic"] == '{"image": {"2": [8, 32], "3": [8, 32]}}'
    assert json.loads(metadata["properties"]["labels"])["logits"][3] == "three"


def test_what_is_published_is_raw_and_code(store: Path) -> None:
    opened = ModelStore(str(store))
    manifest = opened.manifest("forecast", 1)
    assert [s.datatype for s in manifest.signature.inputs] == ["BYTES"]
    golden = parse_golden(opened.read_file(manifest, manifest.golden.file), manifest)
    assert golden.inputs["text"][0].startswith(b"Today: ")
    step = manifest.python_step
    assert step is not None
    source = (ROOT / "tests/fixtures/word_counter.py").read_bytes()
    assert opened.read_file(manifest, step.file) == source

    loaded = load_version(opened, manifest, LoadOptions())
    assert loaded.parity.agreement == 1
    for backend in loaded.backends:
        backend.close()
    with pytest.raises(SignatureMissingError, match="onnx comes with Python code and loads here"):
        Trust(signature_needed_for="code").check(opened, manifest, manifest.artifacts[0])
