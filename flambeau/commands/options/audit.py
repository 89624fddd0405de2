"""The `--audit-log` option of every command that manages shared state."""

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
        help="File to append the audit line of this command to; standard error unless given.",
    ),
]
COMMAND_LINE = "command line"
"""Origin of these actions, as `peer` of their audit lines."""


@contextlib.contextmanager
def written_down(act: str, target: str, audit_log: str) -> Iterator[None]:
    """Writes an audit line about the block; if it cannot be written, the block does not run.

    Args:
        act: action and its kind of target, such as `revoke key`.
        target: name of the target.
        audit_log: audit file; empty for standard error.

    Raises:
        typer.Exit: the file cannot be written.
    """
    from model_store.host.this_user import this_user
    from services.access.audit import audit_log_of_command, audited
    from services.settings import ConfigError

    with contextlib.ExitStack() as stack:
        with failing_with({ConfigError: 2}):
            stack.enter_context(audit_log_of_command(audit_log))
        stack.enter_context(audited(act, target, this_user(), COMMAND_LINE))
        yield
