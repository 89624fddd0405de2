"""`flambeau samples`: requests and responses stored by a gateway (`payload_samples`)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from flambeau.commands.options.as_json import AsJson, print_json
from flambeau.commands.options.audit import AuditLog, written_down
from flambeau.commands.options.model import ModelName
from flambeau.commands.options.store import (
    DEFAULT_STORE,
    STORE_FAILURES,
    StoreUrl,
    existing_store,
)
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.tables import UNKNOWN, columns
from model_store.errors import ModelNotFoundError

if TYPE_CHECKING:
    from model_store.samples.payload_sample import PayloadSample, SampledTensor

samples_app = Verbs(no_args_is_help=True, help="Read and delete samples of requests and responses.")

RequestId = Annotated[str, typer.Argument(metavar="ID", help="Request id, from `list`.")]


@samples_app.command("list")
@failing_with(STORE_FAILURES)
def list_samples(
    model: ModelName,
    version: Annotated[int | None, typer.Option(min=1, help="Only this version.")] = None,
    last: Annotated[int, typer.Option(min=1, help="Maximum number, newest first.")] = 20,
    store: StoreUrl = DEFAULT_STORE,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print them as stored, one line of JSON each.")
    ] = False,
) -> None:
    """List samples of a model, the newest last."""
    kept = _samples(store, model)
    found = [one for one in kept if version in (None, one.version)][-last:]
    if not found:
        _tell_none(store, model, version, is_model=bool(kept), as_json=as_json)
    elif as_json:
        for sample in found:
            typer.echo(sample.to_line(), nl=False)
    else:
        _print_table(found)


def _tell_none(
    store: str, model: str, version: int | None, *, is_model: bool, as_json: bool
) -> None:
    """Prints that there are no samples; fails if the name is not that of a model.

    A bucket only for samples has no models, so that any name may have samples there.
    """
    of_version = f" version {version}" if version else ""
    told = f"no samples of '{model}'{of_version} in {store}"
    known = existing_store(store).models()
    if is_model or model in known or not known:
        typer.echo(told, err=as_json)  # as JSON, an empty output is no samples
        return
    raise ModelNotFoundError(f"{told}, which has no such model{_nearest(model, store)}")


def _print_table(found: "list[PayloadSample]") -> None:
    rows = [("TIME", "REQUEST", "VERSION", "STATUS", "MS", "INPUTS", "OUTPUTS")]
    rows += [
        (f"{x.time.astimezone():%Y-%m-%d %H:%M:%S}", x.request_id, str(x.version), x.status,
         f"{x.duration_ms:.1f}", _shapes(x.inputs), _shapes(x.outputs))
        for x in found
    ]  # fmt: skip
    for line in columns(rows):
        typer.echo(line)


@samples_app.command()
@failing_with(STORE_FAILURES)
def show(
    model: ModelName,
    request_id: RequestId,
    store: StoreUrl = DEFAULT_STORE,
    as_json: AsJson = False,
) -> None:
    """Show the samples of a request, with their values if they were kept."""
    found = [one for one in _samples(store, model) if one.request_id == request_id]
    if not found:
        typer.echo(
            f"error: no sample of '{model}'{_nearest(model, store)} has the request id "
            f"'{request_id}'",
            err=True,
        )
        raise typer.Exit(1)
    if as_json:
        print_json([sample.model_dump(mode="json") for sample in found])
        return
    for sample in found:
        rows = [
            ("time", sample.time.isoformat()),
            ("version", str(sample.version)),
            ("artifact", sample.artifact or UNKNOWN),
            ("status", f"{sample.status} {sample.error}".rstrip()),
            ("protocol", sample.protocol),
            ("duration", f"{sample.duration_ms:.3f} ms"),
            ("trace", sample.trace_id or UNKNOWN),
        ]
        for line in columns(rows):
            typer.echo(line)
        for kind, tensors in (("input", sample.inputs), ("output", sample.outputs)):
            for tensor in tensors:
                for line in _tensor_lines(kind, tensor):
                    typer.echo(line)


@samples_app.command()
@failing_with(STORE_FAILURES)
def delete(
    model: ModelName,
    request_id: Annotated[
        str | None, typer.Option(help="Only samples of this request; all unless given.")
    ] = None,
    store: StoreUrl = DEFAULT_STORE,
    audit_log: AuditLog = "",
    as_json: AsJson = False,
) -> None:
    """Delete samples of a model. A server with sampling may write new ones."""
    from model_store.samples.payload_samples import delete_samples

    with written_down("delete samples", f"{model} {request_id or ''}".strip(), audit_log):
        chosen = None if request_id is None else lambda one: one.request_id == request_id
        count = delete_samples(existing_store(store).storage, model, chosen)
        if not count:  # a misspelt name must not seem to be done
            _tell_none(store, model, None, is_model=False, as_json=True)
    if as_json:
        counted = "files" if request_id is None else "samples"
        print_json({"model": model, "request_id": request_id, f"deleted_{counted}": count})
        return
    if request_id is None:
        typer.echo(f"deleted all samples of '{model}' ({count} files)")
        return
    typer.echo(f"deleted {count} samples of '{model}' with the request id '{request_id}'")


def _samples(store: str, model: str) -> "list[PayloadSample]":
    """Reads all samples of a model, in order of time."""
    from model_store.samples.payload_samples import read_samples

    return sorted(
        read_samples(existing_store(store).storage, model), key=lambda sample: sample.time
    )


def _nearest(model: str, store: str) -> str:
    """Returns a hint with the nearest model of the store, or "" if the model is in it."""
    from flambeau.protocol.strict import nearest_name

    known = existing_store(store).models()
    return "" if model in known else nearest_name(model, known)


def _shapes(tensors: "tuple[SampledTensor, ...]") -> str:
    return " ".join(f"{x.name}[{','.join(map(str, x.shape))}]" for x in tensors) or UNKNOWN


def _tensor_lines(kind: str, tensor: "SampledTensor") -> Iterator[str]:
    from flambeau.tensor_text import describe

    array = tensor.array()
    if array is not None:
        bf16 = [tensor.name] if tensor.datatype == "BF16" else []
        yield f"{kind} {describe({tensor.name: array}, bf16)}"
        return
    shape = ",".join(map(str, tensor.shape))
    yield f"{kind} {tensor.name}  {tensor.datatype} [{shape}]  values left out: {tensor.left_out}"
    if tensor.statistics is not None:
        facts = tensor.statistics.model_dump()
        yield "  " + ", ".join(f"{name} {value:.6g}" for name, value in facts.items())
