"""From the requests of a batch to the rows that a handler takes, and from its result to answers.

Pure, but for tensors, which are answered as `torch.save` writes them.
Source: `ts.service` and the messages of TorchServe 0.12: which values are decoded, how results are
encoded, and in which words a batch fails.
"""

import gc
import io
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import orjson

from flambeau.torchserve.handler_context import HandlerContext
from model_store.archives.handler_calls import HandlerAnswer, HandlerRequest, Part

FAILED = ("Prediction failed", 503)
NO_LIST = ("Invalid model predict output", 503)
MISMATCHED = ("number of batch response mismatched", 503)
UNSUPPORTED = ("Unsupported model output data type.", 503)
OUT_OF_RESOURCES = ("Out of resources", 507)
"""Words and codes of a batch that failed."""
MAX_CONTAINERS = 250_000
"""Arrays and objects of a JSON body, each of which takes some 70 bytes: 6 MB of empty ones would
take 140 MB, times the requests of a batch."""
MAX_HEADERS = 64
MAX_HEADER_CHARACTERS = 8192
_OF_NUMBERS = b"0123456789.,-[] \n"
_NUMBERS = {float, int}
_PLAIN_DEPTH = 4
PARTS_HEADER = "ts_stream_next"
"""A header that TorchServe's processes tell each other with; it is not the caller's."""


def rows_of(requests: Sequence[HandlerRequest], decodes: bool) -> list[dict[str, Any]]:
    """Returns the rows of a batch: values by name of the part.

    Args:
        requests: the requests.
        decodes: True to decode JSON and text; what cannot be decoded is passed on as bytes.
    """
    collects = gc.isenabled()
    gc.disable()  # searching millions of new lists for cycles takes seconds, and there are none
    try:
        return [_row(request.parts, decodes) for request in requests]
    finally:
        if collects:
            gc.enable()


def answers_of(
    result: object, context: HandlerContext, count: int, most_bytes: int
) -> list[HandlerAnswer]:
    """Returns the answers to the requests of the context's batch.

    Args:
        result: the handler's result, a list of one element for each request.
        context: has the status and the headers that the handler set.
        count: number of the requests.
        most_bytes: limit of the answers of a batch together.

    Raises:
        Exception: of the handler's own objects, which are asked for status and headers.
    """
    if not isinstance(result, list):
        return failed(NO_LIST, count)
    if len(result) != count:
        return failed(MISMATCHED, count)
    try:
        bodies = [body_of(value) for value in result]
    except MemoryError:
        raise
    except Exception:  # encoding asks objects of the handler's
        return failed(UNSUPPORTED, count)
    answers, left = [], most_bytes
    for place, body in enumerate(bodies):
        left -= len(body)
        if left < 0:
            words = f"the answers of this batch have more than {most_bytes:,} bytes; answer less"
            answers.append(HandlerAnswer(status=503, failure=words))
            continue
        if context.has_defaults(place):  # as nearly all answers do
            answers.append(HandlerAnswer(body=body))
            continue
        status, phrase = context.get_response_status(place)
        headers = context.get_response_headers(place)
        answers.append(
            HandlerAnswer(
                body=body,
                status=_status(status),
                phrase=str(phrase),
                headers=checked_headers(headers) if headers else {},
            )
        )
    return answers


def failed(words: tuple[str, int], count: int) -> list[HandlerAnswer]:
    """Returns the answers of a batch that failed as a whole."""
    return [HandlerAnswer(status=words[1], failure=words[0])] * count


def failure_of(error: BaseException) -> tuple[str, int]:
    """Returns the words and the code for an exception of a handler."""
    try:
        if isinstance(error, MemoryError) or "CUDA" in str(error):
            return OUT_OF_RESOURCES
        code = getattr(error, "error_code", None)
        if type(error).__name__ == "PredictionException" and type(code) is int:
            return str(getattr(error, "message", error)), _status(code)
    except Exception:  # of its own methods
        return FAILED
    return FAILED


def body_of(value: object) -> bytes:
    """Returns a result as the bytes of a body.

    Raises:
        Exception: it is no bytes, text, tensor, or value of JSON.
    """
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    torch = sys.modules.get("torch")  # a tensor cannot come from elsewhere
    if torch is not None and isinstance(value, torch.Tensor):
        buffer = io.BytesIO()
        torch.save(value, buffer)
        return buffer.getvalue()
    if (text := _plain_numbers(value)) is not None:
        return text
    try:
        return msgspec.json.format(json.dumps(value).encode(), indent=2)  # twice as fast as dumps
    except msgspec.DecodeError:  # infinite numbers
        return json.dumps(value, indent=2).encode()


def _plain_numbers(value: object) -> bytes | None:
    """Returns a list of numbers, or of such lists, as indented JSON; None if Python may differ.

    Both write the shortest digits that are read as the same number, and agree on the form of those
    from 0.0001 to below 1e16. orjson takes a ninth of the time.
    """
    if type(value) is not list or not _has_only_numbers(value, _PLAIN_DEPTH):
        return None
    try:
        text = orjson.dumps(value, option=orjson.OPT_INDENT_2)
    except TypeError:
        return None
    is_plain = not text.translate(None, _OF_NUMBERS) and b"0.0000" not in text
    return text if is_plain else None


def _has_only_numbers(values: list[Any], depth: int) -> bool:
    """Returns True for numbers of Python's own types, and lists of them."""
    kinds = set(map(type, values))
    if kinds <= _NUMBERS:
        return True
    return depth > 1 and kinds == {list} and all(_has_only_numbers(v, depth - 1) for v in values)


def checked_headers(headers: Mapping[Any, Any]) -> dict[str, str]:
    """Returns the headers of an answer that HTTP can carry; the others are left out."""
    found: dict[str, str] = {}
    for key, value in headers.items():
        name, text = str(key), str(value)
        is_sound = name.isascii() and name.isprintable() and text.isprintable()
        if (
            is_sound
            and name.strip() == name != ""
            and ":" not in name
            and len(name) + len(text) <= MAX_HEADER_CHARACTERS
            and name.lower() != PARTS_HEADER
            and len(found) < MAX_HEADERS
        ):
            found[name] = text
    return found


def _row(parts: Sequence[Part], decodes: bool) -> dict[str, Any]:
    if len(parts) == 1:  # as nearly all requests have
        return {parts[0].name: _value(parts[0], decodes)}
    return {part.name: _value(part, decodes) for part in parts}


def _value(part: Part, decodes: bool) -> Any:
    try:
        if decodes and part.content_type == "application/json":
            return _json(part.data)
        if decodes and part.content_type.startswith("text"):
            return str(part.data, "utf-8")
    except (ValueError, RecursionError):
        pass
    return bytearray(part.data)


def _json(data: bytes | bytearray | memoryview) -> Any:
    """Returns the value of a JSON text, as `json.loads` does.

    Raises:
        ValueError, RecursionError: it is none, or has too many arrays and objects.
    """
    if len(data) > MAX_CONTAINERS:
        text = bytes(data)
        if text.count(b"[") + text.count(b"{") > MAX_CONTAINERS:
            raise ValueError(f"it has over {MAX_CONTAINERS:,} arrays and objects")
    try:
        return msgspec.json.decode(data)  # five times as fast
    except (ValueError, RecursionError):
        return json.loads(bytes(data))  # it takes more: UTF-16, infinite numbers, lone surrogates


def _status(code: object) -> int:
    """Returns a status that HTTP has, or 500 in place of another value."""
    return code if isinstance(code, int) and 100 <= code <= 599 else 500
