"""JSON bodies of the calls over REST, as request messages.

In: a body of a few KiB, at most; the port refuses a larger one. Out: its members. An empty body is
an empty object, as for Triton.
"""

from collections.abc import Mapping
from typing import Any

import orjson

from protos import open_inference_pb2 as pb
from services.errors import InvalidRequestError
from services.wire.body import SMALL_BODY_BYTES, too_large

MAX_MEMBERS = 64
"""Members of an object of a body."""
_SHOWN = 60


def members(body: bytes | memoryview) -> dict[str, Any]:
    """Returns the members of a body, which is one JSON object or empty.

    Raises:
        InvalidRequestError: it is not, or has more than a few KiB.
    """
    if len(body) > SMALL_BODY_BYTES:  # the port takes more that comes at once
        raise too_large(SMALL_BODY_BYTES)
    if not bytes(body).strip():
        return {}
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise InvalidRequestError(f"the body is not JSON: {error}") from error
    return object_of(found, "the body")


def object_of(value: Any, what: str) -> dict[str, Any]:
    """Returns an object of a body.

    Raises:
        InvalidRequestError: it is something else, or has too many members.
    """
    if not isinstance(value, dict):
        raise InvalidRequestError(f"{what} is {shown(value)}; give an object")
    if len(value) > MAX_MEMBERS:
        raise InvalidRequestError(f"{what} has {len(value)} members; {MAX_MEMBERS} are allowed")
    return value


def boolean_of(found: Mapping[str, Any], name: str) -> bool:
    """Returns a member that is true or false; False if there is none.

    Raises:
        InvalidRequestError: it is something else.
    """
    value = found.get(name, False)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"'{name}' is {shown(value)}; give true or false")
    return value


def repository_parameters(found: Mapping[str, Any]) -> dict[str, pb.ModelRepositoryParameter]:
    """Returns the member `parameters`, as the messages of gRPC.

    Raises:
        InvalidRequestError: one is no text, boolean or whole number of 64 bits.
    """
    given = found.get("parameters")
    parameters = object_of(given, "'parameters'") if given is not None else {}
    return {name: _parameter(name, value) for name, value in parameters.items()}


def _parameter(name: str, value: Any) -> pb.ModelRepositoryParameter:
    if isinstance(value, bool):
        return pb.ModelRepositoryParameter(bool_param=value)
    if isinstance(value, str):
        return pb.ModelRepositoryParameter(string_param=value)
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return pb.ModelRepositoryParameter(int64_param=value)
    raise InvalidRequestError(
        f"the parameter '{name[:_SHOWN]}' is {shown(value)}; give text, a boolean or a whole number"
    )


def region_place(found: Mapping[str, Any]) -> tuple[str, int, int]:
    """Returns the key, the offset and the number of bytes of a region that is registered.

    Raises:
        InvalidRequestError: one is missing, or of a wrong type or range.
    """
    key = found.get("key")
    if not isinstance(key, str):
        raise InvalidRequestError(f"'key' is {shown(key)}; give the name of an object, as text")
    offset, byte_size = found.get("offset", 0), found.get("byte_size")
    return key, _whole("offset", offset), _whole("byte_size", byte_size)


def _whole(name: str, value: object) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise InvalidRequestError(f"'{name}' is {shown(value)}; give a whole number from 0 up")
    return value


def trace_values(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """Returns the values of each setting of a body: a text, a list of texts, or none for null.

    Raises:
        InvalidRequestError: it is something else.
    """
    values: dict[str, list[str]] = {}
    for name, value in found.items():
        listed = [] if value is None else value if isinstance(value, list) else [value]
        if len(listed) > MAX_MEMBERS or not all(isinstance(one, str) for one in listed):
            raise InvalidRequestError(
                f"the setting '{name[:_SHOWN]}' is {shown(value)}; give text or a list of texts"
            )
        values[name] = listed
    return values


def shown(value: Any) -> str:
    """Returns the beginning of a value, for a message."""
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
