"""The audit log: every management act with caller, target, peer address, time and outcome.

In: acts, from any thread. Out: one JSON object a line, in a separate append-only file that only its
owner may read, or else in the log of the process.
"""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler

from services.errors import RateLimitedError, ServingError
from services.settings import ConfigError
from services.telemetry.line_allowance import LineAllowance
from services.telemetry.logs import JsonFormatter

logger = logging.getLogger("flambeau.audit")
NOBODY = "anonymous"
LINES_OF_STRANGERS_A_SECOND = 10


def open_audit_log(path: str) -> None:
    """Writes acts to a file; with an empty path, to the log of the process.

    The limit of lines of strangers starts anew.

    Raises:
        ConfigError: it cannot be written.
    """
    global _strangers
    _strangers = LineAllowance(LINES_OF_STRANGERS_A_SECOND)
    logger.setLevel(logging.INFO)  # acts are recorded at any log level of the process
    close_audit_log()
    if not path:
        return
    try:
        handler = _OwnersFile(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"audit_log {path} cannot be written: {error}") from error
    _send_to(handler)


@contextlib.contextmanager
def audit_log_of_command(path: str) -> Iterator[None]:
    """Writes acts to a file during the block, or to standard error: a command has no log.

    Raises:
        ConfigError: the file cannot be written.
    """
    open_audit_log(path)
    if not path:
        _send_to(logging.StreamHandler(sys.stderr))
    try:
        yield
    finally:
        close_audit_log()


def close_audit_log() -> None:
    """Returns acts to the log of the process."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True


def _send_to(handler: logging.Handler) -> None:
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.propagate = False


class _OwnersFile(WatchedFileHandler):
    """Appends to a file that only its owner may read, whatever the umask.

    It detects that log rotation has moved the file, and creates a new one.
    """

    def _open(self) -> TextIOWrapper:
        return open(
            self.baseFilename,
            "a",
            encoding=self.encoding,
            # O_NONBLOCK: a pipe without a reader raises instead of blocking.
            opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK, 0o600),
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line; a failure to write does not fail the act."""
        try:
            super().emit(record)
        except OSError:  # from reopening the file
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Writes the line to the log of the process, with the reason."""
        process = logging.getLogger()
        process.handle(record)
        why = {"file": self.baseFilename, "reason": str(sys.exc_info()[1])}
        process.error("the audit log cannot be written", extra=why)


_strangers = LineAllowance(LINES_OF_STRANGERS_A_SECOND)
"""Line limit of the process: all its ports write to one log."""


@contextlib.contextmanager
def refusals_audited(act: str, target: str, who: str, peer: str, why: str = "") -> Iterator[None]:
    """Records a refusal on the way to an act; an empty `act` records nothing.

    Lines of unknown or rate-limited callers are limited per second, so that they fill no disk.

    Args:
        act: as for `audited`.
        target: as for `audited`; empty if not known yet.
        who: as for `audited`; empty if not known yet.
        peer: address of the caller.
        why: the caller's reason; empty for none.
    """
    try:
        yield
    except ServingError as error:
        left_out: int | None = 0
        if act and (not who or isinstance(error, RateLimitedError)):
            left_out = _strangers.take(time.monotonic())
        if act and left_out is not None:
            record(act, target, who, peer, "refused", str(error), left_out, why)
        raise


@dataclass(slots=True)
class AuditedAct:
    """An act that is under way; its block may say more of it."""

    name: str
    """A verb, as the line says it once the act is done."""
    asked_by: str = ""
    """The caller whose request the act decides; empty for none."""


@contextlib.contextmanager
def audited(act: str, target: str, who: str, peer: str, why: str = "") -> Iterator[AuditedAct]:
    """Records an act with its outcome: `done`, or the error that the block raises.

    Args:
        act: a verb, such as `submit`.
        target: object of the act: a model, a job.
        who: the caller's name; empty for an unknown caller.
        peer: address of the caller.
        why: the caller's reason; empty for none.
    """
    found = AuditedAct(act)
    try:
        with refusals_audited(act, target, who, peer, why):
            yield found
    except ServingError:
        raise  # already recorded
    except BaseException as error:
        record(act, target, who, peer, "failed", type(error).__name__, why=why)
        raise
    record(found.name, target, who, peer, "done", why=why, asked_by=found.asked_by)


def record(
    act: str,
    target: str,
    who: str,
    peer: str,
    outcome: str,
    reason: str = "",
    left_out: int = 0,
    why: str = "",
    asked_by: str = "",
) -> None:
    """Records one act, with the arguments of `audited`; `left_out` earlier lines were omitted."""
    facts: dict[str, str | int] = {
        "act": act,
        "target": target[:200],
        "who": who or NOBODY,
        "peer": peer,
        "outcome": outcome,
    }
    if asked_by:
        facts["asked_by"] = asked_by[:200]
    if why:
        facts["why"] = why[:500]
    if reason:
        facts["reason"] = reason[:500]
    if left_out:
        facts["left_out"] = left_out
    logger.info("act", extra=facts)
