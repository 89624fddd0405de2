"""The `--audit-log` option, the same for every verb that manages something others rely on."""

import contextlib
from collections.abc import Iterator
from typing import Annotated

import typer

from flambeau.commands.text.failures import failing_with

AuditLog = Annotated[
    str,
    typer.Option(
        "--audit-log",
        metavar="FILE",
        help="File that the line about this act is appended to; standard error unless given.",
    ),
]
COMMAND_LINE = "command line"
"""Where these acts come from, as `peer` of their lines."""


@contextlib.contextmanager
def written_down(act: str, target: str, audit_log: str) -> Iterator[None]:
    """Leaves a line about what is done in the block; what cannot be written down is not begun.

    Args:
        act: a verb and what it is done to, such as `revoke key`.
        target: which one.
        audit_log: a file; empty for standard error.

    Raises:
        typer.Exit: the file cannot be written.
    """
    from model_store.store import this_user
    from services.access.audit import audit_log_of_command, audited
    from services.settings import ConfigError

    with contextlib.ExitStack() as stack:
        with failing_with({ConfigError: 2}):
            stack.enter_context(audit_log_of_command(audit_log))
        stack.enter_context(audited(act, target, this_user(), COMMAND_LINE))
        yield
