"""A caller whom the server knows: by an API key, or by a token of the identity provider.

Rule kept here: a model outside the caller's patterns is answered as one that does not exist,
whether it does or not. What the caller may see and not do is refused as forbidden.
"""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from services.access.grants import Grant, Scope
from services.errors import ForbiddenError, UnknownModelError

if TYPE_CHECKING:
    from services.access.tenants import Tenant
    from services.telemetry.access_metrics import AccessMetrics

MAX_REMEMBERED = 1024


class Caller:
    """The bearer of one credential; made by the authenticator.

    Args:
        name: `key:NAME` or `jwt:SUBJECT`, as logs and jobs have it.
        grants: what it may do.
        expires_at: second of Unix time from which it is nobody.
        tenant: whose limits it is under.
        metrics: counts what it is refused.

    Attributes:
        ended: set when the authenticator knows it no more.
    """

    __slots__ = ("_grants", "_known", "_metrics", "ended", "expires_at", "name", "tenant")

    def __init__(
        self,
        name: str,
        grants: Iterable[Grant],
        expires_at: float,
        tenant: "Tenant",
        metrics: "AccessMetrics",
    ) -> None:
        self.name = name
        self.expires_at = expires_at
        self.tenant = tenant
        self.ended = False
        self._grants = tuple(grants)
        self._known: dict[tuple[Scope, str], bool] = {}
        self._metrics = metrics

    def is_over(self) -> bool:
        """Whether the credential has expired, or is not taken any more."""
        return self.ended or time.time() >= self.expires_at

    def may(self, scope: Scope, model: str) -> bool:
        """Whether a scope is granted on a model."""
        found = self._known.get((scope, model))
        if found is None:
            found = any(grant.scope == scope and grant.covers(model) for grant in self._grants)
            if len(self._known) < MAX_REMEMBERED:
                self._known[scope, model] = found
        return found

    def sees(self, model: str) -> bool:
        """Whether the model is there for this caller."""
        return self.may("infer", model) or self.may("manage", model)

    def require_seen(self, model: str) -> None:
        """Refuses a model that no scope of a server's names.

        Raises:
            UnknownModelError: as of a model that does not exist.
        """
        if not self.sees(model):
            self._metrics.refused.labels("forbidden").inc()
            raise UnknownModelError(f"model '{model}' is not served")

    def require(self, scope: Scope, model: str) -> None:
        """Refuses what is not granted.

        Raises:
            UnknownModelError: the model is not for this caller at all.
            ForbiddenError: it is, and this scope on it is not.
        """
        if self.may(scope, model):
            return
        if scope != "train":
            self.require_seen(model)
        self._metrics.refused.labels("forbidden").inc()
        raise ForbiddenError(
            f"{self.name} has not the scope '{scope}' on model '{model[:128]}'; "
            "ask the operator for it"
        )


class Principal(NamedTuple):
    """Who makes a call, and from where."""

    caller: Caller | None
    """None where nobody is asked for a credential: then all of this allows everything."""
    peer: str
    """The other end of the connection."""

    @property
    def name(self) -> str:
        """As in the audit log; empty for who is not known."""
        return self.caller.name if self.caller else ""

    def require(self, scope: Scope, model: str) -> None:
        """As `Caller.require`."""
        if self.caller is not None:
            self.caller.require(scope, model)

    def sees(self, model: str) -> bool:
        """As `Caller.sees`."""
        return self.caller is None or self.caller.sees(model)

    def require_seen(self, model: str) -> None:
        """As `Caller.require_seen`."""
        if self.caller is not None:
            self.caller.require_seen(model)

    def take_request(self) -> None:
        """As `Tenant.take_request`."""
        if self.caller is not None:
            self.caller.tenant.take_request()
