"""`flambeau jobs`: submits asynchronous work, and fetches the results later."""

import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flambeau.commands.infer import read_inputs
from flambeau.commands.options.as_json import AsJson, print_json, print_outcome
from flambeau.commands.options.model import ModelName
from flambeau.commands.options.output import writable_file, writable_folder
from flambeau.commands.options.server import DEFAULT_SERVER, Inputs, ServedVersion, Server
from flambeau.commands.options.tls import chosen_tls
from flambeau.commands.options.token import TokenFile, read_token
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.tables import UNKNOWN, columns

if TYPE_CHECKING:
    from flambeau.batch_files import Item
    from flambeau.jobs import Job, JobClient
    from flambeau.model import Model

jobs_app = Verbs(no_args_is_help=True, help="Submit asynchronous jobs, and fetch their results.")

JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of the job, as printed by submit.")]
OutputFile = Annotated[
    Path | None,
    typer.Option(callback=writable_file, help="Write the outputs to this .npz file."),
]
MAX_IN_FLIGHT = 256
"""Most jobs of a batch that are submitted before their results are fetched."""
REPORT_EVERY_S = 5.0


@jobs_app.command()
def submit(
    model: ModelName,
    inputs: Inputs,
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    version: ServedVersion = "",
    key: Annotated[
        str, typer.Option(help="Idempotency key: submitting it again returns the same job.")
    ] = "",
    timeout_s: Annotated[
        float | None, typer.Option(min=0.001, help="Deadline of the job, in seconds.")
    ] = None,
    webhook: Annotated[
        str, typer.Option(help="URL that the server calls when the job is over.")
    ] = "",
    as_json: AsJson = False,
) -> None:
    """Submit a job, and print its id."""
    with _clients(server, token_file) as (served_by, jobs):
        values = read_inputs(inputs)
        arrays = served_by(model, version).arrays(values)
        job = jobs.submit(
            model,
            arrays,
            version=version,
            idempotency_key=key,
            timeout_s=timeout_s,
            webhook=webhook,
        )
    print_outcome(job.id, _facts(job), as_json)


