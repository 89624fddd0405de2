"""Prints the addresses and models of a started server, and example requests to paste."""

import json
import math
import sys
from collections.abc import Callable

from flambeau.commands.options.token import KEY_VARIABLE
from flambeau.protocol.signature import Signature
from flambeau.protocol.tensors import DATATYPES
from services.gateway.front import Listening
from services.queueing.records import Lane, ServedVersion

MAX_EXAMPLE_ELEMENTS = 256
"""Largest input for which an example request is printed."""


def print_listening(listening: Listening, called: Callable[[Lane], str] | None = None) -> None:
    """Prints to standard output and flushes, so that a parent process can wait for it.

    Args:
        listening: a started server.
        called: returns the name and version of a lane for its callers; None for the lane's own.
    """
    print("\n".join(_lines(listening, called)), flush=True)


def _lines(listening: Listening, called: Callable[[Lane], str] | None) -> list[str]:
    host = "127.0.0.1" if listening.host == "0.0.0.0" else listening.host  # noqa: S104
    http = f"{'https' if listening.is_tls else 'http'}://{host}:{listening.http_port}"
    grpc = f"{host}:{listening.grpc_port}"
    lines = ["", *(_served_line(served, called) for served in listening.served)]
    found = listening.found
    lines += [f"NOT serving {name}: {why}" for name, why in sorted(found.missing.items())]
    if found.fault:
        lines.append(f"NOT serving: {found.fault}")
    elif not listening.served and not found.missing:
        what = "models are served once published"
        if listening.addresses:
            what = "archives are served once registered, by load_models, --models or POST /models"
        lines.append(f"nothing to serve yet; {what}")
    lines += [f"warning: {listening.warning}"] if listening.warning else []
    lines += [f"  runs as  {listening.processes}"] if listening.processes else []
    if listening.addresses:
        return [*lines, *(f"  {name:<20} {one}" for name, one in listening.addresses.items())]
    lines += [f"  store    {listening.store}"] if listening.store else []
    lines += [
        f"  REST     {http}/v2",
        f"  docs     {http}/docs",
        f"  gRPC     {grpc}",
        f"  metrics  http://{host}:{listening.metrics_port}/metrics",
    ]
    ready = [served for served in listening.served if served.signature]
    # With TLS they would need the caller's trusted authority, which is unknown here.
    if ready and not listening.is_tls and (example := _example(ready[-1].signature)):
        asked = listening.asks_for_credentials
        first = f"try it, with your key in ${KEY_VARIABLE}:" if asked else "try it:"
        lines += [first, *_pasteable(ready[-1].lane.model, http, grpc, example, asked), ""]
    return lines


def _served_line(served: ServedVersion, called: Callable[[Lane], str] | None) -> str:
    name = called(served.lane) if called else f"{served.lane.model} {served.lane.version}"
    if served.state != "ready":
        return f"NOT serving {name}: {served.reason}"
    return f"serving {name}" if called else f"serving {name} ({served.artifact or 'pipeline'})"


def _example(signature: Signature | None) -> list[dict[str, object]]:
    """Builds one row of zeros for every input; empty if they are too large or not numbers.

    It is empty for steps of sequences, too: one request alone shows nothing of them.
    """
    inputs: list[dict[str, object]] = []
    if signature is not None and signature.sequence is not None:
        return inputs
    for spec in signature.inputs if signature else ():
        if spec.optional:
            continue
        shape = [1 if dimension == -1 else dimension for dimension in spec.shape]
        count = math.prod(shape)
        if count > MAX_EXAMPLE_ELEMENTS or spec.datatype in ("BYTES", "BOOL", "FP16", "BF16"):
            return []
        inputs.append(
            {"name": spec.name, "datatype": spec.datatype, "shape": shape, "data": [0] * count}
        )
    return inputs


def _pasteable(
    model: str, http: str, grpc: str, inputs: list[dict[str, object]], asked: bool
) -> list[str]:
    """Formats the request for curl and for the client, with a credential if one is required."""
    # By standard input instead of an argument, which every user of the machine could see.
    told = f"""printf 'Authorization: Bearer %s' "${KEY_VARIABLE}" | """ if asked else ""
    header, token = (" -H @-", f', token=environ["{KEY_VARIABLE}"]') if asked else ("", "")
    body = json.dumps({"inputs": inputs}, separators=(",", ":"))
    arguments = ", ".join(
        f'"{tensor["name"]}": np.zeros({tensor["shape"]}, "{DATATYPES[str(tensor["datatype"])]}")'
        for tensor in inputs
    )
    return [
        f"{told}curl -s {http}/v2/models/{model}/infer{header} -d '{body}'",
        f"{sys.executable} - <<'END'",
        *(["from os import environ"] if asked else []),
        "import numpy as np, flambeau",
        f'with flambeau.Client("{grpc}"{token}) as client:',
        f'    print(client.model("{model}")(**{{{arguments}}}))',
        "END",
    ]
