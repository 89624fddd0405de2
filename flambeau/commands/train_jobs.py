"""`flambeau train RECIPE` trains here; `flambeau train submit RECIPE` on a training service."""

import difflib
import json
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flambeau.commands.options.as_json import AsJson, print_json
from flambeau.commands.options.set_command import RecipeCommand
from flambeau.commands.options.tls import chosen_tls
from flambeau.commands.options.token import TokenFile, read_token
from flambeau.commands.options.verb_classes import VerbGroup, Verbs
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.tables import UNKNOWN, columns
from flambeau.commands.train import INTERRUPTED, train

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from flambeau.training_jobs import TrainingClient, TrainingEvent, TrainingJob

DEFAULT_SERVER = "127.0.0.1:8004"
HERE = "run"
"""Default subcommand."""


class TrainGroup(VerbGroup):
    """Interprets an unknown subcommand as a recipe to train here."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Inserts the default subcommand, unless the first word is a misspelt subcommand."""
        first = args[0] if args else ""
        if first and first not in self.commands and first != "--help" and not self._near(first):
            args = [HERE, *args]
        return super().parse_args(ctx, args)

    def _near(self, word: str) -> bool:
        """Returns True if a word is similar to a subcommand; recipes have a dot or a colon."""
        is_name = not set(word) & set("./:-")
        return is_name and bool(difflib.get_close_matches(word, self.commands, n=1))


train_app = Verbs(
    cls=TrainGroup,
    no_args_is_help=True,
    help="Train a recipe here (flambeau train RECIPE), or on a training service "
    "(flambeau train submit RECIPE). The options of a training here (--set, --resume, --store, "
    "--runs-dir, --sign-with, --keys) are those of run: flambeau train run --help.",
)
train_app.command(HERE, cls=RecipeCommand)(train)

Server = Annotated[
    str, typer.Option(metavar="HOST:PORT", help="gRPC address of the training service.")
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of the job, as printed by submit.")]


@train_app.command()
def submit(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A YAML or JSON file, or a function: path/file.py:name or package.module:name."
        ),
    ],
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override one value; may be repeated."),
    ] = None,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Folder with the recipe's code; the working directory of the job."),
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show its log until it has finished.")
    ] = False,
    key: Annotated[
        str, typer.Option(help="Idempotency key: submitting it again returns the same job.")
    ] = "",
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Submit a recipe to the training service, and print the job's id.

    Exits with 2 when the recipe or its code is refused; with --follow, with 1 unless it succeeds.
    """
    from flambeau.code_bundle import BundleError, pack

    with _client(server, token_file) as client, failing_with({BundleError: 2}):
        text, name = _recipe_text(recipe)
        packed = pack(bundle) if bundle else b""
        with _refusals():
            job = client.submit(
                text, name=name, overrides=set_ or [], bundle=packed, idempotency_key=key
            )
        _print_outcome(job, job.id, as_json)
        if follow:
            _follow(client, job.id, 0, _print_event_as_json if as_json else None)


@train_app.command()
def schema() -> None:
    """Print the JSON Schema of recipes, for editors."""
    from training.recipe.schema import recipe_schema

    typer.echo(json.dumps(recipe_schema(), indent=2, ensure_ascii=False))


@train_app.command("list")
def list_jobs(
    state: Annotated[
        str, typer.Option(help="Only queued, running, succeeded, failed or cancelled jobs.")
    ] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="Maximum number of jobs.")] = 100,
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """List the newest jobs."""
    with _client(server, token_file) as client:
        try:
            found = client.list(state, limit)
        except ValueError as error:
            raise typer.BadParameter(
                f"'{state}' is none of queued, running, succeeded, failed, cancelled",
                param_hint="--state",
            ) from error
    if as_json:
        print_json([_facts(job) for job in found])
        return
    rows = [("ID", "RECIPE", "STATE", "EPOCH", "CREATED", "VERSION")]
    for job in found:
        version = f"{job.model} {job.version}" if job.version else UNKNOWN
        epoch = str(job.epoch or UNKNOWN)
        rows.append((job.id, job.name, job.state, epoch, _local(job.created_at), version))
    for line in columns(rows):
        typer.echo(line)


@train_app.command()
def get(
    job: JobId,
    recipe: Annotated[bool, typer.Option("--recipe", help="Print its recipe.")] = False,
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Show a job."""
    with _client(server, token_file) as client:
        found = client.get(job)
    if as_json:
        print_json(asdict(found))
        return
    typer.echo(found.recipe if recipe else "\n".join(_lines(found)))


