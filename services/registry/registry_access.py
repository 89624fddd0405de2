"""Permissions of the registry: the scope of each call, by the caller's grants or the settings."""

from dataclasses import dataclass
from typing import Literal

from services.access.caller import Principal
from services.access.grants import REGISTRY_SCOPES, Grant, Scope, is_moved_by
from services.errors import ForbiddenError

RegistryMode = Literal["granted", "open", "off"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAccess:
    """Decides which calls are permitted."""

    mode: RegistryMode
    """`granted`: without credentials, versions are only read; `open`: they are written too."""
    is_closed: bool
    """True where no call needs a credential, and other machines reach the server."""
    two_person: tuple[Grant, ...] = ()
    """Aliases whose moves need two persons, as grants of `promote`."""
    two_person_rollback: bool = False
    """True if a rollback to an older version needs two, as any other move does."""

    def require(self, principal: Principal, scope: Scope, model: str, alias: str = "") -> None:
        """Checks that a caller has a scope on a model.

        Args:
            principal: the caller.
            scope: one of `REGISTRY_SCOPES`.
            model: name of the model.
            alias: the alias that is moved; empty for none.

        Raises:
            UnknownModelError, ForbiddenError: as `Caller.require_registered`.
            ForbiddenError: it would need a credential, and the server asks for none.
        """
        if principal.caller is not None:
            principal.caller.require_registered(scope, model, alias)
        elif self.is_closed:
            raise ForbiddenError(
                "the registry needs a credential, as other machines reach this server; set "
                "api_keys_file or jwt_keys (docs/guides/security.md)"
            )
        elif scope != "read" and self.mode != "open":
            raise ForbiddenError(
                f"'{scope}' in the registry needs a credential, and this server asks for none; set "
                "api_keys_file or jwt_keys (docs/guides/security.md), or registry=open for "
                "callers on this machine"
            )

    def needs_two(self, model: str, alias: str) -> bool:
        """Returns True if a move of the alias needs two persons."""
        return is_moved_by(self.two_person, model, alias)

    def sees(self, principal: Principal, model: str) -> bool:
        """Returns True if a list shows the model to the caller."""
        caller = principal.caller
        if caller is None:
            return not self.is_closed
        return any(caller.may(scope, model) for scope in REGISTRY_SCOPES)

    def may(self, principal: Principal, scope: Scope, model: str, alias: str = "") -> bool:
        """Returns True if `require` would permit the call."""
        if principal.caller is not None:
            return principal.caller.may(scope, model, alias)
        return not self.is_closed and (scope == "read" or self.mode == "open")

    def reads(self, principal: Principal, model: str) -> bool:
        """Returns True if the caller may read of the model."""
        return self.may(principal, "read", model)
