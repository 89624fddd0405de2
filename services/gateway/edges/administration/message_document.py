"""The JSON form of protocol messages, as Triton's HTTP port has it.

Integers of 64 bits stay numbers, unlike in the JSON mapping of Protocol Buffers. A field that has
no value is there, with its default, unless it is a message or one of alternatives.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

_PLAIN = (str, int, float)


def document_of(message: Message) -> dict[str, Any]:
    """Returns the fields of a message by name, as values that JSON has."""
    found: dict[str, Any] = {}
    for field in message.DESCRIPTOR.fields:
        if not field.has_presence or message.HasField(field.name):
            found[field.name] = _value(field, getattr(message, field.name))
    return found


def _value(field: FieldDescriptor, value: Any) -> Any:
    if isinstance(value, _PLAIN):
        return value if field.enum_type is None else field.enum_type.values_by_number[value].name
    if isinstance(value, Mapping):
        return {str(key): _one(one) for key, one in value.items()}
    return [_value(field, one) for one in value] if isinstance(value, Sequence) else _one(value)


def _one(value: Any) -> Any:
    return document_of(value) if isinstance(value, Message) else value
