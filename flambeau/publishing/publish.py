"""`flambeau.publish`: a model in memory becomes a verified version in a store."""

import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypedDict, Unpack

from pydantic import ValidationError

from flambeau.local.own_process import OwnProcess, OwnProcessError
from flambeau.local.store_url import DEFAULT_STORE, store_url
from flambeau.protocol.names import alias_problem, artifact_problem, name_problem
from flambeau.protocol.sequence_spec import Sequences
from flambeau.protocol.strict import explain, nearest_name
from flambeau.publishing.errors import ExampleError, PublishError, RefusedError
from flambeau.publishing.function_location import located
from flambeau.publishing.pipeline import Pipeline, stage_pipeline
from flambeau.publishing.published import PublishedArtifact, PublishedVersion
from flambeau.publishing.python_files import stage_python_model
from flambeau.publishing.remote_store import RemoteStore, is_remote
from flambeau.publishing.staging import target_array, write_request

IMPORTER = "training.importing.run"

DEFAULT_MAX_BATCH_SIZE = 32
PRODUCTION = "production"
"""The alias that moves unless another one is named."""

# In the order of model_store.semver: `typing` takes two unions for one if their values are equal
# as sets, so the schema of recipes would depend on which was imported first.
Bump = Literal["patch", "minor", "major"]

_OF_CLASSES = ("args", "files", "process")
_OF_NETWORKS = ("outputs", "labels", "dynamic", "batch_axes")


class PublishOptions(TypedDict, total=False):
    """Options of `publish`; each may be left out.

    Attributes:
        outputs: names of the outputs, in order; None for the keys or fields that the model returns,
            or `output`.
        targets: the right answers of the example rows, such as classes [rows]; artifacts are then
            also judged by a metric.
        metric: `accuracy` (of classes), `f1` (of several labels a row) or `rmse` (of numbers); None
            to choose by the type of the targets.
        artifacts: `auto`, or names such as `onnx`, `onnx-int8`, `openvino`, `pt2`, `torchscript`.
        gates: rules by which outputs match, for all or by output, such as
            `{"logits": {"top1": 0.99}}`; None for rules that suit each output and precision.
        alias: alias that moves to the version, `production` unless given; None for none.
        labels: names of the classes along the last axis of an output, by output:
            `{"logits": ["cat", "dog"]}`; of a model with one output also a list alone.
        metadata: text that is stored with the version, such as `{"team": "vision"}`.
        dynamic: smallest and largest size of axes that vary, by input and axis, such as
            `{"image": {2: (8, 64), 3: (8, 64)}}`; sizes of several examples are added. A third
            number, `(8, 64, 2)`, says that sizes are its multiples; without it, multiples are
            found by running the model.
        batch_axes: batch axis of inputs where it is not the first, such as
            `{"state": 1, "rate": None}` (None for an input that all rows share); inputs that are
            not named are found by running the model.
        max_batch_size: largest batch of a server in rows, 32 unless given.
        sequence: states and controls of a model whose requests are steps of sequences, such as
            `{"states": {"state": "state_out"}, "start": "is_first"}`: the server keeps the states
            and fills in these inputs (`help(flambeau.protocol.sequence_spec.Sequences)`). The
            examples have all inputs; their rows are verified as the steps of one sequence.
        args: of a class: its arguments, which the version keeps.
        files: of a class: files that the version keeps for it, such as `tokenizer.json`.
        process: of a class: the process that runs it where it is served. `own`, unless given, is
            one for each instance: a crash, a leak or an endless loop harms no other model, at some
            tens of microseconds a request. `shared` is the server's: faster, and its faults are
            the server's.
        bump: required change of the semantic version; None for the smallest that is right.
    """

    outputs: Sequence[str] | None
    targets: Any
    metric: str | None
    artifacts: Literal["auto"] | Sequence[str]
    gates: Any
    alias: str | None
    labels: Mapping[str, Sequence[str]] | Sequence[str]
    metadata: Mapping[str, str]
    dynamic: Mapping[str, Mapping[int, tuple[int, int] | tuple[int, int, int]]]
    batch_axes: Mapping[str, int | None]
    max_batch_size: int
    sequence: Mapping[str, Any]
    args: Mapping[str, Any]
    files: Sequence[str | os.PathLike[str]]
    process: Literal["own", "shared"]
    bump: Bump | None


