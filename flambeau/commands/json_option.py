"""The `--json` option, the same for every verb that shows something."""

import json
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(document: Any) -> None:
    """Prints a document: times in ISO 8601, as are all in Python's `isoformat`."""
    typer.echo(json.dumps(document, indent=2, ensure_ascii=False, default=_text))


def _text(value: Any) -> str:
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
