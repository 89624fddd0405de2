"""An authenticated caller, by an API key or by a token of the identity provider.

Rule: a model outside the caller's patterns is reported as unknown, whether it exists or not. An
operation that the caller lacks on a visible model is refused as forbidden.
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
        name: `key:NAME` or `jwt:SUBJECT`, for logs and jobs.
        grants: grants of the credential.
        expires_at: expiry in seconds of Unix time.
        tenant: tenant whose limits apply.
        metrics: counts refusals.

    Attributes:
        ended: True once the credential is revoked or no longer cached.
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
        """Returns True if the credential has expired, or is no longer accepted."""
        return self.ended or time.time() >= self.expires_at

    def may(self, scope: Scope, model: str) -> bool:
        """Returns True if a scope is granted on a model."""
        found = self._known.get((scope, model))
        if found is None:
            found = any(grant.scope == scope and grant.covers(model) for grant in self._grants)
            if len(self._known) < MAX_REMEMBERED:
                self._known[scope, model] = found
        return found

    def sees(self, model: str) -> bool:
        """Returns True if the model is visible to this caller."""
        return self.may("infer", model) or self.may("manage", model)

    def require_seen(self, model: str) -> None:
        """Refuses a model on which the caller has neither scope of a server.

        Raises:
            UnknownModelError: the same as for a model that does not exist.
        """
        if not self.sees(model):
            self._metrics.refused.labels("forbidden").inc()
            raise UnknownModelError(f"model '{model}' is not served")

    def require(self, scope: Scope, model: str) -> None:
        """Refuses a scope that is not granted on a model.

        Raises:
            UnknownModelError: the model is not visible to this caller.
            ForbiddenError: it is visible, but this scope on it is not granted.
        """
        if self.may(scope, model):
            return
        if scope != "train":
            self.require_seen(model)
        self._metrics.refused.labels("forbidden").inc()
        raise ForbiddenError(
            f"{self.name} does not have the scope '{scope}' on model '{model[:128]}'; "
            "ask the operator for it"
        )


class Principal(NamedTuple):
    """The caller of a call, and its address."""

    caller: Caller | None
    """The authenticated caller; None if no credentials are required, which allows everything."""
    peer: str
    """Address of the peer of the connection."""

    @property
    def name(self) -> str:
        """Name in the audit log; empty for an unknown caller."""
        return self.caller.name if self.caller else ""

    def require(self, scope: Scope, model: str) -> None:
        """Checks as `Caller.require`."""
        if self.caller is not None:
            self.caller.require(scope, model)

    def sees(self, model: str) -> bool:
        """Returns True if the model is visible, as `Caller.sees`."""
        return self.caller is None or self.caller.sees(model)

    def require_seen(self, model: str) -> None:
        """Checks as `Caller.require_seen`."""
        if self.caller is not None:
            self.caller.require_seen(model)

    def take_request(self) -> None:
        """Counts a request as `Tenant.take_request`."""
        if self.caller is not None:
            self.caller.tenant.take_request()
