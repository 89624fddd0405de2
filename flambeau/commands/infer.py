"""`flambeau infer`: sends one request to a served model."""

from typing import Annotated, Any

import typer

from flambeau.commands.options.model import ModelName
from flambeau.commands.options.server import DEFAULT_SERVER, Inputs, ServedVersion, Server
from flambeau.commands.options.tls import chosen_tls
from flambeau.commands.options.token import TokenFile, read_token
from flambeau.commands.text.failures import failing_with


def infer(
    model: ModelName,
    inputs: Inputs,
    server: Server = DEFAULT_SERVER,
    version: ServedVersion = "",
    outputs: Annotated[
        list[str] | None,
        typer.Option("--output", metavar="NAME", help="An output to return; all unless given."),
    ] = None,
    artifact: Annotated[
        str, typer.Option(metavar="NAME", help="The artifact that must answer, such as onnx-int8.")
    ] = "",
    accuracy: Annotated[
        str, typer.Option(help="exact, balanced or fast: the fastest artifact that qualifies.")
    ] = "",
    timeout_s: Annotated[
        float, typer.Option(min=0.001, max=86_400, help="Timeout in seconds.")
    ] = 30.0,
    token_file: TokenFile = None,
    json: Annotated[bool, typer.Option("--json", help="Print the outputs as JSON.")] = False,
) -> None:
    """Run a served model on your arrays and show the outputs."""
    from flambeau.client import Client
    from flambeau.errors import AddressError, ClientError
    from flambeau.tensor_text import as_json, describe

    with failing_with({AddressError: 2, ClientError: 1}):
        values = read_inputs(inputs)
        token = read_token(token_file)
        with Client(server, timeout_s=timeout_s, tls=chosen_tls(), token=token) as client:
            served = client.model(model, version)
            arrays = served.infer(
                values, outputs=outputs or (), artifact=artifact, accuracy=accuracy
            )
    bf16 = {spec.name for spec in served.signature.outputs if spec.datatype == "BF16"}
    labels = served.signature.labels
    typer.echo(as_json(arrays, bf16) if json else describe(arrays, bf16, labels))


def read_inputs(arguments: list[str]) -> dict[str, Any]:
    """Parses every `NAME=VALUE`, before the server is contacted.

    Raises:
        typer.Exit: with 2, after the error message of an unreadable value.
    """
    from flambeau.errors import InvalidRequestError
    from flambeau.tensor_text import read_input

    values: dict[str, Any] = {}
    with failing_with({InvalidRequestError: 2}):
        for argument in arguments:
            name, equals, text = argument.partition("=")
            if not name or not equals:
                raise InvalidRequestError(f"--input {argument}: give NAME=FILE.npy or NAME=JSON")
            if name in values:
                raise InvalidRequestError(f"--input {name} is given twice")
            values[name] = read_input(name, text)
    return values
