"""`flambeau import`: publishes a model that was trained elsewhere, from its files."""

import sys
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from flambeau.commands.options.as_json import AsJson, print_json
from flambeau.commands.options.ended_by_sigterm import ended_by_sigterm
from flambeau.commands.options.keys import KeysFolder
from flambeau.commands.options.store import DEFAULT_STORE, StoreUrl
from flambeau.commands.options.token import TokenFile
from flambeau.commands.remote.import_target import ImportTarget, import_target
from flambeau.commands.text.failures import failing_with
from model_store.host.install_advice import needing
from model_store.safety.archive_sizes import opened_archive
from model_store.semver.semver import Bump

if TYPE_CHECKING:
    from flambeau.protocol.sequence_spec import Sequences
    from flambeau.protocol.tensors import Array

MAX_EXAMPLE_BYTES = 2**31
"""Limit on the examples, which are read into memory."""


Files = Annotated[
    list[str],
    typer.Argument(
        metavar="FILE",
        help="An ONNX, TorchScript, .pt2, AOTInductor or OpenVINO file, and files beside it; "
        "weights (with --network); a Python file and class, model.py:Model; a TorchServe archive "
        "(.mar); a folder of MLflow, Triton or Hugging Face; or a pipeline in YAML.",
    ),
]
Name = Annotated[
    str,
    typer.Option(
        "--name",
        metavar="MODEL",
        help="Name of the model in the store.",
        show_default="that of the file, or those of the repository",
    ),
]
Examples = Annotated[
    Path | None,
    typer.Option(
        metavar="X.npz",
        help="Example inputs: arrays by input name, or one .npy of a model with one input.",
        show_default="made up where the file allows it",
    ),
]
Artifacts = Annotated[
    str, typer.Option(help="Artifacts to make: auto, or names such as onnx,onnx-int8,openvino.")
]
Gates = Annotated[
    list[str] | None,
    typer.Option(
        "--gate",
        metavar="[OUTPUT:]GATE=LIMIT",
        help="Rule by which outputs match, such as logits:top1=0.99; may be repeated.",
        show_default="by output and precision",
    ),
]
Network = Annotated[
    str,
    typer.Option(metavar="file.py:Net", help="Class of the network that weights belong to."),
]
Arguments = Annotated[
    str, typer.Option("--args", metavar="YAML", help="Arguments of the class: {width: 64}.")
]
SideFiles = Annotated[
    list[Path] | None,
    typer.Option("--files", help="File that a Python model needs; may be repeated."),
]
Process = Annotated[
    Literal["own", "shared"],
    typer.Option(
        help="Process that runs a Python model: one of its own, or the server's, which is faster "
        "and shares its faults."
    ),
]
AllowPickle = Annotated[
    bool,
    typer.Option(
        "--allow-pickle",
        help="Unpickle files that are no plain weights. A pickle can run any code on this machine: "
        "only for files that you trust.",
    ),
]
AllowNativeCode = Annotated[
    bool,
    typer.Option(
        "--allow-native-code",
        help="Open AOTInductor packages. Their native code can do anything on this machine: only "
        "for files that you trust.",
    ),
]
OfRepository = Annotated[
    str, typer.Option("--model", help="The model of a repository to import.", show_default="all")
]
MaxBatchSize = Annotated[
    int | None, typer.Option(min=1, max=65_536, help="Largest batch.", show_default="32")
]
Dynamic = Annotated[
    str,
    typer.Option(
        metavar="YAML",
        help="Smallest and largest size by input and axis: {image: {2: [8, 64]}}; twice the same "
        "fixes it.",
    ),
]
BatchAxes = Annotated[
    list[str] | None,
    typer.Option(
        "--batch-axis",
        metavar="INPUT=AXIS",
        help="Batch axis of an input, where it is not the first, such as state=1, or rate=none for "
        "one without a batch; may be repeated.",
        show_default="as the file names its dimensions",
    ),
]
SequenceOf = Annotated[
    str,
    typer.Option(
        "--sequence",
        metavar="YAML",
        help="States and controls of a model whose requests are steps of sequences: "
        "{states: {state: state_out}, start: is_first}.",
    ),
]
Alias = Annotated[str, typer.Option(help="Alias that moves to the version; empty for none.")]
Labels = Annotated[
    list[str] | None,
    typer.Option(
        "--labels",
        metavar="[OUTPUT=]A,B,C",
        help="Names of the classes of an output, or of the only one; or a file with one a line, "
        "@labels.txt; may be repeated.",
        show_default="those of the files",
    ),
]
Metadata = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", help="Text that is stored with the version; may be repeated."
    ),
]
BumpOf = Annotated[
    Bump | None,
    typer.Option(
        "--bump",
        help="Required change of the semantic version.",
        show_default="the smallest that is right",
    ),
]
SignWith = Annotated[
    str, typer.Option(metavar="KEY", help="Private key that signs the version, or its PEM file.")
]
To = Annotated[
    str,
    typer.Option(
        "--to",
        metavar="URL",
        help="http(s)://HOST:PORT of a server, whose registry gets the version in place of a "
        "store, under its next number.",
    ),
]


