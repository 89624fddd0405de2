"""The path of an HTTP request, as routes are matched against it.

In: the path as it was sent. Out: its text, each segment decoded for itself: an encoded `/`
separates nothing (RFC 3986, 2.2). Otherwise a proxy in front, which goes by what was sent, would
allow one route and another one would answer.
"""

import re
from urllib.parse import unquote

MAX_ESCAPES = 512
"""Of a path; names of models have 128 characters at most."""

_SEPARATOR = re.compile("%2[fF]")


def decoded_path(sent: bytes) -> str:
    """The path decoded; `%2F` stays. One with more than `MAX_ESCAPES` stays as it was sent."""
    text = sent.decode("latin-1")
    if not 0 < text.count("%") <= MAX_ESCAPES:
        return text  # with more it names nothing, and would take milliseconds
    return unquote(_SEPARATOR.sub("%252F", text))
