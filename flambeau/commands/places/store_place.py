"""The models of a store, as a `ModelPlace`."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from model_store.approvals.asked_move import AskedMove
    from model_store.store import ModelStore


class StorePlace:
    """A store at hand.

    Args:
        store: the store.
    """

    url = ""

    def __init__(self, store: "ModelStore") -> None:
        self._store = store

    def find(self, address: str) -> tuple[str, int]:
        """Returns model and version of an address."""
        from model_store.version_address import find_version

        found = find_version(self._store, address)
        return found.model, found.version

    def promote(
        self, model: str, version: int, alias: str, *, allow_breaking: bool, why: str
    ) -> dict[str, Any]:
        """Points an alias at a version."""
        from model_store.approvals.asked_move import AskedMove

        return self._moved(
            model,
            AskedMove(
                act="promote", alias=alias, version=version, allow_breaking=allow_breaking, why=why
            ),
        )

    def roll_back(self, model: str, alias: str, why: str) -> dict[str, Any]:
        """Points an alias at its previous version."""
        from model_store.approvals.asked_move import AskedMove

        return self._moved(model, AskedMove(act="rollback", alias=alias, why=why))

    def remove_alias(self, model: str, alias: str, why: str) -> dict[str, Any]:
        """Removes an alias."""
        from model_store.approvals.asked_move import remove_alias

        return remove_alias(self._store, model, alias, why).model_dump(mode="json")

    def delete(self, model: str, version: int, why: str) -> dict[str, Any]:
        """Deletes a version."""
        from model_store.records.deletion import delete_version

        return delete_version(self._store, model, version, why=why).model_dump(mode="json")

    def annotate(self, model: str, version: int | None, changes: dict[str, Any]) -> dict[str, Any]:
        """Changes tags or the description."""
        from model_store.host.this_user import this_user
        from model_store.records.annotations import annotate

        if version is None:
            self._store.versions(model)  # fails for a model that is not there
        else:
            self._store.manifest(model, version)
        noted = annotate(self._store.storage, model, version, this_user(), **changes)
        return noted.model_dump(mode="json")

    def traffic_changes(self, model: str, generation: int) -> list[tuple[str, str]]:
        """Returns what a generation changed of the traffic."""
        from model_store.rollouts.traffic_changes import traffic_changes

        after = self._store.pointers_at(model, generation)
        before = self._store.pointers_at(model, generation - 1)
        return [(one.act, one.text) for one in traffic_changes(before, after)]

    def traffic(self, model: str, kind: str) -> dict[str, Any]:
        """Returns the status document of a kind."""
        from services.rollouts.calls import STATUS

        return STATUS[kind](self._store, model)

    def start(self, model: str, kind: str, wanted: dict[str, Any]) -> dict[str, Any]:
        """Starts a rollout, a shadow or a split."""
        from services.rollouts.calls import read_request, start

        return start(self._store, model, read_request(kind, wanted)).model_dump(mode="json")

    def act(self, model: str, act: str, why: str) -> dict[str, Any]:
        """Does an act."""
        from services.rollouts.calls import ACTS, act_on

        return act_on(self._store, model, act, ACTS[act](why=why)).model_dump(mode="json")

    def _moved(self, model: str, move: "AskedMove") -> dict[str, Any]:
        from model_store.approvals.made_move import make_move

        return make_move(self._store, model, move).document()