def import_(
    files: Files,
    name: Name = "",
    examples: Examples = None,
    artifacts: Artifacts = "auto",
    gates: Gates = None,
    network: Network = "",
    arguments: Arguments = "",
    side_files: SideFiles = None,
    process: Process = "own",
    allow_pickle: AllowPickle = False,
    allow_native_code: AllowNativeCode = False,
    model: OfRepository = "",
    max_batch_size: MaxBatchSize = None,
    dynamic: Dynamic = "",
    batch_axis: BatchAxes = None,
    sequence: SequenceOf = "",
    alias: Alias = "production",
    labels: Labels = None,
    metadata: Metadata = None,
    bump: BumpOf = None,
    store: StoreUrl = DEFAULT_STORE,
    to: To = "",
    token_file: TokenFile = None,
    sign_with: SignWith = "",
    keys: KeysFolder = "",
    as_json: AsJson = False,
) -> None:
    """Publish a model from its files: read, verify and derive artifacts, without training.

    Exits with 0 when a version is published, 2 when a file or an option is wrong, 1 otherwise.
    """
    wished = "auto" if artifacts == "auto" else _names(artifacts)
    _check_names(name, alias, () if artifacts == "auto" else wished)
    wanted = {
        "files": tuple(files),
        "name": name,
        "store": store,
        "examples": None if examples is None else read_examples(examples),
        "artifacts": wished,
        "gates": _gates(gates or []),
        "network": network,
        "args": _mapping(arguments, "--args"),
        "side_files": tuple(side_files or ()),
        "process": process,
        "allow_pickle": allow_pickle,
        "allow_native_code": allow_native_code,
        "model": model,
        "max_batch_size": max_batch_size,
        "dynamic": _sizes(dynamic),
        "batch_axes": read_batch_axes(batch_axis or []),
        "sequence": _sequences(sequence),
        "alias": alias or None,
        "labels": _labels(labels or []),
        "metadata": _metadata(metadata or []),
        "bump": bump,
    }
    with import_target(to, token_file, store, _say) as target:
        _import(wanted, sign_with, keys, as_json, target)


def import_for_serving(
    files: Sequence[str], batch_axes: Mapping[str, int | None], store: str
) -> None:
    """Imports a model into a store of the server's own, under the name of its file.

    Args:
        files: its file or folder, and files beside it.
        batch_axes: batch axis by input, None for none; see `read_batch_axes`.
        store: the folder of the store.
    """
    wanted = {"files": tuple(files), "name": "", "store": store, "alias": "production"}
    _import({**wanted, "batch_axes": batch_axes}, "", "")


