"""The audit log: every act of management, with who, what, from where, when and its outcome.

In: acts, from any thread. Out: one JSON object a line, in a file of its own that is only appended
to and only its owner may read, or else among the logs of the process.
"""

import contextlib
import logging
import os
from collections.abc import Iterator

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
        # Made first, so that it is never there for others to read.
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600))
        # It notices when it was moved away by whoever rotates logs.
        from logging.handlers import WatchedFileHandler

        handler = WatchedFileHandler(path, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"audit_log {path} cannot be written: {error}") from error
    handler.setFormatter(JsonFormatter())
    for old in list(logger.handlers):
        logger.removeHandler(old)
        old.close()
    logger.addHandler(handler)
    logger.propagate = False


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
