"""Around publishing: the artifacts, the lineage and the configuration for Triton."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flambeau.protocol.signature import Signature, TensorSpec
from model_store.errors import BumpTooSmallError, UnsafeOnnxError
from model_store.manifest import Manifest
from model_store.store import ModelStore
from model_store.tolerance import Tolerance
from tests.fixtures import onnx_models
from tests.fixtures.client_environment import run_in_client_environment
from tests.fixtures.pipelines import publish_graph
from tests.fixtures.shaped_models import BIASED, STATEFUL
from tests.fixtures.store_versions import artifact_in, draft_in, entry_in
from tests.unit.training.recipes import recipe, splits, untrained
from training.exporters.triton_config import config_pbtxt, triton_config
from training.publish import CHECKPOINT, check_bump, publish
from training.recipe.kinds.export_kinds import EXPORT_KINDS
from training.reporting.report import ArtifactReport, CheckpointReport, Report
from training.verification.verify import reference

SIGNATURE = Signature(
    inputs=(
        TensorSpec(name="image", datatype="FP32", shape=(-1, 1, 8, 8)),
        TensorSpec(name="mask", datatype="BOOL", shape=(-1,)),
    ),
    outputs=(TensorSpec(name="logits", datatype="FP32", shape=(-1, 10)),),
    max_batch_size=64,
)


def published(folder: Path) -> Manifest:
    """Publishes `model.onnx` of a folder without replaying it."""
    wanted, data = recipe(), splits()
    trained = untrained(wanted, data, folder / "run")
    expected, accuracy = reference(trained, data.test)
    proven = ArtifactReport(
        name="onnx",
        kind="onnx",
        precision="fp32",
        file="model.onnx",
        tolerance=Tolerance(max_abs_difference=0, min_agreement=1),
        refusal=None,
        max_abs_difference=0,
        agreement=1,
        metric=accuracy,
        latency_ms={1: 1.0},
        peak_memory_bytes=7,
    )
    report = Report(
        run="r",
        model="small",
        epochs=1,
        best_epoch=1,
        metrics={},
        checkpoint=CheckpointReport(size_bytes=1, metric=accuracy, latency_ms={1: 1.0}),
        artifacts=(proven,),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("training.publish.replay_files", lambda *_: None)
        store = ModelStore(str(folder / "store"))
        return publish(wanted, data, trained, expected, report, folder, store)


def test_an_onnx_file_that_no_server_would_open_is_not_published(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(onnx_models.linear())
    (found,) = published(tmp_path).artifacts
    assert (found.kind, found.peak_memory_bytes) == ("onnx", 7)
    (tmp_path / "model.onnx").write_bytes(onnx_models.linear()[:-1])
    with pytest.raises(UnsafeOnnxError, match=r"model\.onnx is not ONNX, or broken"):
        published(tmp_path)


def test_a_run_that_changes_more_than_it_says_is_refused_before_it_exports(tmp_path: Path) -> None:
    model = {"target": "training.networks:SmallCnn", "args": {"width": 4}}
    data, store, folder = splits(), ModelStore(str(tmp_path / "store")), tmp_path / "draft"

    def check(bump: str | None, **changes: Any) -> None:
        wanted = recipe(publish={"model": "digits", "bump": bump}, **{"model": model, **changes})
        check_bump(wanted, data, untrained(wanted, data, tmp_path / "run"), store, None)

    check("patch")  # nothing is there to compare with
    trained = untrained(recipe(model=model), data, tmp_path / "run")
    lineage = draft_in(folder).lineage.model_copy(
        update={"network_sha256": recipe(model=model).network_digest()}
    )
    kept = entry_in(folder, CHECKPOINT, trained.weights.read_bytes())
    store.publish(draft_in(folder, lineage=lineage, files=(kept,)), folder)
    check("patch")
    with pytest.raises(BumpTooSmallError, match=r"takes a minor one .*: the network changed"):
        check("patch", model={**model, "args": {"width": 5}})
    (own,) = store.manifest("digits", 1).signature.inputs
    step = {"name": "only", "model": "digits@^1", "inputs": {own.name: "input.x"}}
    rows = {"x": np.zeros((2, *own.shape[1:]), np.float32)}
    graph, found = {"steps": [step], "outputs": {"y": "only.logits"}}, np.zeros((2, 10), np.float32)
    publish_graph(store.url, "reader", graph, rows, {"y": found})
    with pytest.raises(BumpTooSmallError, match=r"takes a major one .* 'logits' is removed") as err:
        check("minor", model={**model, "outputs": ["scores"]})
    assert "It would break these pipelines: reader (digits@^1)" in str(err.value)
    check("major", model={**model, "outputs": ["scores"]})
    check(None, model={**model, "outputs": ["scores"]})


def test_the_network_is_what_its_code_arguments_and_preprocessing_make() -> None:
    digest = recipe().network_digest()
    model = {"target": "training.networks:SmallCnn", "args": {"width": 4, "classes": 3}}
    assert recipe(seed=7, model={**model, "freeze": ["head.*"]}).network_digest() == digest
    wider = {**model, "args": {"width": 5, "classes": 3}}
    assert recipe(model=wider).network_digest() != digest
    assert recipe(preprocess=[{"scale": {}}]).network_digest() != digest


def test_outside_of_git_there_is_no_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.onnx").write_bytes(onnx_models.linear())
    assert published(tmp_path).lineage.git_commit is None


def test_triton_gets_shapes_without_the_batch() -> None:
    assert config_pbtxt("digits", "onnx", "model.onnx", SIGNATURE) == (
        'name: "digits"\n'
        'backend: "onnxruntime"\n'
        'default_model_filename: "model.onnx"\n'
        "max_batch_size: 64\n"
        "input [\n"
        '  { name: "image" data_type: TYPE_FP32 dims: [ 1, 8, 8 ] },\n'
        '  { name: "mask" data_type: TYPE_BOOL dims: [ 1 ] }\n'
        "]\n"
        "output [\n"
        '  { name: "logits" data_type: TYPE_FP32 dims: [ 10 ] }\n'
        "]\n"
    )


def test_triton_gets_whole_shapes_if_the_batch_is_not_always_first() -> None:
    text = config_pbtxt("vad", "onnx", "model.onnx", STATEFUL)
    assert "max_batch_size: 0\n" in text
    assert '{ name: "state" data_type: TYPE_FP32 dims: [ 2, -1, 3 ] }' in text
    assert '{ name: "rate" data_type: TYPE_INT64 dims: [ 1 ] reshape: { shape: [ ] } }' in text
    bias = '{ name: "bias" data_type: TYPE_FP32 dims: [ 3 ] optional: true }'
    assert bias in config_pbtxt("biased", "onnx", "model.onnx", BIASED)


def test_triton_tells_the_tensors_of_a_torchscript_module_apart_by_position() -> None:
    text = config_pbtxt("digits", "torchscript", "model.pt", SIGNATURE)
    assert 'backend: "pytorch"' in text
    for name in ("image__0", "mask__1", "logits__0"):
        assert f'name: "{name}"' in text


def test_triton_gets_a_runtime_that_it_has() -> None:
    known = {
        "onnx": 'backend: "onnxruntime"',
        "openvino": 'backend: "openvino"',
        "pt2": "",
        "aoti": "",
        "torchscript": 'backend: "pytorch"\nplatform: "pytorch_libtorch"',
    }
    assert {kind: EXPORT_KINDS[kind].triton_runtime for kind in known} == known


@pytest.mark.parametrize(
    ("kinds", "named"),
    [
        (("pt2", "aoti"), None),
        (("pt2", "openvino"), "model.openvino"),
        (("aoti", "torchscript", "openvino"), "model.torchscript"),
        (("pt2", "torchscript", "onnx"), "model.onnx"),
    ],
)
def test_triton_gets_no_artifact_that_it_cannot_run(
    kinds: tuple[str, ...], named: str | None, tmp_path: Path
) -> None:
    """The first kind is the fastest; ONNX goes before it."""
    artifacts = [
        artifact_in(tmp_path, name=kind, kind=kind, latency_ms={1: 1.0 + place})
        for place, kind in enumerate(kinds)
    ]
    text = triton_config("digits", artifacts, SIGNATURE)
    assert (f'default_model_filename: "{named}"' in text) if named else not text


def test_version_that_triton_cannot_run_has_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model.onnx").write_bytes(onnx_models.linear())
    with_it = published(tmp_path)
    assert "config.pbtxt" in [entry.file for entry in with_it.files]
    plain = replace(EXPORT_KINDS["onnx"], triton_runtime="")
    monkeypatch.setitem(EXPORT_KINDS, "onnx", plain)
    (tmp_path / "config.pbtxt").unlink()
    without = published(tmp_path)
    assert "config.pbtxt" not in [entry.file for entry in without.files]
    assert ModelStore(str(tmp_path / "store")).manifest(without.model, without.version) == without


def test_triton_parses_the_configuration() -> None:
    program = (
        "import sys\n"
        "from google.protobuf import text_format\n"
        "from tritonclient.grpc.model_config_pb2 import ModelConfig\n"
        "found = text_format.Parse(sys.stdin.read(), ModelConfig())\n"
        "print(found.max_batch_size, *found.input[0].dims)\n"
    )
    run_in_client_environment(program, config_pbtxt("vad", "onnx", "model.onnx", STATEFUL))
    run_in_client_environment(program, config_pbtxt("biased", "onnx", "model.onnx", BIASED))
    text = config_pbtxt("digits", "onnx", "model.onnx", SIGNATURE)
    assert run_in_client_environment(program, text).split() == [b"64", b"1", b"8", b"8"]
