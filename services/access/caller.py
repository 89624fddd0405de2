"""An authenticated caller, by an API key or by a token of the identity provider.

Rule: a model outside the caller's patterns is reported as unknown, whether it exists or not. An
operation that the caller lacks on a visible model is refused as forbidden.
"""

import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

from services.access.grants import ALL_MODELS, REGISTRY_SCOPES, Grant, Scope
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
        self._known: dict[tuple[Scope, str, str], bool] = {}
        self._metrics = metrics

    def is_over(self) -> bool:
        """Returns True if the credential has expired, or is no longer accepted."""
        return self.ended or time.time() >= self.expires_at

    def may(self, scope: Scope, model: str, alias: str = "") -> bool:
        """Returns True if a scope is granted on a model, and on an alias if one is named."""
        found = self._known.get((scope, model, alias))
        if found is None:
            found = any(
                grant.scope == scope and grant.covers(model) and grant.moves(alias)
                for grant in self._grants
            )
            if len(self._known) < MAX_REMEMBERED:
                self._known[scope, model, alias] = found
        return found

    def sees(self, model: str) -> bool:
        """Returns True if the model is visible to this caller."""
        return self.may("infer", model) or self.may("manage", model)

    def sees_all(self) -> bool:
        """Returns True if every model is visible to this caller, whatever its name."""
        return self.may("infer", ALL_MODELS) or self.may("manage", ALL_MODELS)

    def require_registered(self, scope: Scope, model: str, alias: str = "") -> None:
        """Refuses a scope of the registry that is not granted.

        Args:
            scope: one of `REGISTRY_SCOPES`.
            model: name of the model.
            alias: the alias that is moved; empty for none.

        Raises:
            UnknownModelError: no scope of the registry is granted on the model.
            ForbiddenError: another scope, or another alias, is.
        """
        if self.may(scope, model, alias):
            return
        self._metrics.refused.labels("forbidden").inc()
        if not any(self.may(other, model) for other in REGISTRY_SCOPES):
            raise UnknownModelError(f"model '{model[:128]}' is not in the registry")
        where = f"alias '{alias[:128]}' of model" if alias else "model"
        raise ForbiddenError(
            f"{self.name} does not have the scope '{scope}' on {where} '{model[:128]}'; "
            "ask the operator for it"
        )

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

    def sees_all(self) -> bool:
        """Returns True if every model is visible, as `Caller.sees_all`."""
        return self.caller is None or self.caller.sees_all()

    def require_seen(self, model: str) -> None:
        """Checks as `Caller.require_seen`."""
        if self.caller is not None:
            self.caller.require_seen(model)

    def take_request(self) -> None:
        """Counts a request as `Tenant.take_request`."""
        if self.caller is not None:
            self.caller.tenant.take_request()