def publish(
    model: Any,
    examples: Any,
    *,
    name: str,
    to: str | os.PathLike[str] = DEFAULT_STORE,
    token_file: str | os.PathLike[str] | None = None,
    ca_file: str | os.PathLike[str] | None = None,
    progress: bool | Callable[[str], None] = True,
    **options: Unpack[PublishOptions],
) -> PublishedVersion:
    """Exports a model, verifies each artifact against it, and publishes a version.

    The model runs here, on the examples; torch captures it here, in a forked child. Conversion,
    quantisation, verification and publication run in a process of our own. An artifact is published
    only if its outputs match those of the model.

    Args:
        model: a torch module in evaluation mode on the CPU, or a function of tensors; or a class
            with a method `infer` or `infer_one`, which becomes a Python model; or a `Pipeline` of
            models in the store.
        examples: inputs by name, `{"image": array}`, each [rows, ...]; or one array, or a tuple of
            them in the order of the arguments; or a list of such mappings: for each size that
            inputs may have, or each value of an input without a batch. Arguments with a default
            may be left out, and the version does not have them. From 32 rows on, they also
            calibrate 8-bit artifacts. Give real rows: the verification is as good as they are.
        name: name of the model in the store.
        to: the store: a folder, or the URL of a bucket; or a server, `https://HOST:PORT`, whose
            registry gets the version once it is verified here.
        token_file: file of the key or token that the server asks for.
        ca_file: file of the authorities that signed the server's certificate; None for the
            system's.
        progress: False to print nothing; or a function that receives the name of each step.
        options: `outputs`, `targets`, `metric`, `artifacts`, `gates`, `alias`, `labels`,
            `metadata`, `dynamic`, `batch_axes`, `max_batch_size`, `sequence`, `args`, `files`,
            `process`, `bump`; `help(flambeau.PublishOptions)` describes each.

    Raises:
        TypeError: an option is unknown.
        PublishError: a name or another option is not valid; it is the base of the others.
        ExampleError: the examples do not fit the model.
        CaptureError: torch cannot capture the model, or its answers cannot be verified.
        RefusedError: no artifact matched the model, or the store refused the version, or the server
            does not answer. Nothing was published.
        NotPromotedError: the server has the version, and refused to move the alias.
    """
    _check_options(model, options)
    if is_remote(to):
        version = _publish_remotely(
            model, examples, name, os.fspath(to), token_file, ca_file, progress, options
        )
    elif token_file is not None or ca_file is not None:
        raise PublishError(
            f"to is the store {os.fspath(to)!r}, and token_file and ca_file are for a server, as "
            "in to='https://HOST:8000'; leave them out"
        )
    else:
        version = _publish_into(model, examples, name, to, progress, options)
    _tell_result(version, progress)
    return version


def _publish_remotely(
    model: Any,
    examples: Any,
    name: str,
    url: str,
    token_file: str | os.PathLike[str] | None,
    ca_file: str | os.PathLike[str] | None,
    progress: bool | Callable[[str], None],
    options: PublishOptions,
) -> PublishedVersion:
    """Verifies the model in a temporary store, and pushes the version from there."""
    if isinstance(model, Pipeline):
        raise PublishError(
            "a pipeline is verified beside its models; publish it into the store that has them, "
            "and push it from there (flambeau push)"
        )
    alias = options.get("alias", PRODUCTION)
    with tempfile.TemporaryDirectory(prefix="flambeau-store-") as store:
        _about(name, store, options)  # names are checked before anything is asked of the server
        remote = RemoteStore(url, token_file, ca_file, name, store)
        with _progress(progress) as say:
            say(f"asking {url}")
            remote.prepare()
        local: PublishOptions = {**options, "alias": None}
        version = _publish_into(model, examples, name, store, progress, local)
        with _progress(progress) as say:
            return remote.push(version, alias, say)