@ended_by_sigterm()
def _import(
    wanted: dict[str, Any],
    sign_with: str,
    keys: str,
    as_json: bool = False,
    target: ImportTarget | None = None,
) -> None:
    """Imports files, prints each version, and exits with a code for each kind of error."""
    from flambeau.commands.text.imported import ImportedVersion, print_imported
    from flambeau.protocol.heavy_imports import heavy_imports
    from model_store.errors import (
        ArchiveError,
        BadNameError,
        ModelArchiveError,
        StoreError,
        UnsafeOnnxError,
    )
    from model_store.signatures.key_folder import KeyFolder
    from training.errors import DataError, RecipeError, TrainingError

    codes: dict[type[Exception], int] = {TrainingError: 1, StoreError: 1, OSError: 1}
    wrong = [RecipeError, DataError, BadNameError, ArchiveError, ModelArchiveError, UnsafeOnnxError]
    codes |= dict.fromkeys(wrong, 2)
    found = []
    with failing_with(codes), needing("train"):
        from model_store.signatures.signing import signer_with

        may_fork = "torch" not in sys.modules  # or a caller may have used its threads
        with heavy_imports():
            from training.importing.import_files import FileImport, import_files
            from training.process.isolated_run import fork_process_server
            from training.process.orphans import ending_orphans
        if may_fork:
            fork_process_server()
        key = KeyFolder(keys).signing_key(sign_with)
        sign = signer_with(key) if key else None
        with ending_orphans():
            options = FileImport(**wanted if target is None else {**wanted, **target.options()})
            for imported in import_files(options, _say, sign):
                version = ImportedVersion.of(imported)
                if target is not None:
                    version = target.push(version, wanted["alias"])
                found.append(version.summary)
                if not as_json:
                    print_imported(version)
    if as_json:
        print_json(found)


def read_examples(path: Path) -> "dict[str, Array]":
    """Reads arrays by name from an `.npz` file, or the only input from an `.npy` file.

    Raises:
        BadParameter: it is neither, is too large, or holds Python objects.
    """
    import numpy as np

    if not path.is_file():
        raise typer.BadParameter(f"there is no file {path}", param_hint="--examples")
    if (size := path.stat().st_size) > MAX_EXAMPLE_BYTES:
        raise typer.BadParameter(
            f"{path} has {size:,} bytes; give at most {MAX_EXAMPLE_BYTES:,}",
            param_hint="--examples",
        )
    try:
        if zipfile.is_zipfile(path):
            with opened_archive(path) as archive:
                size = sum(member.file_size for member in archive.infolist())
            if size > MAX_EXAMPLE_BYTES:
                raise ValueError(f"it inflates to {size:,} bytes, of {MAX_EXAMPLE_BYTES:,} allowed")
        with path.open("rb") as file:
            found = np.load(file, allow_pickle=False)
            arrays = {"": found} if isinstance(found, np.ndarray) else dict(found.items())
            # Models take text as bytes.
            return {n: np.char.encode(a) if a.dtype.kind == "U" else a for n, a in arrays.items()}
    except Exception as error:  # damaged files raise many types
        raise typer.BadParameter(
            f"{path} is no .npz or .npy file of numbers or fixed-size text ({error}); write it by "
            "numpy.savez(path, name=array)",
            param_hint="--examples",
        ) from error


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    if not names:
        raise typer.BadParameter(
            "give auto, or names such as onnx,openvino", param_hint="--artifacts"
        )
    return names


def _check_names(name: str, alias: str, artifacts: Sequence[str]) -> None:
    """Checks the spelling of names before anything starts.

    Raises:
        BadParameter: one is not valid.
    """
    from flambeau.protocol.names import alias_problem, artifact_problem, name_problem

    for option, problem in (
        ("--name", name_problem(name, "model name") if name else None),
        ("--alias", alias_problem(alias) if alias else None),
        ("--artifacts", artifact_problem(artifacts)),
    ):
        if problem is not None:
            raise typer.BadParameter(problem, param_hint=option)


def _mapping(text: str, option: str) -> dict[Any, Any]:
    from model_store.yaml_text import YamlError, read_yaml

    if not text:
        return {}
    try:
        found = read_yaml(text)
    except YamlError as error:
        raise typer.BadParameter(f"it is not YAML: {error}", param_hint=option) from error
    if not isinstance(found, dict):
        raise typer.BadParameter(
            f"{text!r} is no mapping; write {{name: value}}", param_hint=option
        )
    return found