@train_app.command()
def logs(
    job: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Follow to the job's end.")
    ] = False,
    after: Annotated[int, typer.Option(min=0, help="Only events with larger numbers.")] = 0,
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print each event as a line of JSON.")
    ] = False,
) -> None:
    """Show the events of a job; -f follows them, and fails unless the job succeeds."""
    with _client(server, token_file) as client:
        show = _print_event_as_json if as_json else _print_event
        if follow:
            _follow(client, job, after, show)
            return
        for event in client.watch(job, after=after):
            show(event)


@train_app.command()
def cancel(
    job: JobId,
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Cancel a job that is not over."""
    with _client(server, token_file) as client:
        found = client.cancel(job)
    state = found.state if found.is_over else "being cancelled"
    _print_outcome(found, f"{job} is {state}", as_json)


@train_app.command()
def resume(
    job: JobId,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Show its log until it has finished.")
    ] = False,
    server: Server = DEFAULT_SERVER,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Resume a failed or cancelled job from its checkpoint."""
    with _client(server, token_file) as client:
        last = max((event.seq for event in client.watch(job)), default=0) if follow else 0
        found = client.resume(job)
        _print_outcome(found, f"{job} is {found.state}", as_json)
        if follow:
            _follow(client, job, last, _print_event_as_json if as_json else None)


@contextmanager
def _client(server: str, token_file: Path | None = None) -> "Iterator[TrainingClient]":
    from flambeau.errors import AddressError, ClientError, InvalidRequestError
    from flambeau.training_jobs import TrainingClient
    from training.errors import RecipeError

    failures: dict[type[Exception], int] = {ClientError: 1, OSError: 1}
    failures |= dict.fromkeys((InvalidRequestError, RecipeError, AddressError), 2)
    with failing_with(failures):
        token = read_token(token_file)
        with TrainingClient(server, token=token, tls=chosen_tls()) as client:
            yield client


@contextmanager
def _refusals() -> "Iterator[None]":
    """Reports a permission error of the service like an invalid recipe."""
    from flambeau.errors import InvalidRequestError, ServerError

    try:
        yield
    except ServerError as error:
        if error.grpc_code != "PERMISSION_DENIED":
            raise
        raise InvalidRequestError(str(error)) from error


def _recipe_text(source: str) -> tuple[str, str]:
    """Returns a recipe's text and its name for messages; from a function with every default."""
    from training.recipe.file import load_recipe, read_recipe_text, resolved_yaml

    if source.endswith((".yaml", ".yml", ".json")):
        return read_recipe_text(Path(source)), source
    return resolved_yaml(load_recipe(source)), source


def _follow(
    client: "TrainingClient",
    job_id: str,
    after: int,
    show: "Callable[[TrainingEvent], None] | None" = None,
) -> None:
    """Prints events until the job is over; exits with 1 unless it has succeeded."""
    try:
        for event in client.watch(job_id, after=after, follow=True):
            (show or _print_event)(event)
    except KeyboardInterrupt:
        typer.echo(f"it continues; flambeau train logs -f {job_id} shows its log again", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if client.get(job_id).state != "succeeded":
        raise typer.Exit(1)


def _print_outcome(job: "TrainingJob", text: str, as_json: bool) -> None:
    """Prints the state of a job as text, or as a line of JSON like events."""
    if as_json:
        print_json(_facts(job), in_a_line=True)
    else:
        typer.echo(text)


def _print_event(event: "TrainingEvent") -> None:
    if event.kind == "log":
        typer.echo(event.text)
    elif event.kind == "state":
        typer.echo(f"{_local(event.time)}  {event.state}: {event.text}")
    # The run's own log line has the metrics of an epoch.


def _print_event_as_json(event: "TrainingEvent") -> None:
    typer.echo(json.dumps({**asdict(event), "time": event.time.isoformat()}, ensure_ascii=False))


def _facts(job: "TrainingJob") -> dict[str, object]:
    """Returns the fields of a job without its recipe, as in lists."""
    facts = asdict(job)
    del facts["recipe"]
    return facts


def _lines(job: "TrainingJob") -> "Iterator[str]":
    yield f"{job.id}  {job.state}  recipe {job.name}  model {job.model}"
    yield f"  created   {_local(job.created_at)}" + (
        f" by {job.submitter}" if job.submitter else ""
    )
    if job.started_at:
        yield f"  started   {_local(job.started_at)}, attempt {job.attempts}, epoch {job.epoch}"
    if job.worker:
        yield f"  worker    {job.worker}"
    if job.finished_at:
        yield f"  finished  {_local(job.finished_at)}"
    if job.run_folder:
        yield f"  folder    {job.run_folder}"
    if job.version:
        yield f"  published {job.model} {job.version}"
    if job.error:
        yield f"  error     {job.error}"


def _local(moment: Any) -> str:
    return str(moment.astimezone().strftime("%Y-%m-%d %H:%M:%S"))
