"""The models of a server's registry, as a `ModelPlace`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flambeau.registry.connection import RegistryConnection


class ServerPlace:
    """The registry of a server; its calls raise `RegistryError`.

    Args:
        registry: a connection to it.
    """

    def __init__(self, registry: "RegistryConnection") -> None:
        self._registry = registry
        self.url = registry.url

    def find(self, address: str) -> tuple[str, int]:
        """Returns model and version of an address."""
        from flambeau.registry.pull import wanted_version

        model, _, wanted = address.partition("@")
        return model, wanted_version(self._registry, model, wanted)

    def promote(
        self, model: str, version: int, alias: str, *, allow_breaking: bool, why: str
    ) -> dict[str, Any]:
        """Points an alias at a version."""
        document: dict[str, Any] = {"version": version, "why": why}
        if allow_breaking:  # an older server knows no such key
            document["allow_breaking"] = True
        return self._called("POST", model, "aliases", alias, document=document)

    def roll_back(self, model: str, alias: str, why: str) -> dict[str, Any]:
        """Points an alias at its previous version; a call whose answer is lost is not repeated."""
        place = ("aliases", alias, "rollback")
        return self._called("POST", model, *place, document={"why": why}, is_made_once=True)

    def remove_alias(self, model: str, alias: str, why: str) -> dict[str, Any]:
        """Removes an alias."""
        return self._called("DELETE", model, "aliases", alias, query=_reason(why))

    def delete(self, model: str, version: int, why: str) -> dict[str, Any]:
        """Deletes a version."""
        return self._called("DELETE", model, "versions", version, query=_reason(why))

    def annotate(self, model: str, version: int | None, changes: dict[str, Any]) -> dict[str, Any]:
        """Changes tags or the description."""
        place = () if version is None else ("versions", version)
        return self._called("PATCH", model, *place, document=changes)

    def traffic_changes(self, model: str, generation: int) -> list[tuple[str, str]]:
        """Returns what a generation changed of the traffic; nothing if that may not be read."""
        from flambeau.registry.errors import RegistryError

        page = {"limit": "1", "before": str(generation + 1)}
        try:
            found = self._called("GET", model, "history", query=page)
            changes = [change for move in found["moves"] for change in move["traffic_changes"]]
            return [(str(one["act"]), str(one["text"])) for one in changes]
        except (RegistryError, KeyError, TypeError):
            return []

    def traffic(self, model: str, kind: str) -> dict[str, Any]:
        """Returns the status document of a kind."""
        return self._called("GET", model, kind)

    def start(self, model: str, kind: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Starts a rollout, a shadow or a split."""
        return self._called("POST", model, kind, document=wanted)

    def act(self, model: str, act: str, why: str) -> dict[str, Any]:
        """Does an act."""
        return self._called("POST", model, *act.split(), document={"why": why})

    def _called(
        self,
        method: str,
        model: str,
        *place: str | int,
        document: dict[str, Any] | None = None,
        query: dict[str, str] | None = None,
        is_made_once: bool = False,
    ) -> dict[str, Any]:
        """Makes a call at a place below the model.

        Raises:
            RegistryError: it was refused, or its answer is no document.
        """
        from flambeau.registry.connection import path_of
        from flambeau.registry.errors import RegistryError

        path = path_of("models", model, *place)
        found = self._registry.call(method, path, document, query=query, is_made_once=is_made_once)
        if not isinstance(found, dict):
            what = " ".join(map(str, place)) or model
            raise RegistryError(f"{self.url} answered without a document of {what}")
        return found


def _reason(why: str) -> dict[str, str] | None:
    return {"why": why} if why else None
