"""What a row of data looks like, in a few hundred bytes: a small picture, or its first values.

In: the arrays of one row by name. Out: a PNG in Base64 for the first that is an image, and text for
the others. No library for pictures is needed.
"""

import base64
import math
import struct
import zlib
from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from model_store.tensors import Array
from training.reporting.examination import cut

LONGEST_SIDE = 64
"""Pixels; of a larger image every second, third, ... one is taken."""
SHORTEST_SIDE = 4
"""What is lower or narrower is no image."""
MAX_INPUTS = 4
MAX_VALUES = 8

Pixels = npt.NDArray[np.uint8]


def preview(row: Mapping[str, Array]) -> tuple[str | None, dict[str, str]]:
    """The picture of a row, and the first values of inputs that are none.

    Args:
        row: by input name, each without the axis of rows.
    """
    image = next((name for name, array in row.items() if _is_image(array)), None)
    picture = None if image is None else base64.b64encode(png(_pixels(row[image]))).decode()
    others = [name for name in row if name != image][:MAX_INPUTS]
    return picture, {cut(name): _first_values(row[name]) for name in others}


def png(pixels: Pixels) -> bytes:
    """A PNG file: 8 bits a channel, one compressed block, no filters.

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
    """Whether it is [1 or 3, height, width] of numbers."""
    return (
        array.ndim == 3
        and array.shape[0] in (1, 3)
        and min(array.shape[1:]) >= SHORTEST_SIDE
        and array.dtype.kind in "buif"
    )


def _pixels(image: Array) -> Pixels:
    """[channels, height, width] to bytes [height, width, channels], of few enough pixels.

    Numbers from 0 to 1, or bytes, keep their brightness; others are spread from black to white.
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
    """`0.5, 1, -3, … (64 values)`; text as it is."""
    values = array.ravel()[:MAX_VALUES].tolist()
    more = f", … ({array.size} values)" if array.size > MAX_VALUES else ""
    return cut(", ".join(_written(value) for value in values)) + more


def _written(value: object) -> str:
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return f"{value:.4g}" if isinstance(value, float) else str(value)
