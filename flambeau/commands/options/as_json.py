"""The `--json` option, the same for every verb that shows something."""

import json
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(document: Any, *, in_a_line: bool = False) -> None:
    """Prints a document: times in ISO 8601, as are all in Python's `isoformat`.

    Args:
        document: what to print.
        in_a_line: whether further lines of JSON may follow.
    """
    indent = None if in_a_line else 2
    typer.echo(json.dumps(document, indent=indent, ensure_ascii=False, default=_text))


def _text(value: Any) -> str:
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
