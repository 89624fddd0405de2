"""The audit log: every act of management, with who, what, from where, when and its outcome.

In: acts, from any thread. Out: one JSON object a line, in a file of its own that is only appended
to and only its owner may read, or else among the logs of the process.
"""

import contextlib
import logging
import os
import sys
import time
from collections.abc import Iterator
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
    """Sends acts to a file; an empty path leaves them in the log of the process.

    Raises:
        ConfigError: it cannot be written.
    """
    logger.setLevel(logging.INFO)  # whatever the process logs, acts are kept
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
    """Sends acts to a file within the block, or to standard error: a command has no log.

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
    """Leaves acts in the log of the process again."""
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
        handler.close()
    logger.propagate = True


def _send_to(handler: logging.Handler) -> None:
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    logger.propagate = False


class _OwnersFile(WatchedFileHandler):
    """Appends to a file that only its owner may read, whatever the mask.

    It notices when the file was moved away by whoever rotates logs, and makes another.
    """

    def _open(self) -> TextIOWrapper:
        return open(
            self.baseFilename,
            "a",
            encoding=self.encoding,
            # A pipe that nobody reads is an error, and not waited for.
            opener=lambda path, flags: os.open(path, flags | os.O_NONBLOCK, 0o600),
        )

    def emit(self, record: logging.LogRecord) -> None:
        """Writes a line; an act that was done is not undone because its file is gone."""
        try:
            super().emit(record)
        except OSError:  # of making the file anew
            self.handleError(record)

    def handleError(self, record: logging.LogRecord) -> None:
        """Has the log of the process keep the line, and say why."""
        process = logging.getLogger()
        process.handle(record)
        why = {"file": self.baseFilename, "reason": str(sys.exc_info()[1])}
        process.error("the audit log cannot be written", extra=why)


_strangers = LineAllowance(LINES_OF_STRANGERS_A_SECOND)
"""One a process, for all its ports write to one log."""


@contextlib.contextmanager
def refusals_audited(act: str, target: str, who: str, peer: str) -> Iterator[None]:
    """Writes down that what leads to an act was refused; `act` empty writes nothing.

    Of callers who are not known, or ask too often, some lines a second: they fill no disk.

    Args:
        act: as for `audited`, and so are the others.
        target: empty where it is not known yet.
        who: likewise.
        peer: where the call came from.
    """
    try:
        yield
    except ServingError as error:
        left_out: int | None = 0
        if act and (not who or isinstance(error, RateLimitedError)):
            left_out = _strangers.take(time.monotonic())
        if act and left_out is not None:
            record(act, target, who, peer, "refused", str(error), left_out)
        raise


@contextlib.contextmanager
def audited(act: str, target: str, who: str, peer: str) -> Iterator[None]:
    """Writes down an act with its outcome: `done`, or the error that the block ends with.

    Args:
        act: a verb, such as `verify`.
        target: what it is done to: a model, a job.
        who: the caller's name; empty for one who is not known.
        peer: where the call came from.
    """
    try:
        with refusals_audited(act, target, who, peer):
            yield
    except ServingError:
        raise  # and is written down
    except BaseException as error:
        record(act, target, who, peer, "failed", type(error).__name__)
        raise
    record(act, target, who, peer, "done")


def record(
    act: str,
    target: str,
    who: str,
    peer: str,
    outcome: str,
    reason: str = "",
    left_out: int = 0,
) -> None:
    """Writes down one act in the words of `audited`; `left_out` lines before it were not."""
    facts: dict[str, str | int] = {
        "act": act,
        "target": target[:200],
        "who": who or NOBODY,
        "peer": peer,
        "outcome": outcome,
    }
    if reason:
        facts["reason"] = reason[:500]
    if left_out:
        facts["left_out"] = left_out
    logger.info("act", extra=facts)
