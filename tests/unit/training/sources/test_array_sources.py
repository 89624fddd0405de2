"""NumPy and safetensors: what is written comes back; pickles are never opened."""

import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from flambeau.protocol.tensors import Array
from model_store.arrays.tensor_file import encode_tensors
from tests.unit.training.named_data import splits
from training.datasets import Splits
from training.errors import DataError
from training.recipe.parts.data_parts import Numpy, Safetensors
from training.sources.arrays import read_numpy, read_safetensors
from training.sources.data_files import DataFiles, DataReach
from training.sources.rows import Rows

X = np.arange(40, dtype=np.float32).reshape(20, 2)
Y = np.arange(20) % 2


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def part(path: str, **changes: Any) -> dict[str, Any]:
    return {"path": path, "inputs": {"x": "x"}, "label": "y", **changes}


def written(form: str, arrays: dict[str, Array], folder: Path) -> Rows:
    """Arrays in a form, read back."""
    files = DataFiles(DataReach())
    if form == "safetensors":
        path = folder / "a.safetensors"
        path.write_bytes(encode_tensors(arrays))
        return read_safetensors(Safetensors.model_validate(part(str(path))), files)["train"]
    path = folder / "a.npz" if form == "npz" else folder / "npy"
    if form == "npz":
        np.savez_compressed(path, **arrays)  # type: ignore[arg-type]
    else:
        path.mkdir(exist_ok=True)
        for name, array in arrays.items():
            np.save(path / f"{name}.npy", array)
    return read_numpy(Numpy.model_validate(part(str(path))), files)["train"]


