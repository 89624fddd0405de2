"""Folders of images: classes by folder; whatever is no image is told, not skipped."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.unit.training.named_data import splits
from training.datasets import Splits
from training.errors import DataError
from training.sources import image_folder
from training.sources.data_files import DataReach


@pytest.fixture(autouse=True)
def _images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten images of each class, whose red says the class and whose blue the number."""
    monkeypatch.chdir(tmp_path)
    for place, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name / "more").mkdir(parents=True)
        for number in range(10):
            folder = tmp_path / "photos" / name / ("more" if number == 9 else "")
            Image.new("RGB", (4, 3), (100 * place, 0, number)).save(folder / f"{number}.png")


def read(reach: DataReach | None = None, **changes: Any) -> Splits:
    return splits({"image_folder": {"path": "photos", **changes}}, reach)


def test_images_become_rows_and_folders_classes() -> None:
    Path("photos/.hidden").write_text("x")
    found = read(dtype="uint8")
    assert found.class_names == ("cat", "dog")
    assert found.train.inputs["image"].shape == (13, 3, 3, 4)
    parts = (found.train, found.validation, found.test)
    every = np.concatenate([part.inputs["image"] for part in parts])
    labels = np.concatenate([part.labels for part in parts])
    assert (every[:, 0, 0, 0] == 100 * labels).all()
    assert sorted(every[labels == 1, 2, 0, 0].tolist()) == list(range(10))
    floats = read().train.inputs["image"]
    assert floats.dtype == np.float32
    assert np.array_equal(floats, found.train.inputs["image"].astype(np.float32) / 255)


def test_lineage_has_one_digest_for_the_whole_folder() -> None:
    origin = read().origin
    assert origin is not None
    (noted,) = origin.files
    files = sorted(str(f.relative_to("photos")) for f in Path("photos").rglob("*.png"))
    lines = [
        f"{hashlib.sha256((Path('photos') / f).read_bytes()).hexdigest()}  {f}\n" for f in files
    ]
    assert noted.files == 20
    assert noted.sha256 == hashlib.sha256("".join(lines).encode()).hexdigest()


def test_images_of_several_sizes_need_one_to_be_brought_to() -> None:
    Image.new("RGB", (5, 3)).save("photos/dog/5.png")
    with pytest.raises(
        DataError, match=r"dog/5\.png has 3 x 5 pixels, and photos/cat/0\.png 3 x 4"
    ):
        read()
    assert read(size=[6, 8], mode="L").train.inputs["image"].shape == (13, 1, 6, 8)


def test_photographs_stand_upright() -> None:
    image = Image.new("L", (4, 3))
    exif = image.getexif()
    exif[0x0112] = 6  # the camera was held upright: width is height
    for file in Path("photos").rglob("*.png"):
        image.save(file.with_suffix(".jpg"), exif=exif)
        file.unlink()
    assert read(mode="L").train.inputs["image"].shape[2:] == (4, 3)


@pytest.mark.parametrize(
    ("path", "content", "words"),
    [
        ("cat/3.png", b"junk", r"cat/3\.png cannot be read as an image"),
        ("cat/notes.txt", b"my cats", r"cat/notes\.txt cannot be read as an image"),
        ("stray.png", b"", r"photos/stray\.png lies beside the folders of the classes"),
        ("bird", None, r"photos/bird holds no images"),
    ],
)
def test_what_is_no_image_is_told(path: str, content: bytes | None, words: str) -> None:
    file = Path("photos") / path
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    with pytest.raises(DataError, match=words):
        read()


def test_images_cut_short_or_too_large_or_of_other_depth_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = Path("photos/dog/1.png")
    Image.effect_noise((40, 40), 50).save(file)
    file.write_bytes(file.read_bytes()[:600])
    with pytest.raises(DataError, match=r"dog/1\.png cannot be read as an image .*truncated"):
        read(size=[4, 4])
    Image.new("I;16", (4, 3)).save(file)
    with pytest.raises(DataError, match=r"dog/1\.png has pixels of mode I;16"):
        read()
    monkeypatch.setattr(image_folder, "MAX_PIXELS", 11)
    with pytest.raises(DataError, match=r"cat/0\.png has 3 x 4 pixels; 11 are the most"):
        read()


def test_limits_hold_before_pixels_are_kept() -> None:
    with pytest.raises(DataError, match="decoded, has 2,880 bytes; 2,000 are the most"):
        read(DataReach(max_bytes=2000))
    with pytest.raises(DataError, match="more than 19 files"):
        read(DataReach(max_files=19))
