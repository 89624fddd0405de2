"""The audit log: every act of management, with who, what, from where, when and its outcome.

In: acts, from any thread. Out: one JSON object a line, in a file of its own that is only appended
to and only its owner may read, or else among the logs of the process.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from io import TextIOWrapper
from logging.handlers import WatchedFileHandler

from services.errors import ServingError
from services.settings import ConfigError
from services.telemetry.logs import JsonFormatter

logger = logging.getLogger("flambeau.audit")
NOBODY = "anonymous"


def open_audit_log(path: str) -> None:
    """Sends acts to a file; an empty path leaves them in the log of the process.

    Raises:
        ConfigError: it cannot be written.
    """
    logger.setLevel(logging.INFO)  # whatever the process logs, acts are kept
    if not path:
        return
    try:
        handler = _OwnersFile(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"audit_log {path} cannot be written: {error}") from error
    handler.setFormatter(JsonFormatter())
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
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
            opener=lambda path, flags: os.open(path, flags, 0o600),
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


@contextlib.contextmanager
def audited(act: str, target: str, who: str, peer: str) -> Iterator[None]:
    """Writes down an act with its outcome: `done`, or the error that the block ends with.

    Args:
        act: a verb, such as `verify`.
        target: what it is done to: a model, a job.
        who: the caller's name; empty for one who is not known.
        peer: where the call came from.
    """
    outcome, reason = "done", ""
    try:
        yield
    except ServingError as error:
        outcome, reason = "refused", str(error)
        raise
    except BaseException as error:
        outcome, reason = "failed", type(error).__name__
        raise
    finally:
        record(act, target, who, peer, outcome, reason)


def record(act: str, target: str, who: str, peer: str, outcome: str, reason: str = "") -> None:
    """Writes down one act; the words are those of `audited`."""
    facts = {
        "act": act,
        "target": target[:200],
        "who": who or NOBODY,
        "peer": peer,
        "outcome": outcome,
    }
    if reason:
        facts["reason"] = reason[:500]
    logger.info("act", extra=facts)