@jobs_app.command()
def get(
    job: JobId,
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    output: OutputFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a job, and its outputs if it is done."""
    with _clients(server, token_file) as (_, jobs):
        _show(jobs.get(job), output, as_json)


@jobs_app.command()
def wait(
    job: JobId,
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    output: OutputFile = None,
    as_json: AsJson = False,
) -> None:
    """Wait until a job is over, and show it. Exits with 1 unless it is done."""
    with _clients(server, token_file) as (_, jobs):
        found = jobs.wait(job)
        _show(found, output, as_json)
    if found.state != "done":
        raise typer.Exit(1)


@jobs_app.command()
def cancel(
    job: JobId,
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a job that is not over."""
    with _clients(server, token_file) as (_, jobs):
        found = jobs.cancel(job)
    print_outcome(f"{job} is {found.state}", _facts(found), as_json)


@jobs_app.command("list")
def list_jobs(
    model: ModelName,
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List a model's newest jobs."""
    with _clients(server, token_file) as (_, jobs):
        found = jobs.list(model)
    if as_json:
        print_json([_facts(job) for job in found])
        return
    rows = [("ID", "VERSION", "STATE", "CREATED", "TOOK")]
    rows += [(x.id, x.version, x.state, _local(x), _took(x)) for x in found]
    for line in columns(rows):
        typer.echo(line)


@jobs_app.command()
def batch(
    model: ModelName,
    source: Annotated[
        Path,
        typer.Option(
            "--input-dir",
            exists=True,
            help="A folder of .npy or .npz files, a .jsonl file, or a .npy file: a stack of rows.",
        ),
    ],
    output_dir: Annotated[
        Path,
        typer.Option(callback=writable_folder, help="Folder of the results, an .npz file each."),
    ],
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    version: ServedVersion = "",
    rows: Annotated[
        int, typer.Option(min=1, help="Rows per job; at most the largest batch of the model.")
    ] = 1024,
) -> None:
    """Run input files through a model as jobs; the same command resumes an interrupted batch."""
    from flambeau.batch_files import check_folder, read_items, result_path
    from flambeau.errors import InvalidRequestError

    with _clients(server, token_file) as (served_by, jobs):
        served = served_by(model, version)
        specs = served.signature.inputs
        # A stack is cut along its first axis.
        only_input = specs[0].name if len(specs) == 1 else ""
        if source.suffix == ".npy" and specs[0].batch_axis != 0:
            raise InvalidRequestError(
                f"{source} is a stack of rows, and the batch of input '{only_input}' is not its "
                "first axis; give a folder of .npz files, one for each request"
            )
        most_rows = min(rows, served.signature.max_batch_size)
        output_dir.mkdir(parents=True, exist_ok=True)
        items = partial(read_items, source, only_input, most_rows)
        names = frozenset(item.name for item in items())
        check_folder(output_dir, source, names)
        done = sum(result_path(output_dir, name).exists() for name in names)
        if done:
            typer.echo(f"{done} of {len(names)} were done before")
        left = (item for item in items() if not result_path(output_dir, item.name).exists())
        failed = _run_batch(jobs, served, version, left, len(names) - done, output_dir)
    if failed:
        raise typer.Exit(1)


def _run_batch(
    jobs: "JobClient",
    served: "Model",
    version: str,
    items: "Iterator[Item]",
    total: int,
    folder: Path,
) -> int:
    """Submits items ahead, and fetches their results. Returns the number of failures."""
    from rich.progress import Progress

    from flambeau.batch_files import result_path, write_arrays
    from flambeau.errors import InvalidRequestError

    in_flight: deque[tuple[Item, str]] = deque()
    states: Counter[str] = Counter()
    report_at = time.monotonic() + REPORT_EVERY_S
    with Progress(disable=not _on_terminal()) as progress:
        bar = progress.add_task(served.name, total=total)
        while True:
            for item in items:
                try:
                    in_flight.append((item, _submit_item(jobs, served, version, item)))
                except InvalidRequestError as error:  # the other items continue
                    states["refused"] += 1
                    typer.echo(f"{item.name}: {error}", err=True)
                    progress.advance(bar)
                if len(in_flight) >= MAX_IN_FLIGHT:
                    break
            if not in_flight:
                break
            item, job_id = in_flight.popleft()
            found = jobs.wait(job_id)
            states[found.state] += 1
            if found.outputs is not None:
                write_arrays(result_path(folder, item.name), found.outputs)
            else:
                typer.echo(f"{item.name}: {found.state} {found.error}", err=True)
            progress.advance(bar)
            if not _on_terminal() and time.monotonic() > report_at:
                typer.echo(f"{states.total()} of {total}")
                report_at += REPORT_EVERY_S
    typer.echo(", ".join(f"{count} {state}" for state, count in states.items()) or "nothing to do")
    return states.total() - states["done"]


def _submit_item(jobs: "JobClient", served: "Model", version: str, item: "Item") -> str:
    """Submits an item, with a new key if an earlier job of it failed. Returns the job's id."""
    from flambeau.batch_files import key_of

    values = item.read()
    inputs, key = served.arrays(values), key_of(item, values, served.name, version)
    while True:
        job = jobs.submit(served.name, inputs, version=version, idempotency_key=key)
        if job.is_new or not job.is_over or job.state == "done":
            return job.id
        key = f"{key[:64]}-{job.id[-16:]}"


def _show(job: "Job", output: Path | None, as_json: bool) -> None:
    """Prints a job, with its outputs unless they are written to a file."""
    from flambeau.tensor_text import describe, listed

    written = job.outputs is not None and output is not None
    if job.outputs is not None and output is not None:
        from flambeau.batch_files import write_arrays

        write_arrays(output, job.outputs)
    if as_json:
        shown = job.outputs is not None and not written
        outputs = listed(job.outputs or {}, set()) if shown else None
        print_json({**_facts(job), "outputs": outputs})
        return
    typer.echo(f"{job.id}  {job.state}  created {_local(job)}  took {_took(job)}")
    if job.error:
        typer.echo(f"error: {job.error}")
    if written:
        typer.echo(f"wrote {output}")
    elif job.outputs is not None:
        typer.echo(describe(job.outputs, set()))


def _facts(job: "Job") -> dict[str, object]:
    """Returns all fields of a job except its outputs."""
    names = ("id", "model", "version", "state", "created_at", "deadline", "finished_at", "error")
    return {name: getattr(job, name) for name in names}


@contextmanager
def _clients(
    server: str, token_file: Path | None
) -> "Iterator[tuple[Callable[[str, str], Model], JobClient]]":
    """Opens clients for a model's signature and for jobs."""
    from flambeau.client import Client
    from flambeau.errors import AddressError, ClientError
    from flambeau.jobs import JobClient

    tls, token = chosen_tls(), read_token(token_file)
    with (
        failing_with({AddressError: 2, ClientError: 1, OSError: 1}),
        Client(server, tls=tls, token=token) as client,
        JobClient(server, tls=tls, token=token) as jobs,
    ):
        yield client.model, jobs


def _local(job: "Job") -> str:
    return job.created_at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _took(job: "Job") -> str:
    if job.finished_at is None:
        return UNKNOWN
    return f"{(job.finished_at - job.created_at).total_seconds():.1f} s"


def _on_terminal() -> bool:
    import sys

    return sys.stdout.isatty()
