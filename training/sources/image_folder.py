"""Reads images from one folder a class into one array.

In: `cat/1.png`, `dog/2.jpg` and so on, at any depth below the class. Out: the rows in the order of
their paths; the classes are named after their folders.

Rules: a file that is no image is an error, not skipped; only formats that are decoded without other
programs are opened; the size in the header is checked before pixels are decoded.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array
from model_store.host.install_advice import install_command
from training.errors import DataError
from training.recipe.parts.data_parts import ImageFolder
from training.sources.data_files import DataFiles, DataReach
from training.sources.paths import paths_by_split
from training.sources.rows import Rows

FORMATS = ("PNG", "JPEG", "BMP", "GIF", "PPM", "TIFF", "WEBP")
NO_IMAGES = ("Thumbs.db", "desktop.ini")
"""Files that systems leave in folders of images, besides hidden ones."""
MAX_PIXELS = 2**26
"""Maximum pixels of one image, before it is resized."""
MODES = ("1", "L", "LA", "P", "RGB", "RGBA", "CMYK", "YCbCr")
"""Modes with 8 bits or less a channel."""


def read_image_folder(part: ImageFolder, files: DataFiles) -> dict[str, Rows]:
    """Reads the rows of one folder, or of one for each split.

    Raises:
        DataError: a file is no image, images differ in size and the recipe has no size, ...
    """
    return {
        split: _read(*files.folder(path), path, part, files.reach)
        for split, path in paths_by_split(part.path).items()
    }


def _read(folder: Path, names: list[str], path: str, part: ImageFolder, reach: DataReach) -> Rows:
    names = [name for name in names if not any(map(_is_hidden, Path(name).parts))]
    for name in names:
        if len(Path(name).parts) == 1:
            raise DataError(
                f"data: {path}/{name} lies beside the folders of the classes; move it into that of "
                "its class"
            )
    if not names:
        raise DataError(f"data: {path} has no images in folders of classes, as in {path}/cat/1.png")
    classes = {Path(name).parts[0] for name in names}
    for entry in sorted(folder.iterdir()):
        if entry.is_dir() and not _is_hidden(entry.name) and entry.name not in classes:
            raise DataError(f"data: {path}/{entry.name} holds no images; add some, or remove it")
    reach.check_rows(len(names), f"data: {path}")
    labels = np.empty(len(names), np.object_)
    labels[:] = [Path(name).parts[0] for name in names]
    pixels = _pixels(folder, path, names, part, reach)
    return Rows({part.input: pixels}, labels, lambda row: f"{path}/{names[row]}")


def _pixels(
    folder: Path, path: str, names: Sequence[str], part: ImageFolder, reach: DataReach
) -> Array:
    """Decodes all images, [rows, channels, height, width]."""
    array: Array | None = None
    for row, name in enumerate(names):
        image = decoded(folder / name, f"{path}/{name}", part)
        if array is None:
            shape = (len(names), *image.shape)
            reach.check_size(
                int(np.prod(shape)) * np.dtype(_DTYPES[part.dtype]).itemsize,
                f"data: {path}, decoded,",
            )
            array = np.empty(shape, _DTYPES[part.dtype])
        if image.shape != array.shape[1:]:
            height, width = image.shape[1:]
            raise DataError(
                f"data: {path}/{name} has {height} x {width} pixels, and {path}/{names[0]} "
                f"{array.shape[2]} x {array.shape[3]}; say in size: [height, width] what all are "
                "brought to"
            )
        array[row] = image if part.dtype == "uint8" else image / np.float32(255)
    assert array is not None, "there are images"
    return array


_DTYPES = {"fp32": np.float32, "uint8": np.uint8}


def decoded(file: Path, where: str, part: ImageFolder) -> npt.NDArray[np.uint8]:
    """Decodes one image, [channels, height, width], upright, in the recipe's size and mode.

    Raises:
        DataError: it cannot be decoded, or is too large.
    """
    try:
        from PIL import Image, ImageOps
    except ImportError as error:
        raise DataError(f"data: image_folder needs Pillow: {install_command('images')}") from error
    try:
        with Image.open(file, formats=FORMATS) as image:
            _check_image(image, where)
            upright = ImageOps.exif_transpose(image)
            pixels = upright.convert(part.mode)
            if part.size is not None:
                height, width = part.size
                pixels = pixels.resize((width, height), Image.Resampling.BILINEAR)
            array = np.asarray(pixels, np.uint8)
    except (OSError, SyntaxError, ValueError, EOFError, Image.DecompressionBombError) as error:
        raise DataError(
            f"data: {where} cannot be read as an image ({error}); remove it, or save it anew as "
            f"{' or '.join(FORMATS[:2])}"
        ) from error
    return array[None] if part.mode == "L" else np.ascontiguousarray(array.transpose(2, 0, 1))


def _check_image(image: Any, where: str) -> None:
    if image.width * image.height > MAX_PIXELS:
        raise DataError(
            f"data: {where} has {image.height} x {image.width} pixels; {MAX_PIXELS:,} are the "
            "most: make it smaller"
        )
    if image.mode not in MODES:
        raise DataError(
            f"data: {where} has pixels of mode {image.mode}, which 8 bits do not hold; save it "
            "with 8 bits a channel"
        )


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in NO_IMAGES
