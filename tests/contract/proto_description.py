"""A .proto as plain values, to compare it with another one. Imports no stubs."""

from typing import Any


def described(file: Any) -> dict[str, Any]:
    """Returns every message's fields and every service's methods, as plain values."""
    messages = list(file.message_types_by_name.values())
    for message in messages:
        messages += message.nested_types
    return {
        "package": file.package,
        "fields": {
            f"{message.full_name.removeprefix('inference.')}.{field.name}": {
                "number": field.number,
                "type": field.type,
                "repeated": field.is_repeated,
                "message": field.message_type.full_name if field.message_type else None,
                "enum": field.enum_type.full_name if field.enum_type else None,
                "oneof": field.containing_oneof.name if field.containing_oneof else None,
            }
            for message in messages
            for field in message.fields
        },
        "enums": {
            enum.full_name.removeprefix("inference."): {
                value.name: value.number for value in enum.values
            }
            for owner in (file, *messages)
            for enum in owner.enum_types_by_name.values()
        },
        "methods": {
            f"{service.full_name}.{method.name}": {
                "input": method.input_type.full_name,
                "output": method.output_type.full_name,
                "streaming": [method.client_streaming, method.server_streaming],
            }
            for service in file.services_by_name.values()
            for method in service.methods
        },
    }


def together(*files: dict[str, Any]) -> dict[str, Any]:
    """Returns the descriptions of files of one package as one."""
    (package,) = {file["package"] for file in files}
    parts = {
        part: {name: what for file in files for name, what in file[part].items()}
        for part in ("fields", "enums", "methods")
    }
    return {"package": package, **parts}
