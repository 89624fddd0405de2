"""Small pictures and first values of rows."""

import base64
import io
import struct
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from training.reporting.row_preview import MAX_INPUTS, png, preview


def opened(picture: str | None) -> Any:
    """The pixels as another library reads them."""
    assert picture is not None
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(picture))))


@given(st.integers(1, 9), st.integers(1, 9), st.sampled_from([1, 3]), st.randoms())
def test_a_png_holds_the_same_pixels(height: int, width: int, channels: int, random: Any) -> None:
    values = [random.randrange(256) for _ in range(height * width * channels)]
    pixels = np.array(values, np.uint8).reshape(height, width, channels)
    found = np.asarray(Image.open(io.BytesIO(png(pixels))))
    assert np.array_equal(found.reshape(pixels.shape), pixels)


def test_the_header_of_a_png_names_the_only_methods_of_the_standard() -> None:
    """Strict decoders refuse others: 8 bits; compression, filter and interlace method 0."""
    for channels, colour in ((1, 0), (3, 2)):
        data = png(np.zeros((5, 7, channels), np.uint8))
        assert data[12:16] == b"IHDR"
        assert struct.unpack(">IIBBBBB", data[16:29]) == (7, 5, 8, colour, 0, 0, 0)


@pytest.mark.parametrize(
    ("image", "corners"),
    [
        (np.linspace(0, 0.5, 16, dtype=np.float32).reshape(1, 4, 4), (0, 128)),
        (np.linspace(-3, 5, 16).reshape(1, 4, 4), (0, 255)),
        (np.arange(16, dtype=np.uint8).reshape(1, 4, 4), (0, 15)),
        (np.arange(0, 1600, 100).reshape(1, 4, 4), (0, 255)),
        (np.full((1, 4, 4), 7.0), (0, 0)),
    ],
)
def test_brightness_is_kept_where_its_scale_is_known(image: Any, corners: tuple[int, int]) -> None:
    picture, values = preview({"image": image})
    pixels = opened(picture)
    assert (pixels[0, 0], pixels[-1, -1]) == corners
    assert values == {}


def test_colours_are_in_their_places_and_large_images_are_thinned() -> None:
    image = np.zeros((3, 130, 65), np.float32)
    image[0, :, :32] = 1
    image[2, :, 33:] = 1
    pixels = opened(preview({"image": image})[0])
    assert pixels.shape == (44, 22, 3)
    assert pixels[0, 0].tolist() == [255, 0, 0]
    assert pixels[0, -1].tolist() == [0, 0, 255]


def test_what_is_no_image_shows_its_first_values() -> None:
    words = np.array([b"caf\xc3\xa9", "<b>"], object)
    row: dict[str, Any] = {
        "words": words,
        "numbers": np.arange(10) / 4,
        "mask": np.array([True, False]),
        "one": np.float32(2),
        "past": np.zeros(3),
        "thin": np.zeros((1, 2, 9)),
    }
    picture, values = preview(row)
    assert picture is None
    assert values == {
        "words": "café, <b>",
        "numbers": "0, 0.25, 0.5, 0.75, 1, 1.25, 1.5, 1.75, … (10 values)",
        "mask": "True, False",
        "one": "2",
    }
    assert len(values) == MAX_INPUTS


def test_an_image_beside_other_inputs_has_both() -> None:
    picture, values = preview({"age": np.array([7]), "image": np.zeros((1, 8, 8))})
    assert opened(picture).shape == (8, 8)
    assert values == {"age": "7"}
