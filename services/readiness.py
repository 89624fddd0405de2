"""Readiness of a process: True if the models that should be served here are served.

In: after each scan of the store or the fleet, the models that should be served and are not, with
the reasons. Out: readiness, the reasons as text, and a log line when either changes.

Rules:
- a process is not ready before the first full scan, or, with `any_model`, before one model is
  served;
- the setting `readiness` selects the conditions that block;
- reasons are limited to `MAX_REASONS` of `MAX_REASON_CHARACTERS`.
"""

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

logger = logging.getLogger("flambeau.server")

MAX_REASONS = 10
MAX_REASON_CHARACTERS = 500

ReadinessRule = Literal["all_models_once", "all_models", "any_model"]
STARTING = "starting: the models to serve have not all been read yet"


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """The result of one scan of the store or of the fleet."""

    started: bool = True
    """True if everything has been scanned once."""
    served: int = 0
    """Number of models that answer requests without a version."""
    missing: Mapping[str, str] = field(default_factory=dict)
    """Reasons by model that the setting `models` names and that does not exist."""
    refused: Mapping[str, str] = field(default_factory=dict)
    """Reasons by model that exists and whose production version is not served."""
    fault: str = ""
    """Reason why the store itself cannot be served; empty if it can."""
    awaits: str = ""
    """What the process waits for before it can scan everything, without names; empty if nothing."""
    loading: tuple[str, ...] = ()
    """Models that are read, verified or loaded for the first time."""
    unloaded: tuple[str, ...] = ()
    """Models of the store that should not be served, in order."""
    notice: str = ""
    """Reason why what is served may be out of date, although all of it is served; empty if not."""

    def store_fault(self) -> str:
        """Returns the reasons why the store lacks models; empty if none, or not yet scanned."""
        if not self.started:
            return ""
        missing = [f"model '{name}': {why}" for name, why in sorted(self.missing.items())]
        return _short("; ".join([*([self.fault] if self.fault else []), *missing]))


class Readiness:
    """The answer to `/v2/health/ready`, `ServerReady` and grpc.health.v1.

    Args:
        rule: models that must be served; see the setting `readiness`.

    Attributes:
        look: result of the last scan.
        is_ready: True if the process should receive traffic.
    """

    def __init__(self, rule: ReadinessRule = "all_models_once") -> None:
        self._rule = rule
        self.look = Look(started=False)
        self.is_ready = False
        self._was_ready = False
        self._told: tuple[bool, str] = (False, "")

    def see(self, look: Look, about: Mapping[str, Any] | None = None) -> None:
        """Updates readiness from a scan, and logs a change.

        Args:
            look: result of the scan.
            about: further fields of the log line.
        """
        self.look = look
        enough = look.started or (self._rule == "any_model" and look.served > 0)
        self.is_ready = enough and not self._blocks(look)
        self._was_ready = self._was_ready or self.is_ready
        if (enough or look.awaits) and self._told != (told := (self.is_ready, self.why())):
            self._tell(about or {})
            self._told = told

    def why(self) -> str:
        """Returns the models that should be served and are not, as text; empty if none."""
        look = self.look
        if not look.started:
            names = ", ".join(f"'{name}'" for name in look.loading[:MAX_REASONS])
            if not look.fault and names:
                return f"starting: loading {names}"
            return look.fault or look.awaits or STARTING
        models = {**look.missing, **look.refused}
        said = [_short(f"model '{name}': {why}") for name, why in sorted(models.items())]
        if len(said) > MAX_REASONS:
            said = [*said[:MAX_REASONS], f"and {len(said) - MAX_REASONS} more models"]
        return "; ".join([*filter(None, (_short(look.fault), look.notice)), *said])

    def summary(self) -> str:
        """Returns a summary without names and reasons, for callers not allowed to see them."""
        look = self.look
        if not look.started:
            return look.awaits or STARTING
        count = len({**look.missing, **look.refused})
        if not count and not look.fault:
            return look.notice
        what = "the store" if look.fault else f"{count} model{'s' if count > 1 else ''}"
        return f"{what} cannot be served; see the log and the metrics port"

    def _blocks(self, look: Look) -> bool:
        if self._rule == "any_model":
            return not look.served and bool(look.missing or look.refused or look.fault)
        if self._rule == "all_models_once" and self._was_ready:
            return bool(look.missing)  # requests for these models cannot be answered
        return bool(look.missing or look.refused or look.fault)

    def _tell(self, about: Mapping[str, Any]) -> None:
        reason = self.why()
        if not self.look.started and not self.is_ready:
            logger.warning("not ready yet", extra={**about, "reason": reason})
        elif not self.is_ready:
            logger.error("not ready", extra={**about, "reason": reason})
        elif not reason:
            logger.info("ready", extra=dict(about))
        elif reason == self.look.notice:
            logger.warning("ready, from the cache", extra={**about, "reason": reason})
        else:
            logger.warning("ready, but not for every model", extra={**about, "reason": reason})


def _short(text: str) -> str:
    return text if len(text) <= MAX_REASON_CHARACTERS else f"{text[:MAX_REASON_CHARACTERS]}…"
