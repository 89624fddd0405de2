"""Options of commands on the registry of a server: its URL, and the reason of a change.

Rule: a server takes the place of the store, so a command refuses both (`verb_classes`).
"""

from typing import Annotated

import typer

SERVER_HELP = "The server http(s)://HOST:PORT, not a store."
ServerUrl = Annotated[str, typer.Option("--server", "--at", metavar="URL", help=SERVER_HELP)]
"""Empty for the store at hand; required by commands that are of servers alone."""
Why = Annotated[str, typer.Option(metavar="TEXT", help="Reason, recorded with the change.")]
