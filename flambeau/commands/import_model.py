"""`flambeau import`: publishes a model that was trained elsewhere, from its files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flambeau.commands.options.keys import KeysFolder
from flambeau.commands.options.store import DEFAULT_STORE, StoreUrl
from flambeau.commands.text.failures import failing_with
from model_store.host.install_advice import needing

if TYPE_CHECKING:
    pass

MAX_EXAMPLE_BYTES = 2**31
"""Limit on the examples, which are read into memory."""


def import_(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE…",
            help="An ONNX, TorchScript, .pt2, AOTInductor or OpenVINO file; weights (with "
            "--network); a Python file and class, model.py:Model; a folder of MLflow, Triton or "
            "Hugging Face; or a pipeline in YAML.",
        ),
    ],
    name: Annotated[
        str, typer.Option("--name", metavar="MODEL", help="Name of the model in the store.")
    ],
    examples: Annotated[
        Path | None,
        typer.Option(
            metavar="X.npz",
            help="Example inputs: arrays by input name, or one .npy of a model with one input.",
            show_default="made up where the file allows it",
        ),
    ] = None,
    artifacts: Annotated[
        str,
        typer.Option(help="Artifacts to make: auto, or names such as onnx,onnx-int8,openvino."),
    ] = "auto",
    gate: Annotated[
        list[str] | None,
        typer.Option(
            metavar="[OUTPUT:]GATE=LIMIT",
            help="Rule by which outputs match, such as logits:top1=0.99; may be repeated.",
            show_default="by output and precision",
        ),
    ] = None,
    network: Annotated[
        str,
        typer.Option(
            metavar="file.py:Net", help="Class of the network that a file of weights belongs to."
        ),
    ] = "",
    args: Annotated[
        str, typer.Option(metavar="YAML", help="Arguments of the class, such as {width: 64}.")
    ] = "",
    side_files: Annotated[
        list[Path] | None,
        typer.Option("--files", help="File that a Python model needs; may be repeated."),
    ] = None,
    allow_pickle: Annotated[
        bool,
        typer.Option(
            "--allow-pickle",
            help="Unpickle files that are no plain weights. A pickle can run any code on this "
            "machine: only for files that you trust.",
        ),
    ] = False,
    max_batch_size: Annotated[
        int | None, typer.Option(min=1, max=65_536, help="Largest batch.", show_default="32")
    ] = None,
    dynamic: Annotated[
        str,
        typer.Option(
            metavar="YAML",
            help="Smallest and largest size by input and axis: {image: {2: [8, 64]}}.",
        ),
    ] = "",
    alias: Annotated[
        str, typer.Option(help="Alias that moves to the version; empty for none.")
    ] = "production",
    store: StoreUrl = DEFAULT_STORE,
    sign_with: Annotated[
        str,
        typer.Option(metavar="KEY", help="Private key that signs the version, or its PEM file."),
    ] = "",
    keys: KeysFolder = "",
) -> None:
    """Publish a model from its files: read, verify and derive artifacts, without training.

    Exits with 0 when a version is published, 2 when a file or an option is wrong, 1 otherwise.
    """
    from flambeau.commands.text.imported import print_imported
    from model_store.errors import StoreError
    from model_store.signatures.key_folder import KeyFolder
    from training.errors import DataError, RecipeError, TrainingError

    codes: dict[type[Exception], int] = {TrainingError: 1, StoreError: 1, OSError: 1}
    codes |= {RecipeError: 2, DataError: 2}
    with failing_with(codes), needing("train"):
        from model_store.signatures.signing import signer_with
        from training.importing.import_files import FileImport, import_files

        key = KeyFolder(keys).signing_key(sign_with)
        wanted = FileImport(
            files=tuple(files),
            name=name,
            examples=None if examples is None else read_arrays(examples),
            artifacts="auto" if artifacts == "auto" else _names(artifacts),
            gates=_gates(gate or []),
            network=network,
            args=_mapping(args, "--args"),
            side_files=tuple(side_files or ()),
            allow_pickle=allow_pickle,
            max_batch_size=max_batch_size,
            dynamic=_mapping(dynamic, "--dynamic"),
            alias=alias or None,
            store=store,
        )
        for imported in import_files(wanted, _say, signer_with(key) if key else None):
            print_imported(imported)
