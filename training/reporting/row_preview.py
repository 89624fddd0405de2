"""Previews a row of data in a few hundred bytes: a small image, or its first values.

In: the arrays of one row by name. Out: a PNG in Base64 for the first array that is an image, and
text for the others. No image library is needed.
"""

import base64
import math
import struct
import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from flambeau.protocol.tensors import Array
from training.reporting.examination import cut

LONGEST_SIDE = 64
"""Pixels; of a larger image every second, third, ... pixel is taken."""
SHORTEST_SIDE = 4
"""Smallest height and width of an image in pixels."""
MAX_INPUTS = 4
MAX_VALUES = 8

Pixels = npt.NDArray[np.uint8]


def preview(row: Mapping[str, Array]) -> tuple[str | None, dict[str, str]]:
    """Returns the picture of a row, and the first values of its other inputs.

    Args:
        row: arrays by input name, each without the row axis.
    """
    image = next((name for name, array in row.items() if _is_image(array)), None)
    picture = None if image is None else base64.b64encode(png(_pixels(row[image]))).decode()
    others = [name for name in row if name != image][:MAX_INPUTS]
    return picture, {cut(name): _first_values(row[name]) for name in others}


def png(pixels: Pixels) -> bytes:
    """Encodes a PNG file: 8 bits per channel, one compressed block, no filters.

    Source: W3C, "Portable Network Graphics (PNG) Specification", third edition.

    Args:
        pixels: [height, width, 1 or 3], grey or red, green and blue.
    """
    height, width, channels = pixels.shape
    colour = {1: 0, 3: 2}[channels]
    header = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    lines = b"".join(b"\0" + line.tobytes() for line in np.ascontiguousarray(pixels))
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        for name, data in chunks
    )


def _is_image(array: Array) -> bool:
    """Checks that an array is a numeric [1 or 3, height, width]."""
    return (
        array.ndim == 3
        and array.shape[0] in (1, 3)
        and min(array.shape[1:]) >= SHORTEST_SIDE
        and array.dtype.kind in "buif"
    )


def _pixels(image: Array) -> Pixels:
    """Converts [channels, height, width] to bytes [height, width, channels], subsampled.

    Numbers from 0 to 1, and bytes, keep their brightness; others are scaled from black to white.
    """
    step = math.ceil(max(image.shape[1:]) / LONGEST_SIDE)
    found = image[:, ::step, ::step].transpose(1, 2, 0)
    numbers = np.nan_to_num(found.astype(np.float64))
    low, high = float(numbers.min()), float(numbers.max())
    if image.dtype == np.uint8:
        numbers /= 255
    elif low < 0 or high > 1:
        numbers = (numbers - low) / ((high - low) or 1.0)
    return (numbers * 255).round().astype(np.uint8)


def _first_values(array: Array) -> str:
    """Formats `0.5, 1, -3, … (64 values)`; text unchanged."""
    values = array.ravel()[:MAX_VALUES].tolist()
    more = f", … ({array.size} values)" if array.size > MAX_VALUES else ""
    return cut(", ".join(_written(value) for value in values)) + more


def _written(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
