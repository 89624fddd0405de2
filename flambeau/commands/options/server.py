"""Options of commands that call a model server: its address, and the model's version and inputs."""

from typing import Annotated

import typer

DEFAULT_SERVER = "127.0.0.1:8001"
Server = Annotated[str, typer.Option(metavar="HOST:PORT", help="The server's gRPC address.")]
ServedVersion = Annotated[
    str, typer.Option(help="Version of the model; unless given, the one in production.")
]
Inputs = Annotated[
    list[str],
    typer.Option(
        "--input",
        metavar="NAME=VALUE",
        help="Value of an input: FILE.npy, FILE.json or JSON; repeat it for each input.",
    ),
]
