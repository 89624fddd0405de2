"""Finds JSON numbers that msgspec reads a hundred times slower than others.

msgspec takes 6 to 10 µs for a number near either end of FP64's range (1e308, 1e-320): 32 KiB of
only such numbers blocked the event loop for 48 ms. orjson reads each of them in 0.2 µs at most, so
it parses texts with many.
"""

import numpy as np

MAX_SLOW_NUMBERS = 64
"""Most slow numbers in a body that msgspec reads: 0.6 ms."""
MIN_COUNTED_BYTES = 1024
"""A shorter text has at most 170 of them, 1.7 ms; the search would cost the most usual requests
a third of their parsing time (1.3 of 4.3 µs)."""
_COUNTED_BYTES = 4096
"""Text size from which NumPy counts; in a shorter one, counting letters costs less."""
_E, _CASE, _PLUS, _MINUS, _ZERO = ord("e"), 0x20, ord("+"), ord("-"), ord("0")
_DIGITS = 3
"""Least digits of the exponent of a slow number."""


def has_slow_numbers(text: bytes | bytearray | memoryview) -> bool:
    """Returns True if over `MAX_SLOW_NUMBERS` numbers have exponents of three or more digits.

    A few strings count as such numbers, as "the 12th" may. Below `MIN_COUNTED_BYTES`: False.
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
