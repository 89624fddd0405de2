"""Calls a function that opens a foreign file, in a separate process with limits.

The process limits what a damaged file does to this one. It has the rights of the user: it is no
sandbox for code.
"""

from collections.abc import Callable
from typing import Any, TypeVar

from model_store.errors import StoreError
from training.errors import IsolationError, SourceError, TrainingError
from training.process.isolated_run import run_limited
from training.recipe.recipe import ExportLimits

Result = TypeVar("Result")


def call_apart(
    call: Callable[..., Result], *arguments: Any, where: str, limits: ExportLimits
) -> Result:
    """Returns the function's result.

    Args:
        call: a function of a module; its errors of ours pass unchanged.
        arguments: its arguments.
        where: the file, for messages.
        limits: limits of the process.

    Raises:
        SourceError: it raised, died, or exceeded a limit.
    """
    try:
        refusal, found = run_limited(
            _answer,
            call,
            arguments,
            limits=limits,
        )
    except IsolationError as error:
        raise SourceError(f"{where} cannot be opened: {error}") from None
    if refusal is not None:
        raise SourceError(refusal)
    return found  # type: ignore[no-any-return]


def _answer(call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str | None, Any]:
    try:
        return None, call(*arguments)
    except IsolationError:
        raise
    except (TrainingError, StoreError) as error:
        return str(error), None
