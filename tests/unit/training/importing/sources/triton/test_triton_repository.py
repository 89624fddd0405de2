"""Triton repositories: models, labels and ensembles; what is not understood is listed."""

from pathlib import Path

import pytest

from tests.unit.training.importing.foreign_models import write_onnx, write_script
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.source_options import SourceOptions
from training.importing.sources.triton.pipeline_draft import PipelineDraft
from training.importing.sources.triton.triton_repository import read

NET = """
name: "net" platform: "onnxruntime_onnx" max_batch_size: 8
input [ { name: "x" data_type: TYPE_FP32 dims: [ 4 ] allow_ragged_batch: true } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 3 ] label_filename: "labels.txt" } ]
optimization { graph { level: 1 } }
dynamic_batching { }
"""
SCRIPT = """
backend: "pytorch" max_batch_size: 8
input [ { name: "INPUT__0" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "OUTPUT__0" data_type: TYPE_FP32 dims: [ 3 ] } ]
"""
BOTH = """
platform: "ensemble" max_batch_size: 8
input [ { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } ]
output [ { name: "B" data_type: TYPE_FP32 dims: [ 3 ] } ]
ensemble_scheduling { step [ {
  model_name: "net" model_version: -1
  input_map { key: "x" value: "A" } output_map { key: "y" value: "B" }
} ] }
"""


def add(repository: Path, name: str, config: str, versions: tuple[int, ...] = (1,)) -> Path:
    for version in versions:
        (repository / name / str(version)).mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    return repository / name


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    net = add(folder, "net", NET)
    write_onnx(net / "1" / "model.onnx")
    (net / "labels.txt").write_text("a\nb\nc\n")
    return folder


def read_here(folder: Path, tmp_path: Path, **options: object) -> list[Original | PipelineDraft]:
    return read(folder, SourceOptions(**options), tmp_path / "staging")  # type: ignore[arg-type]


def only(found: list[Original | PipelineDraft]) -> Original:
    (one,) = found
    assert isinstance(one, Original)
    return one


def test_a_model_with_its_labels_and_batch(repository: Path, tmp_path: Path) -> None:
    original = only(read_here(repository, tmp_path))
    assert (original.name, original.kind) == ("net", "onnx")
    assert original.signature.max_batch_size == 8
    assert original.signature.labels == {"y": ("a", "b", "c")}
    assert original.signature.inputs[0].shape == (-1, 4)


def test_what_is_not_understood_is_listed(repository: Path, tmp_path: Path) -> None:
    notes = only(read_here(repository / "net", tmp_path)).notes
    assert "net: not understood, and left out: optimization, input.allow_ragged_batch" in notes
    assert any("dynamic_batching are settings of the server" in note for note in notes)


def test_a_script_needs_no_examples(repository: Path, tmp_path: Path) -> None:
    write_script(add(repository, "ts", SCRIPT, (1, 2)) / "2" / "model.pt")
    original = only(read_here(repository / "ts", tmp_path))  # version 1 has no file
    assert original.kind == "torchscript"
    assert original.signature.inputs[0].name == "INPUT__0"
    assert original.signature.outputs[0].name == "OUTPUT__0"
    assert original.examples is not None


def test_the_policy_selects_the_version(repository: Path, tmp_path: Path) -> None:
    config = SCRIPT + "version_policy: { specific: { versions: [1] } }"
    write_script(add(repository, "ts", config, (1, 2)) / "1" / "model.pt")
    assert only(read_here(repository / "ts", tmp_path)).name == "ts"
    (repository / "ts" / "config.pbtxt").write_text(SCRIPT + "version_policy: { all {} }")
    with pytest.raises(SourceError, match=r"model\.pt"):
        read_here(repository / "ts", tmp_path)


def test_a_model_without_configuration(repository: Path, tmp_path: Path) -> None:
    (repository / "net" / "config.pbtxt").unlink()
    assert only(read_here(repository, tmp_path)).kind == "onnx"


def test_an_ensemble_is_a_draft(repository: Path, tmp_path: Path) -> None:
    add(repository, "both", BOTH)
    original, draft = sorted(read_here(repository, tmp_path), key=lambda one: one.name == "both")
    assert isinstance(original, Original)
    assert isinstance(draft, PipelineDraft)
    assert (draft.inputs, draft.outputs) == (("A",), ("B",))
    (step,) = draft.steps
    assert (step.model, step.version) == ("net", None)
    assert (step.input_map, step.output_map) == ({"x": "A"}, {"y": "B"})


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('model_name: "net"', 'model_name: "nat"', r"runs 'nat', .*did you mean 'net'"),
        ('value: "A"', 'value: "C"', r"takes 'C', which is neither"),
        ('name: "B"', 'name: "D"', r"returns 'D'"),
        ("ensemble_scheduling", "other_scheduling", "no steps"),
    ],
)
def test_a_broken_ensemble_is_refused(
    repository: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    add(repository, "both", BOTH.replace(old, new))
    with pytest.raises(SourceError, match=message):
        read_here(repository, tmp_path)


def test_other_platforms_are_listed_or_refused(repository: Path, tmp_path: Path) -> None:
    add(repository, "py", 'backend: "python"')
    assert "model 'py' is of python" in only(read_here(repository, tmp_path)).notes[-1]
    with pytest.raises(SourceError, match="'py' is of python, which is not read"):
        read_here(repository, tmp_path, model="py")
    with pytest.raises(SourceError, match="no model 'nte'"):
        read_here(repository, tmp_path, model="nte")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("TYPE_FP32", "TYPE_FP23", "did you mean 'TYPE_FP32'"),
        ('name: "x"', 'name: "z"', "names input 'z', which model.onnx does not have"),
        ("max_batch_size: 8", "max_batch_size: 99999999", "write 0 to 65536"),
        ('"labels.txt"', '"../../../../etc/passwd"', "asks for the file"),
        ('platform: "onnx', 'default_model_filename: "../x" platform: "onnx', "asks for the file"),
        ("dynamic_batching", "a {" * 1000, "nested"),
        ('name: "net"', 'name: "../net"', "is no name of a model"),
        ('name: "net"', 'name: "' + "\\" + 'x"', "text format"),
    ],
)
def test_hostile_configurations_are_refused(
    repository: Path, tmp_path: Path, old: str, new: str, message: str
) -> None:
    (repository / "net" / "config.pbtxt").write_text(NET.replace(old, new, 1))
    with pytest.raises(SourceError, match=message):
        read_here(repository, tmp_path)


def test_a_version_that_is_missing_is_named(repository: Path, tmp_path: Path) -> None:
    (repository / "net" / "1" / "model.onnx").unlink()
    with pytest.raises(SourceError, match=r"model\.onnx"):
        read_here(repository, tmp_path)


@pytest.mark.parametrize("name", ["a\\0b", "\\ud800", "a" * 400])
def test_a_name_is_no_part_of_a_path(repository: Path, tmp_path: Path, name: str) -> None:
    config = NET.replace('"net"', f'"{name}"')
    (repository / "net" / "config.pbtxt").write_text(config)
    assert only(read_here(repository, tmp_path)).file.is_file()
