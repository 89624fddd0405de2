"""`flambeau queue dead`: requests that were running when their workers died."""

import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from flambeau.commands.options.as_json import AsJson, print_json, print_outcome
from flambeau.commands.options.audit import AuditLog, written_down
from flambeau.commands.options.verb_classes import Verbs
from flambeau.commands.text.failures import failing_with
from flambeau.commands.text.tables import columns

if TYPE_CHECKING:
    from services.queueing.records import InferRequest
    from services.queueing.redis_streams.dead_letters import DeadLetter, DeadLetters

queue_app = Verbs(no_args_is_help=True, help="Inspect the queue between gateways and workers.")
dead_app = Verbs(no_args_is_help=True, help="Requests that crashed two workers.")
queue_app.add_typer(dead_app, name="dead")

QueueOption = Annotated[str, typer.Option(help="URL of the Redis or Valkey.")]
LetterArgument = Annotated[str, typer.Argument(metavar="ID", help="Id, from `list`.")]
DEFAULT_QUEUE = "redis://127.0.0.1:6379"

Found = TypeVar("Found")


@dead_app.command("list")
def list_letters(queue: QueueOption = DEFAULT_QUEUE, as_json: AsJson = False) -> None:
    """List dead letters, the oldest first."""
    letters = _with_letters(queue, lambda all_letters: all_letters.all())
    if as_json:
        print_json([_facts(letter) for letter in letters])
        return
    if not letters:
        typer.echo("no dead letters")
        return
    rows = [("ID", "MODEL", "VERSION", "DIED", "ERROR")]
    rows += [
        (x.id, x.lane.model, str(x.lane.version), _when(x), x.error.partition(";")[0])
        for x in letters
    ]
    for line in columns(rows):
        typer.echo(line)


@dead_app.command("show")
def show_letter(
    letter: LetterArgument, queue: QueueOption = DEFAULT_QUEUE, as_json: AsJson = False
) -> None:
    """Show the request of a dead letter."""

    async def show(letters: "DeadLetters") -> "tuple[DeadLetter, InferRequest]":
        found = await letters.find(letter)
        return found, await letters.request(found)

    found, request = _with_letters(queue, show)
    if as_json:
        print_json(
            {
                **_facts(found),
                "request": request.request_id,
                "from": found.address.partition(" ")[0],
                "priority": request.priority,
                "inputs": [
                    {"name": name, "dtype": str(array.dtype), "shape": list(array.shape)}
                    for name, array in request.inputs.items()
                ],
            }
        )
        return
    rows = [
        ("model", found.lane.model),
        ("version", str(found.lane.version)),
        ("request", request.request_id),
        ("from", found.address.partition(" ")[0]),
        ("died", _when(found)),
        ("error", found.error),
        ("priority", str(request.priority)),
    ]
    rows += [
        (f"input {name}", f"{array.dtype} {list(array.shape)}")
        for name, array in request.inputs.items()
    ]
    for line in columns(rows):
        typer.echo(line)


@dead_app.command("retry")
def retry_letter(
    letter: LetterArgument,
    queue: QueueOption = DEFAULT_QUEUE,
    timeout_s: Annotated[float, typer.Option(min=0, help="Seconds to its new deadline.")] = 60.0,
    audit_log: AuditLog = "",
    as_json: AsJson = False,
) -> None:
    """Requeue a dead letter, for example after the model was fixed."""

    async def retry(letters: "DeadLetters") -> None:
        from services.queueing.redis_streams.dead_letters import NoSuchLetterError

        if not await letters.retry(await letters.find(letter), timeout_s):
            raise NoSuchLetterError(f"{letter} was dropped or queued again meanwhile")

    _with_letters(queue, retry, written_down("retry dead letter", letter, audit_log))
    _print_outcome(letter, "queued again", as_json)


@dead_app.command("drop")
def drop_letter(
    letter: LetterArgument,
    queue: QueueOption = DEFAULT_QUEUE,
    audit_log: AuditLog = "",
    as_json: AsJson = False,
) -> None:
    """Delete a dead letter."""

    async def drop(letters: "DeadLetters") -> bool:
        return await letters.drop(await letters.find(letter))

    _with_letters(queue, drop, written_down("drop dead letter", letter, audit_log))
    _print_outcome(letter, "gone", as_json)


def _print_outcome(letter: str, state: str, as_json: bool) -> None:
    print_outcome(f"{letter} is {state}", {"id": letter, "state": state}, as_json)


def _with_letters(
    url: str,
    do: "Callable[[DeadLetters], Awaitable[Found]]",
    around: AbstractContextManager[None] | None = None,
) -> Found:
    import asyncio

    from redis.exceptions import ConnectionError as RedisConnectionError
    from redis.exceptions import RedisError
    from redis.exceptions import TimeoutError as RedisTimeoutError

    from services.queueing.redis_streams.clients import QueueUrlError, RedisClients
    from services.queueing.redis_streams.dead_letters import DeadLetters, NoSuchLetterError
    from services.queueing.redis_streams.outage import unreachable_reason
    from services.queueing.redis_streams.wire import WireError

    async def run() -> Found:
        clients = RedisClients(url)
        letters = DeadLetters(clients)
        try:
            return await do(letters)
        except (RedisConnectionError, RedisTimeoutError) as error:
            raise RedisError(unreachable_reason(clients.url, error)) from error
        finally:
            await letters.close()

    codes: Mapping[type[Exception], int] = {
        QueueUrlError: 2, NoSuchLetterError: 1, WireError: 1, RedisError: 1,
    }  # fmt: skip
    with failing_with(codes), around or nullcontext():
        return asyncio.run(run())


def _when(letter: "DeadLetter") -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(letter.died_at))


def _facts(letter: "DeadLetter") -> dict[str, object]:
    return {
        "id": letter.id,
        "model": letter.lane.model,
        "version": letter.lane.version,
        "died_at": datetime.fromtimestamp(letter.died_at, UTC),
        "error": letter.error,
    }
