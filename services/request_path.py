"""Decodes the path of an HTTP request for route matching.

In: the path as it was sent. Out: its text, with each segment decoded separately: an encoded `/` is
not a separator (RFC 3986, 2.2). Otherwise a proxy in front, which matches the path as sent, could
allow one route while another one answers.
"""

import re
from urllib.parse import unquote

MAX_ESCAPES = 512
"""Limit of escapes in a path; model names have 128 characters at most."""

_SEPARATOR = re.compile("%2[fF]")


def decoded_path(sent: bytes) -> str:
    """Decodes a path except `%2F`. A path with more than `MAX_ESCAPES` is not decoded."""
    text = sent.decode("latin-1")
    if not 0 < text.count("%") <= MAX_ESCAPES:
        return text  # with more it matches no route, and decoding would take milliseconds
    return unquote(_SEPARATOR.sub("%252F", text))
