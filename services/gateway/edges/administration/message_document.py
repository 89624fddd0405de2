"""The JSON form of protocol messages, as Triton's HTTP port has it.

Integers of 64 bits stay numbers, unlike in the JSON mapping of Protocol Buffers. A field that has
no value is there, with its default, unless it is a message or one of alternatives.
"""

from collections.abc import Mapping
from typing import Any

from google.protobuf.message import Message

_PLAIN = (str, int, float)


def document_of(message: Message) -> dict[str, Any]:
    """Returns the fields of a message by name, as values that JSON has."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if not field.has_presence or message.HasField(field.name):
            names = None if field.enum_type is None else field.enum_type.values_by_number
            found[field.name] = _value(getattr(message, field.name), names)
    return found


def _value(value: Any, names: Any) -> Any:
    """Converts the value of a field.

    Args:
        value: the value.
        names: descriptors of the values of an enumeration by their numbers; None for other fields.
    """
    if isinstance(value, Message):
        return document_of(value)
    if isinstance(value, _PLAIN):
        return value if names is None else names[value].name
    if isinstance(value, Mapping):
        return {str(key): _value(one, names) for key, one in value.items()}
    return [_value(one, names) for one in value]
