"""Files of `flambeau import --examples`, which may come with a foreign model."""

import io
import zipfile
from pathlib import Path

import numpy as np
import pytest
import typer

from flambeau.commands.import_model import MAX_EXAMPLE_BYTES, read_examples


def header(count: int) -> bytes:
    """Returns the head of an .npy file of FP32 numbers."""
    file = io.BytesIO()
    fields = {"descr": "<f4", "fortran_order": False, "shape": (count,)}
    np.lib.format.write_array_header_1_0(file, fields)
    return file.getvalue()


def zipped(path: Path, data: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", data)
    return path


@pytest.mark.parametrize(
    "data",
    [b"", b"\x93NUM", b"PK\3\4abc", header(3), header(10**18),
     b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16],
)  # fmt: skip
def test_damaged_examples_are_refused_in_words(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(data)
    with pytest.raises(typer.BadParameter, match=r"is no \.npz or \.npy file"):
        read_examples(path)
    if data:
        with pytest.raises(typer.BadParameter, match=r"is no \.npz or \.npy file"):
            read_examples(zipped(tmp_path / "x.npz", b"\x93NUMPY" + data))


def test_examples_that_inflate_are_refused_before_they_are_read(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", header(4) + bytes(16))
        archive.infolist()[0].file_size = MAX_EXAMPLE_BYTES + 1  # as its directory states
    with pytest.raises(typer.BadParameter, match="it inflates to 2,147,483,649 bytes"):
        read_examples(path)


def test_text_becomes_bytes(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, name=np.array(["Ada", "Grüße"]), x=np.ones(2))
    found = read_examples(path)
    assert found["name"].tolist() == [b"Ada", "Grüße".encode()]
    assert found["x"].dtype == np.float64
