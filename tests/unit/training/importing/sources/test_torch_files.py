"""TorchScript, `.pt2` and AOTInductor: shapes from examples, and no pickle runs code."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

from flambeau.protocol.signature import SignatureError
from model_store.errors import ArchiveError
from tests.unit.training.importing.foreign_models import (
    Steps,
    TwoInputs,
    evil_pickle,
    evil_torch_file,
    member,
    rewrite,
    write_program,
    write_script,
    zip_bomb,
)
from training.errors import SourceError
from training.importing.derive import program_to_onnx
from training.importing.original import Original
from training.importing.sources.source_options import ONLY_INPUT, SourceOptions
from training.importing.sources.torch_programs import aoti_package, pt2_file, torchscript_file
from training.network.runner import callable_runner
from training.verification.runners import file_runner

ROWS = np.random.default_rng(1).standard_normal((5, 4)).astype(np.float32)


class ReturnsDictionary(nn.Module):
    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"y": x}


class StaysRandom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: Tensor) -> Tensor:
        dropped: Tensor = self.drop(x)
        return dropped


def script(path: Path, tmp_path: Path, **options: object) -> Original:
    read = torchscript_file.read
    return read(path, SourceOptions(**options), tmp_path / "staging")  # type: ignore[arg-type]


def program(path: Path, tmp_path: Path, **options: object) -> Original:
    read = pt2_file.read
    return read(path, SourceOptions(**options), tmp_path / "staging")  # type: ignore[arg-type]


def test_torchscript_asks_for_examples_by_its_arguments(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"--examples x\.npz with input \[rows, \.\.\.\]"):
        script(write_script(tmp_path / "net.pt"), tmp_path)


@pytest.mark.parametrize("name", ["input", "pixels", ONLY_INPUT])
def test_torchscript_takes_shapes_from_examples(tmp_path: Path, name: str) -> None:
    original = script(write_script(tmp_path / "net.pt"), tmp_path, examples={name: ROWS})
    assert original.kind == "torchscript"
    (x,), (y,) = original.signature.inputs, original.signature.outputs
    assert (x.name, x.shape) == (name or "input", (-1, 4))
    assert (y.name, y.shape) == ("output", (-1, 3))


def test_torchscript_takes_its_batch_axes_from_the_user(tmp_path: Path) -> None:
    path = write_script(tmp_path / "net.pt", Steps())
    given = {"x": ROWS.reshape(5, 2, 2), "rate": np.float32(2)}
    with pytest.raises(SourceError, match="or --batch-axis rate=none"):
        script(path, tmp_path, examples=given)
    original = script(path, tmp_path, examples=given, batch_axes={"x": 1, "rate": None})
    specs = [*original.signature.inputs, *original.signature.outputs]
    shapes = {spec.name: (spec.shape, spec.batch_axis) for spec in specs}
    assert shapes == {"x": ((5, -1, 2), 1), "rate": ((), None), "output": ((-1, 2), 0)}
    assert original.examples is not None
    assert original.examples["x"].shape == (2, 5, 2)


def test_torchscripts_own_error_is_told_and_not_its_traceback(tmp_path: Path) -> None:
    path = write_script(tmp_path / "net.pt")
    with pytest.raises(SourceError, match=r"'input' float32 \[batch,3\]: RuntimeError: mat1 and"):
        script(path, tmp_path, examples={"input": ROWS[:, :3]})


def test_torchscript_with_a_dictionary_is_refused(tmp_path: Path) -> None:
    path = write_script(tmp_path / "net.pt", ReturnsDictionary())
    with pytest.raises(SourceError, match="returns a dict"):
        script(path, tmp_path, examples={"x": ROWS})


def test_torchscript_in_training_mode_is_refused(tmp_path: Path) -> None:
    path = write_script(tmp_path / "net.pt", StaysRandom())
    with pytest.raises(SourceError, match=r"layer 'drop' \(Dropout\)"):
        script(path, tmp_path, examples={"x": ROWS})


@pytest.mark.parametrize("reader", [torchscript_file, pt2_file, aoti_package])
def test_a_zip_bomb_is_not_inflated(tmp_path: Path, reader: object) -> None:
    path = zip_bomb(tmp_path / "net.pt", "constants.pkl")
    with pytest.raises(ArchiveError, match="inflates to 300,000,001"):
        reader.read(path, SourceOptions(), tmp_path / "staging")  # type: ignore[attr-defined]


@pytest.mark.parametrize("reader", [torchscript_file, pt2_file, aoti_package])
def test_a_truncated_file_is_refused(tmp_path: Path, reader: object) -> None:
    path = write_script(tmp_path / "net.pt")
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ArchiveError, match="no zip archive"):
        reader.read(path, SourceOptions(), tmp_path / "staging")  # type: ignore[attr-defined]


def test_a_program_brings_its_shapes_and_examples(tmp_path: Path) -> None:
    path = write_program(tmp_path / "net.pt2", nn.Linear(4, 3), (torch.from_numpy(ROWS),))
    original = program(path, tmp_path)
    assert original.signature.inputs[0].name == "input"
    assert original.signature.inputs[0].shape == (-1, 4)
    assert original.signature.outputs[0].shape == (-1, 3)
    assert original.signature.max_batch_size == 16  # the program's own limit
    assert original.examples is not None
    np.testing.assert_array_equal(original.examples["input"], ROWS)
    assert original.file.read_bytes() == path.read_bytes()
    with pytest.raises(SourceError, match="takes at most 16 rows"):
        program(path, tmp_path, max_batch_size=64)


class Sized(nn.Module):
    """Takes images and two equally long rows of numbers."""

    def forward(self, image: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        means: Tensor = image.mean((1, 2, 3)) + (ids * mask).sum(1)
        return means[:, None]


def test_limits_of_a_programs_dimensions_are_kept(tmp_path: Path) -> None:
    batch, cell = Dim("batch", min=1, max=16), Dim("cell", min=1, max=8)
    length = Dim("length", min=3, max=32)
    shapes = (
        {0: batch, 1: Dim("height", min=6, max=64), 2: Dim("width", min=4), 3: 4 * cell},
        {0: batch, 1: length},
        {0: batch, 1: length},
    )
    inputs = (torch.ones(4, 8, 8, 8), torch.ones(4, 5), torch.ones(4, 5))
    path = tmp_path / "net.pt2"
    torch.export.save(torch.export.export(Sized().eval(), inputs, dynamic_shapes=shapes), path)
    signature = program(path, tmp_path).signature
    assert signature.dynamic == {"image": {1: (6, 64)}}
    assert signature.limits == {
        "image": {2: (4, None), 3: (4, 32)},
        "ids": {1: (3, 32)},
        "mask": {1: (3, 32)},
    }
    given = {"image": ("FP32", [1, 8, 3, 8]), "ids": ("FP32", [1, 5]), "mask": ("FP32", [1, 5])}
    with pytest.raises(SignatureError, match="size 3 along axis 2; give 4 or more"):
        signature.check_inputs(given)
    given |= {"image": ("FP32", [1, 8, 8, 8]), "mask": ("FP32", [1, 33])}
    with pytest.raises(SignatureError, match=r"'mask' .* size 33 along axis 1; give 3 to 32"):
        signature.check_inputs(given)


def test_equal_dimensions_of_one_input_do_not_vary_by_themselves(tmp_path: Path) -> None:
    side = Dim("side", min=4, max=16)
    square = torch.export.export(
        nn.Identity(), (torch.ones(2, 8, 8),), dynamic_shapes=({0: Dim("n"), 1: side, 2: side},)
    )
    torch.export.save(square, tmp_path / "net.pt2")
    signature = program(tmp_path / "net.pt2", tmp_path).signature
    assert signature.dynamic == {}
    assert list(signature.limits.values()) == [{1: (4, 16), 2: (4, 16)}]


def test_a_program_with_named_outputs_is_exported_in_order(tmp_path: Path) -> None:
    network = TwoInputs().eval()
    inputs = (torch.from_numpy(ROWS), torch.ones(5, 3))
    path = write_program(tmp_path / "net.pt2", network, inputs)
    original = program(path, tmp_path)
    assert [spec.name for spec in original.signature.inputs] == ["image", "mask"]
    assert [spec.name for spec in original.signature.outputs] == ["logits", "total"]
    module = torch.export.load(original.file).module()
    assert original.examples is not None
    found = callable_runner(module, original.signature)(original.examples)
    with torch.no_grad():
        wanted = network(*inputs)["total"].numpy()
    np.testing.assert_allclose(np.asarray(found["total"], np.float32), wanted, atol=1e-6)


def hostile(tmp_path: Path, kind: str, marker: Path) -> Path:
    """A program that would create the marker when torch loads or runs it."""
    path = write_program(tmp_path / "net.pt2", nn.Linear(4, 3), (torch.from_numpy(ROWS),))
    text = member(path, "models/model.json")
    code = f"__import__('pathlib').Path('{marker}').touch()"
    evil = evil_torch_file(tmp_path / "evil.pt", marker)
    config = json.loads(member(path, "data/weights/model_weights_config.json"))
    entry = {**config["config"]["weight"], "path_name": "weight_0", "use_pickle": True}
    changes: dict[str, bytes] = {
        "examples": {"data/sample_inputs/model.pt": evil},
        "weights": {
            "data/weights/weight_0": evil,
            "data/weights/model_weights_config.json": json.dumps(
                {"config": {**config["config"], "weight": entry}}
            ).encode(),
        },
        "object": {
            "data/constants/opaque_obj_0": evil_pickle(marker),
            "data/constants/model_constants_config.json": json.dumps(
                {"config": {"c": {**entry, "path_name": "opaque_obj_0"}}}
            ).encode(),
        },
        "expression": {"models/model.json": text.replace(b"Symbol('s", f"{code} or ('s".encode())},
        "operator": {
            "models/model.json": text.replace(b"torch.ops.aten.linear.default", b"torch.os.system")
        },
    }[kind]
    return rewrite(path, changes)


@pytest.mark.parametrize("kind", ["examples", "weights", "object", "expression", "operator"])
def test_code_in_a_program_does_not_run(tmp_path: Path, kind: str) -> None:
    marker = tmp_path / "ran"
    path = hostile(tmp_path, kind, marker)
    with pytest.raises(SourceError, match=r"contains code: .*--allow-pickle"):
        program(path, tmp_path)
    assert not marker.exists()


@pytest.mark.parametrize("operator", ["from_file.default", "from_file.out", "save.default"])
def test_operators_that_open_files_are_code(tmp_path: Path, operator: str) -> None:
    path = write_program(tmp_path / "net.pt2", nn.Linear(4, 3), (torch.from_numpy(ROWS),))
    text = member(path, "models/model.json")
    changed = text.replace(b"torch.ops.aten.linear.default", f"torch.ops.aten.{operator}".encode())
    with pytest.raises(SourceError, match=f"contains code: the operator .*{operator}"):
        program(rewrite(path, {"models/model.json": changed}), tmp_path)


def test_the_hostile_programs_are_hostile(tmp_path: Path) -> None:
    marker = tmp_path / "ran"
    path = hostile(tmp_path, "weights", marker)
    with pytest.raises(Exception):  # noqa: B017, PT011 - torch fails after the code has run
        torch.export.load(path).module()
    assert marker.exists()


def test_a_package_of_another_machine_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    path = write_script(tmp_path / "net.pt2")
    said = json.dumps({"AOTI_DEVICE_KEY": "cuda"}).encode()
    rewrite(path, {"data/aotinductor/model/x.wrapper_metadata.json": said})
    with pytest.raises(SourceError, match="compiled for 'cuda', and this is cpu"):
        aoti_package.read(path, SourceOptions(), tmp_path / "staging")


class Folding(nn.Module):
    """Sums groups of eight numbers."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps [rows, 8 * groups] to [rows, groups]."""
        return x.view(x.shape[0], -1, 8).sum(-1)