def _publish_into(
    model: Any,
    examples: Any,
    name: str,
    to: str | os.PathLike[str],
    progress: bool | Callable[[str], None],
    options: PublishOptions,
) -> PublishedVersion:
    """Exports and verifies the model, and publishes it into a store."""
    about = _about(name, to, options)
    with (
        _progress(progress) as say,
        tempfile.TemporaryDirectory(prefix="flambeau-publish-") as temporary,
    ):
        folder = Path(temporary)
        with _importer(folder) as importer:
            say(f"capturing {name}")
            if isinstance(model, Pipeline):
                stage_pipeline(model, examples, folder, about)
            elif isinstance(model, type):
                stage_python_model(model, examples, folder, about, options)
            else:
                _stage_network(model, examples, folder, about, options, say)
            return importer.run(say)


def _tell_result(version: PublishedVersion, progress: bool | Callable[[str], None]) -> None:
    """Prints what was published, and what was left out and why."""
    if progress is False:
        return
    lines = [f"left out {name}: {reason}" for name, reason in version.refused.items()]
    lines += [f"note: {note}" for note in version.notes]
    moved = f" → {version.alias}" if version.alias else "; no alias moves"
    lines.append(f"published {version}{moved}, in {version.store}")
    for line in lines:
        if progress is True:
            print(line, file=sys.stderr)
        else:
            progress(line)


def _about(name: str, to: str | os.PathLike[str], options: PublishOptions) -> dict[str, Any]:
    """Returns the fields of the request that do not depend on the kind of model.

    Raises:
        PublishError: a name is not valid.
    """
    artifacts, alias = _wanted(options.get("artifacts", "auto")), options.get("alias", PRODUCTION)
    problem = name_problem(name, "model name") or (alias_problem(alias) if alias else None)
    if artifacts != "auto":
        problem = problem or artifact_problem(artifacts)
    if problem is not None:
        raise PublishError(problem)
    return {
        "model": name,
        "store": store_url(to),
        "artifacts": artifacts,
        "gates": located(options.get("gates"), "gates"),
        "metric": options.get("metric"),
        "sequence": _sequences(options.get("sequence")),
        "alias": alias,
        "metadata": dict(options.get("metadata", {})),
        "bump": options.get("bump"),
    }


def _sequences(given: Any) -> Any:
    if given is None:
        return None
    try:
        return Sequences.model_validate(given).model_dump(mode="json")
    except ValidationError as error:
        raise PublishError(f"sequence: {explain(error, Sequences)}") from error


def _stage_network(
    model: Any,
    examples: Any,
    folder: Path,
    about: Mapping[str, Any],
    options: PublishOptions,
    say: Callable[[str], None],
) -> None:
    """Captures a module or a function, and writes the request."""
    from flambeau.publishing.capture import capture
    from flambeau.publishing.examples import read_examples

    given = read_examples(model, examples, options.get("dynamic"), options.get("batch_axes"))
    if about["sequence"] is not None:
        given = replace(given, sequence=Sequences(**about["sequence"]))
    wanted = about["artifacts"]
    captured = capture(
        model,
        given,
        folder=folder,
        outputs=options.get("outputs"),
        labels=options.get("labels"),
        max_batch_size=options.get("max_batch_size", DEFAULT_MAX_BATCH_SIZE),
        script=wanted != "auto" and "torchscript" in wanted,
        say=say,
    )
    inputs, outputs = zip(*captured.rows, strict=True)
    request = {
        **about,
        "source": f"{type(model).__name__} from Python",
        "originals": [{"kind": kind, "file": file} for kind, file in captured.files.items()],
        "refusals": captured.refusals,
        "signature": captured.signature.model_dump(mode="json"),
        "notes": captured.notes,
    }
    rows = len(next(iter(inputs[0].values())))
    write_request(folder, request, inputs, outputs, target_array(options.get("targets"), rows))


