"""The form of what gateways write for workers: entries of streams, and notices.

Whatever has another form was written by something else, and must not end the process that reads it.
"""

import re

NOTICE = re.compile(r"(\S+) ([0-9]{1,19})(?: ([0-9]{1,19}))?")
"""A line of a notice: gateway, number of a request, and the parts of its answer that were read."""
_ADDRESS = re.compile(rb"[!-~]+ [0-9]{1,20}")
_TIME = re.compile(rb"[0-9]{1,19}")


def is_request(fields: dict[bytes, bytes]) -> bool:
    """Returns True if an entry has the form that gateways write."""
    return (
        _TIME.fullmatch(fields.get(b"deadline", b"")) is not None
        and _ADDRESS.fullmatch(fields.get(b"address", b"")) is not None
        and b"payload" in fields
    )


def fields_of(flat: list[bytes]) -> dict[bytes, bytes]:
    """Returns the fields of an entry as a script gives them: names and values in turn."""
    return dict(zip(flat[::2], flat[1::2], strict=True))
