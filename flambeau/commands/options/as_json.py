"""The `--json` option of every command that prints data."""

import json
from typing import Annotated, Any

import typer

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def print_json(document: Any, *, in_a_line: bool = False) -> None:
    """Prints a document; times are in ISO 8601, by Python's `isoformat`.

    Args:
        document: document to print.
        in_a_line: True for one line, so that further lines of JSON may follow.
    """
    indent = None if in_a_line else 2
    typer.echo(json.dumps(document, indent=indent, ensure_ascii=False, default=_text))


def print_outcome(text: str, facts: Any, as_json: bool) -> None:
    """Prints the outcome of a command: its facts with `--json`, or else a line of text."""
    if as_json:
        print_json(facts)
    else:
        typer.echo(text)


def _text(value: Any) -> str:
    return str(value.isoformat()) if hasattr(value, "isoformat") else str(value)