def read_batch_axes(texts: Sequence[str]) -> dict[str, int | None]:
    """Reads `state=1` and `rate=none` as the batch axis by input, None for none.

    Raises:
        BadParameter: a text is neither.
    """
    found: dict[str, int | None] = {}
    for text in texts:
        name, _, axis = text.rpartition("=")
        if not name or not (axis == "none" or (axis.isascii() and axis.isdigit())):
            raise typer.BadParameter(
                f"'{text}' is not INPUT=AXIS; write state=1, counted from 0, or state=none",
                param_hint="--batch-axis",
            )
        found[name] = None if axis == "none" else int(axis)
    return found


def _sizes(text: str) -> dict[str, Any]:
    """Returns the smallest and largest size by input and axis."""
    from pydantic import TypeAdapter, ValidationError

    from flambeau.protocol.signature import BoundedAxes

    found = _mapping(text, "--dynamic")
    try:
        return TypeAdapter(BoundedAxes).validate_python(found)
    except ValidationError as error:
        raise typer.BadParameter(
            f"{text!r} is not {{INPUT: {{AXIS: [SMALLEST, LARGEST]}}}}, such as "
            "{image: {2: [8, 64]}}, or {image: {2: [16, 16]}} for one size",
            param_hint="--dynamic",
        ) from error


def _sequences(text: str) -> "Sequences | None":
    """Returns the declaration of states and controls; None without one."""
    from pydantic import ValidationError

    from flambeau.protocol.sequence_spec import Sequences
    from flambeau.protocol.strict import explain

    if not text:
        return None
    try:
        return Sequences.model_validate(_mapping(text, "--sequence"))
    except ValidationError as error:
        raise typer.BadParameter(explain(error, Sequences), param_hint="--sequence") from error


def _gates(texts: Sequence[str]) -> Any:
    """Returns gates as `model_store.gates.parse_gates` reads them; None without any."""
    for_all: dict[str, Any] = {}
    by_output: dict[str, dict[str, Any]] = {}
    for text in texts:
        place, separator, limit = text.partition("=")
        output, _, measure = place.rpartition(":")
        try:
            value = float(limit)
        except ValueError:
            separator = ""
        if not separator or not measure:
            raise typer.BadParameter(
                f"'{text}' is not [OUTPUT:]GATE=LIMIT, such as logits:top1=0.99",
                param_hint="--gate",
            )
        (by_output.setdefault(output, {}) if output else for_all)[measure] = value
    if for_all and by_output:
        raise typer.BadParameter("name an output in all gates, or in none", param_hint="--gate")
    return by_output or for_all or None


def _labels(texts: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Returns the names of classes by output; `""` stands for the only output."""
    found: dict[str, tuple[str, ...]] = {}
    for text in texts:
        output, _, listed = text.rpartition("=") if not text.startswith("@") else ("", "", text)
        try:
            names = (
                Path(listed[1:]).read_text(encoding="utf-8").splitlines()
                if listed.startswith("@")
                else listed.split(",")
            )
        except (OSError, UnicodeError) as error:
            raise typer.BadParameter(
                f"cannot read {listed[1:]} ({error}); give a file with one name a line",
                param_hint="--labels",
            ) from error
        found[output] = tuple(name.strip() for name in names)
        if output in found and "" in found[output]:
            raise typer.BadParameter(
                f"'{text}' has an empty name; write [OUTPUT=]cat,dog", param_hint="--labels"
            )
    return found


def _metadata(texts: Sequence[str]) -> dict[str, str]:
    """Returns the texts of a version by key, after checking them."""
    from pydantic import TypeAdapter, ValidationError

    from model_store.manifest import Metadata as Checked

    found: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.partition("=")
        try:
            found |= TypeAdapter(Checked).validate_python({key: value} if separator and key else 0)
        except ValidationError as error:
            reason = error.errors()[0]["msg"]
            raise typer.BadParameter(
                f"'{text}' is not KEY=VALUE, such as team=vision ({reason})",
                param_hint="--metadata",
            ) from error
    return found


def _say(text: str) -> None:
    typer.echo(text, err=True)