@settings(max_examples=60, deadline=None)
@given(
    x=npst.arrays(
        st.sampled_from([np.float32, np.float64, np.int64, np.uint8, np.bool_]),
        npst.array_shapes(min_dims=1, max_dims=4, min_side=0, max_side=4),
    ),
    in_columns=st.booleans(),
    form=st.sampled_from(["npz", "npy", "safetensors"]),
)
def test_what_is_written_comes_back(
    x: Array, in_columns: bool, form: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.getbasetemp()
    given = np.asfortranarray(x) if in_columns else x
    found = written(form, {"x": given, "y": np.arange(len(x))}, folder)
    assert found.inputs["x"].dtype == x.dtype
    assert found.inputs["x"].shape == x.shape
    assert found.inputs["x"].tobytes() == x.tobytes()
    assert found.labels.tolist() == list(range(len(x)))


def test_one_file_may_hold_the_arrays_of_all_splits() -> None:
    np.savez("a.npz", x1=X, y1=Y, x2=X[:4], y2=Y[:4])
    told = part(
        "a.npz",
        inputs={"x": {"train": "x1", "test": "x2"}},
        label={"train": "y1", "test": "y2"},
    )
    found = splits({"numpy": told})
    assert [s.rows for s in (found.train, found.validation, found.test)] == [17, 3, 4]
    with pytest.raises(DataError, match="'test' has no label; give its array"):
        splits({"numpy": {**told, "label": {"train": "y1"}}})


def test_text_names_classes() -> None:
    np.savez("a.npz", x=X, y=np.array(["cat", "dog"])[Y])
    assert read("a.npz").class_names == ("cat", "dog")


def read(path: str, **changes: Any) -> Splits:
    kind = "safetensors" if path.endswith("safetensors") else "numpy"
    return splits({kind: part(path, **changes)})


def test_a_pickle_is_refused_and_never_opened() -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (Path("sprung"),)

    np.savez("a.npz", x=np.array([Trap()] * 20, object), y=Y)
    with pytest.raises(
        DataError, match=r"a\.npz, array 'x' holds object; Python objects are never"
    ):
        read("a.npz")
    Path("b.npz").write_bytes(pickle.dumps(Trap()))
    with pytest.raises(DataError, match=r"is not a \.npz file"):
        read("b.npz")
    assert not Path("sprung").exists()


def test_the_second_version_of_the_format_is_read_and_a_later_one_is_told(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    np.save("a/y.npy", Y)
    for version in ((1, 0), (2, 0)):
        with (tmp_path / "a/x.npy").open("wb") as file:
            np.lib.format.write_array(file, X, version=version)
        found = read_numpy(Numpy.model_validate(part("a")), DataFiles(DataReach()))["train"]
        assert found.inputs["x"].tolist() == X.tolist()
    with (tmp_path / "a/x.npy").open("wb") as file:
        np.lib.format.write_array(file, X, version=(3, 0))
    with pytest.raises(DataError, match=r"x\.npy is not a NumPy array: version \(3, 0\)"):
        read_numpy(Numpy.model_validate(part("a")), DataFiles(DataReach()))


def test_a_header_that_says_more_than_is_there_is_refused() -> None:
    Path("a").mkdir()
    np.save("a/y.npy", Y)
    np.save("a/x.npy", X)
    whole = Path("a/x.npy").read_bytes()
    Path("a/x.npy").write_bytes(whole.replace(b"(20, 2), }          ", b"(20, 2000000000), } "))
    with pytest.raises(DataError, match=r"says float32 \[20, 2000000000\], and has 160 bytes"):
        read("a")
    Path("a/x.npy").write_bytes(whole[:-4])
    with pytest.raises(DataError, match=r"x\.npy says float32 \[20, 2\], and has 156 bytes"):
        read("a")
    Path("a/x.npy").write_bytes(b"junk")
    with pytest.raises(DataError, match=r"x\.npy is not a NumPy array"):
        read("a")


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"xx": X, "y": Y}, r"has no array 'x' \(did you mean 'xx'\?\)"),
        ({"x": X, "y": Y[:3]}, r"input 'x' of 'train' has shape \[20, 2\] and there are 3 labels"),
        ({"x": X, "y": np.int64(1)}, r"the labels are a single value"),
        ({"x": X[:0], "y": Y[:0]}, r"'train' has no rows"),
        ({"x": np.where(X == 8, np.nan, X), "y": Y}, r"row 4 of 'train': input 'x' has nan"),
        ({"x": X, "y": Y - 1}, r"row 0 of 'train' has the class -1; classes begin at 0"),
        ({"x": X, "y": Y * 2}, r"class 1 has no row to learn from, and classes go to 2"),
        ({"x": X, "y": (np.arange(20) == 3) * 1}, r"class 1 has 1 rows \(the first is .*row 3 of"),
        ({"x": X, "y": np.where(Y, 0.5, 1.0)}, r"labels are float64"),
        ({"x": X.astype(complex), "y": Y}, r"holds complex128"),
    ],
)
def test_arrays_that_make_no_data_are_told(arrays: dict[str, Array], words: str) -> None:
    np.savez("a.npz", **arrays)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=words):
        read("a.npz")


def test_an_archive_that_unpacks_to_too_much_is_refused() -> None:
    np.savez_compressed("a.npz", x=np.zeros((20, 100_000)), y=Y)
    assert Path("a.npz").stat().st_size < 50_000
    with pytest.raises(DataError, match=r"array 'x' has 16,000,128 bytes; 50,000 are the most"):
        splits({"numpy": part("a.npz")}, DataReach(max_bytes=50_000))


def test_damaged_archives_and_tensors_without_a_type_are_told() -> None:
    np.savez("a.npz", x=X, y=Y)
    damaged = bytearray(Path("a.npz").read_bytes())
    damaged[200] ^= 1
    Path("a.npz").write_bytes(damaged)
    with pytest.raises(DataError, match=r"a\.npz, array 'x' cannot be read: Bad CRC"):
        read("a.npz")
    with zipfile.ZipFile("b.npz", "w") as archive:
        archive.writestr("notes.txt", "x")
    with pytest.raises(DataError, match="has no array 'x'"):
        read("b.npz")
    Path("a.safetensors").write_bytes(b"junk")
    with pytest.raises(DataError, match="is not a safetensors file"):
        read("a.safetensors")