def _check_options(model: Any, options: PublishOptions) -> None:
    """Refuses unknown options, and a model that is none of the kinds."""
    known = PublishOptions.__annotations__
    for option in options:
        if option not in known:
            hint = " (to=... says the store)" if option == "store" else nearest_name(option, known)
            raise TypeError(f"publish has no option '{option}'{hint}")
    _check_model(model)
    is_class = isinstance(model, type)
    for option in (*_OF_NETWORKS, *_OF_CLASSES):
        if not options.get(option) or is_class == (option in _OF_CLASSES):
            continue
        if is_class:
            raise PublishError(f"{option} is for modules and functions, and the model is a class")
        raise PublishError(
            f"{option} is for Python models, which are classes with infer or infer_one; leave it "
            "out for a module, a function or a pipeline"
        )


def _check_model(model: Any) -> None:
    if isinstance(model, type) and not (hasattr(model, "infer") or hasattr(model, "infer_one")):
        raise ExampleError(
            f"model is the class {model.__name__}; give an instance, as in {model.__name__}(), or "
            "a class with a method infer or infer_one"
        )
    if not (callable(model) or isinstance(model, Pipeline)):
        raise ExampleError(
            f"model is a {type(model).__name__}; give a torch module, a function of tensors, or a "
            "class with a method infer"
        )


def _wanted(artifacts: Any) -> Any:
    if artifacts == "auto":
        return "auto"
    if isinstance(artifacts, str):
        return [artifacts]
    wanted = [str(each) for each in artifacts]
    if not wanted:
        raise PublishError("artifacts is empty; give 'auto', or names such as ['onnx']")
    return wanted


class _Importer:
    """Our process: it loads its libraries while the model is captured, and then imports it."""

    def __init__(self, folder: Path) -> None:
        waits, self._go = os.pipe()
        try:
            self._process = OwnProcess(
                IMPORTER, str(folder), str(waits), descriptors=[waits], folder=str(folder)
            )
        finally:
            os.close(waits)

    def run(self, say: Callable[[str], None]) -> PublishedVersion:
        """Has it import what the folder contains now; returns its result.

        Raises:
            RefusedError: nothing was published.
        """
        result: dict[str, Any] | None = None
        try:
            with suppress(BrokenPipeError):  # it has died: its output says why
                os.write(self._go, b"\n")
            for event in self._process.events():
                if "step" in event:
                    say(event["step"])
                elif "error" in event:
                    raise RefusedError(event["error"])
                elif "published" in event:
                    result = event["published"]
                    break  # its exit is of no interest
        except OwnProcessError as error:
            raise RefusedError(f"nothing was published: {error}") from None
        if result is None:
            raise RefusedError("nothing was published: our process ended without a result")
        artifacts = tuple(PublishedArtifact(**each) for each in result.pop("artifacts"))
        notes = tuple(result.pop("notes"))
        return PublishedVersion(artifacts=artifacts, notes=notes, **result)

    def close(self) -> None:
        """Ends the process."""
        os.close(self._go)
        self._process.close()


@contextmanager
def _importer(folder: Path) -> Iterator[_Importer]:
    importer = _Importer(folder)
    try:
        yield importer
    finally:
        importer.close()


@contextmanager
def _progress(shown: bool | Callable[[str], None]) -> Iterator[Callable[[str], None]]:
    """Shows the current step: as a status in a terminal or with widgets, else line by line."""
    if not isinstance(shown, bool):
        yield shown
        return
    if not shown:
        yield lambda text: None
        return
    from rich.console import Console

    console = Console(stderr=True)
    has_widgets = console.is_jupyter and find_spec("ipywidgets") is not None
    if not (console.is_terminal or has_widgets):
        yield lambda text: console.print(text, soft_wrap=True, highlight=False, markup=False)
        return
    with console.status("publishing") as status:
        yield status.update