def test_a_program_that_takes_multiples_of_a_size_is_read(tmp_path: Path) -> None:
    sizes = {0: Dim("batch", min=1, max=16), 1: 8 * Dim("groups", min=1, max=10)}
    made = torch.export.export(Folding(), (torch.ones(4, 24),), dynamic_shapes=(sizes,))
    torch.export.save(made, tmp_path / "net.pt2")

    found = program(tmp_path / "net.pt2", tmp_path)

    assert [spec.shape for spec in found.signature.outputs] == [(-1, -1)]


class Neighbours(nn.Module):
    """Combines n numbers with n + 1."""

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        """Maps [rows, n] and [rows, n + 1] to [rows, n]."""
        return a * b[:, :-1] + b[:, 1:]


def test_sizes_that_are_computed_from_others_are_limits(tmp_path: Path) -> None:
    batch, n = Dim("batch", min=1, max=16), Dim("n", min=3, max=40)
    made = torch.export.export(
        Neighbours(),
        (torch.ones(4, 8), torch.ones(4, 9)),
        dynamic_shapes=({0: batch, 1: n}, {0: batch, 1: n + 1}),
    )
    torch.export.save(made, tmp_path / "net.pt2")

    found = program(tmp_path / "net.pt2", tmp_path)

    assert found.signature.dynamic == {}  # verification would try sizes that do not fit
    assert found.signature.limits == {"a": {1: (3, 40)}, "b": {1: (4, 41)}}
    assert [spec.shape for spec in found.signature.outputs] == [(-1, -1)]
    program_to_onnx(found.file, found.signature, tmp_path / "net.onnx")
    run = file_runner("onnx", "fp32", tmp_path / "net.onnx", found.signature)
    sums = run({"a": np.ones((2, 5), np.float32), "b": np.ones((2, 6), np.float32)})
    assert [array.tolist() for array in sums.values()] == [[[2.0] * 5] * 2]
