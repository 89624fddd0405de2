"""Tensors are read from a file unchanged, whatever their memory layout was."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst
from safetensors.numpy import load
from safetensors.torch import load_file, save_model
from torch import nn

from flambeau.protocol.signature import Signature, TensorSpec
from flambeau.protocol.tensors import DATATYPES, Array, datatype_of
from model_store.arrays.tensor_file import encode_tensors
from model_store.golden import GoldenRows, parse_golden
from tests.fixtures.store_versions import draft_in

NUMBERS = [dtype for name, dtype in DATATYPES.items() if name not in ("BF16", "BYTES")]


@st.composite
def strided(draw: st.DrawFn, least_dimensions: int = 0) -> Array:
    """Draws an array with any strides: transposed, reversed, with gaps, repeated, Fortran order."""
    shapes = npst.array_shapes(min_dims=least_dimensions, max_dims=4, min_side=0, max_side=4)
    array = draw(npst.arrays(st.sampled_from(NUMBERS), shapes))
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    steps = tuple(slice(None, None, draw(st.sampled_from([-2, -1, 1, 2]))) for _ in array.shape)
    array = array[steps]
    if draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(1, 3)), *array.shape))
    return np.asfortranarray(array) if draw(st.booleans()) else array


def same(one: Array, other: Array) -> bool:
    return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())


@given(st.dictionaries(st.text("ab.", max_size=3), strided(), max_size=3))
def test_tensors_of_any_strides_come_back(tensors: dict[str, Array]) -> None:
    found = load(encode_tensors(tensors))
    assert set(found) == set(tensors)
    assert all(same(found[name], array) for name, array in tensors.items())


@pytest.mark.parametrize(
    "array",
    [
        np.arange(24.0).reshape(2, 3, 4).transpose(0, 2, 1),
        np.asfortranarray(np.arange(24.0).reshape(2, 3, 4)),
        np.arange(24.0).reshape(4, 6)[:, ::2],
        np.array(3.0),
    ],
    ids=["turned", "Fortran", "gaps", "no dimensions"],
)
def test_what_lies_in_another_order(array: Array) -> None:
    assert same(load(encode_tensors({"a": array}))["a"], array)


@given(given=strided(1).filter(len), answered=strided(1).filter(len))
def test_golden_rows_of_any_strides_come_back(
    tmp_path_factory: pytest.TempPathFactory, given: Array, answered: Array
) -> None:
    rows = GoldenRows({"x": given[:1]}, {"y": answered[:1]})
    version = version_of(tmp_path_factory.mktemp("draft"), rows)
    found = parse_golden(rows.to_bytes(), version)
    assert same(found.inputs["x"], rows.inputs["x"])
    assert same(found.outputs["y"], rows.outputs["y"])


def version_of(folder: Path, rows: GoldenRows) -> Any:
    draft = draft_in(folder)
    specs = {
        name: (TensorSpec(name=name, datatype=datatype_of(array), shape=(-1, *array.shape[1:])),)
        for name, array in (*rows.inputs.items(), *rows.outputs.items())
    }
    signature = Signature(inputs=specs["x"], outputs=specs["y"], max_batch_size=8)
    golden = draft.golden.model_copy(update={"rows": rows.rows})
    return draft.model_copy(update={"signature": signature, "golden": golden})


def test_weights_of_any_strides_come_back(tmp_path: Path) -> None:
    """The writer of checkpoints makes contiguous copies itself."""
    model = nn.Module()
    turned = torch.arange(24.0).reshape(2, 3, 2, 2).to(memory_format=torch.channels_last)
    model.kernel = nn.Parameter(turned)
    model.matrix = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())
    save_model(model, str(tmp_path / "weights"))
    found = load_file(tmp_path / "weights")
    assert torch.equal(found["kernel"], turned)
    assert torch.equal(found["matrix"], model.matrix)
