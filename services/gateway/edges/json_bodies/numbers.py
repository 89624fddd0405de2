"""Numbers in JSON that some parsers take a hundred times as long to read as others.

msgspec takes 6 to 10 µs for a number near either end of FP64's range (1e308, 1e-320), and so does
simdjson if it has more than 19 digits besides: nothing but those in 32 KiB held the event loop for
48 ms. orjson reads each of them in 0.2 µs at most, so it gets what has many.
"""

import numpy as np

MAX_SLOW_NUMBERS = 64
"""Of a body or slice that is read by a parser for which they are slow: 0.6 ms."""
MIN_COUNTED_BYTES = 1024
"""A shorter text has at most 170 of them, 1.7 ms; to look for them would cost the most usual
requests a third of what reading them takes (1.3 of 4.3 µs)."""
_COUNTED_BYTES = 4096
"""Of a text; in a shorter one, to count letters costs less than to begin with NumPy."""
_E, _CASE, _PLUS, _MINUS, _ZERO = ord("e"), 0x20, ord("+"), ord("-"), ord("0")
_DIGITS = 3
"""Of the exponent of a number that is slow, at least."""


def has_slow_numbers(text: bytes | bytearray | memoryview) -> bool:
    """Whether more than `MAX_SLOW_NUMBERS` numbers have an exponent of three digits or more.

    A few texts pass for such numbers, as "the 12th" may. Texts below `MIN_COUNTED_BYTES` have none.
    """
    if len(text) < MIN_COUNTED_BYTES:
        return False
    if len(text) < _COUNTED_BYTES:
        plain = bytes(text) if isinstance(text, memoryview) else text
        if plain.count(b"e") + plain.count(b"E") <= MAX_SLOW_NUMBERS:
            return False
    octets = np.frombuffer(text, np.uint8)
    places = np.flatnonzero(octets | _CASE == _E)
    if places.size <= MAX_SLOW_NUMBERS:
        return False
    places = places[: np.searchsorted(places, octets.size - _DIGITS - 1)] + 1
    signs = octets[places]
    thirds = places + ((signs == _MINUS) | (signs == _PLUS)) + (_DIGITS - 1)
    slow = (octets[thirds] - _ZERO < 10) & (octets[thirds - 1] - _ZERO < 10)  # below "0" it wraps
    return int(np.count_nonzero(slow)) > MAX_SLOW_NUMBERS
