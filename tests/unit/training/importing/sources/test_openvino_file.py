"""OpenVINO's representation: two files, partial shapes, and XML without declarations."""

import re
from pathlib import Path

import numpy as np
import pytest

from tests.unit.training.importing.foreign_models import WEIGHT, write_onnx
from training.errors import SourceError
from training.importing.original import Original
from training.importing.sources.openvino_file import read
from training.importing.sources.source_options import SourceOptions

openvino = pytest.importorskip("openvino", reason="openvino is not installed")


def write(path: Path, dims: tuple[str | int, ...] = ("batch", 4)) -> Path:
    model = openvino.convert_model(write_onnx(path.with_suffix(".onnx"), dims=dims))
    openvino.save_model(model, str(path), compress_to_fp16=False)
    return path


def read_here(path: Path, tmp_path: Path, **options: object) -> Original:
    return read(path, SourceOptions(**options), tmp_path / "staging")  # type: ignore[arg-type]


def test_the_model_is_read_with_its_weights(tmp_path: Path) -> None:
    original = read_here(write(tmp_path / "net.xml"), tmp_path)
    assert original.kind == "openvino"
    assert original.weights_file == tmp_path / "staging" / "model.bin"
    assert original.signature.inputs[0].name == "x"
    assert original.signature.inputs[0].shape == (-1, 4)
    assert original.signature.outputs[0].shape == (-1, 3)
    settings = {"INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(str(original.file), "CPU", settings)
    x = np.ones((2, 4), np.float32)
    np.testing.assert_allclose(compiled(x)["y"], x @ WEIGHT, rtol=1e-5)


def test_outputs_without_names_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "net.xml")
    path.write_text(re.sub(r' (output_)?names="y"', "", path.read_text()))
    original = read_here(path, tmp_path)
    assert original.signature.outputs[0].name == "output"
    compiled = openvino.Core().compile_model(str(original.file), "CPU")
    assert compiled(np.ones((2, 4), np.float32))["output"].shape == (2, 3)


def test_missing_weights_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "net.xml")
    path.with_suffix(".bin").unlink()
    with pytest.raises(SourceError, match=r"copy net\.bin there"):
        read_here(path, tmp_path)


def test_truncated_weights_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "net.xml")
    weights = path.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:8])
    with pytest.raises(SourceError, match="OpenVINO does not read"):
        read_here(path, tmp_path)


def test_weights_of_100_gigabytes_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "net.xml")
    text = path.read_text()
    assert 'size="48"' in text
    path.write_text(
        text.replace('size="48"', 'size="102400000000"').replace(
            'shape="4, 3"', 'shape="160000, 160000"'
        )
    )
    with pytest.raises(SourceError, match="OpenVINO does not read"):
        read_here(path, tmp_path)


@pytest.mark.parametrize("text", ["<net", "no xml", "<net name='x' version='11'></net>"])
def test_broken_xml_is_refused(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "net.xml")
    path.write_text(text)
    with pytest.raises(SourceError, match=r"net\.xml"):
        read_here(path, tmp_path)


def test_entities_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "net.xml")
    bomb = '<!DOCTYPE net [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;&a;">]>'
    path.write_text(path.read_text().replace("<net", f"{bomb}<net", 1))
    with pytest.raises(SourceError, match="declares entities"):
        read_here(path, tmp_path)
