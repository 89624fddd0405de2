"""Publication at a registry whose answers are scripted: numbers, lost answers, conflicts."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flambeau.registry.connection import RegistryConnection
from flambeau.registry.errors import (
    RegistryAwayError,
    RegistryConflictError,
    RegistryError,
    RegistryUnknownError,
)
from flambeau.registry.publication import prepare
from flambeau.registry.push import PushReport, push_version
from flambeau.registry.sources import StoredVersion
from model_store.store import ModelStore
from tests.fixtures.store_versions import draft_in, entry_in, publish_in

Answer = Callable[[str, str, Any], Any]


class Scripted(RegistryConnection):
    """A connection whose calls a function answers.

    Args:
        answer: gets method, path and document, and returns JSON or raises.
    """

    def __init__(self, answer: Answer) -> None:
        super().__init__("http://127.0.0.1:1")
        self._answer_to = answer
        self.heard: list[str] = []

    def call(self, method: str, path: str, document: Any = None, **_: Any) -> Any:
        """Answers a call."""
        self.heard.append(f"{method} {path}")
        return self._answer_to(method, path, document)

    def get_part(self, path: str, start: int, sink: Callable[[bytes], None]) -> None:
        """Answers with a file."""
        sink(self._answer_to("GET", path, None))


def state_of(document: dict[str, Any], *, is_published: bool = False) -> dict[str, Any]:
    """Returns the state of an upload that has all bytes."""
    files = [{**one, "received": one["size_bytes"]} for one in document["files"]]
    return {"id": "u1", "is_published": is_published, "files": files}


def pushed(connection: RegistryConnection, tmp_path: Path) -> PushReport:
    store = ModelStore(str(tmp_path / "store"))
    publish_in(store, tmp_path / "draft")
    return push_version(connection, StoredVersion(store, "digits", 1), lambda *_: None)


def test_a_pipeline_of_a_model_that_is_hidden_is_finished_twice_at_most(tmp_path: Path) -> None:
    def answer(method: str, path: str, document: Any) -> Any:
        if path == "uploads":
            return state_of(document)
        raise RegistryError("model 'finder' is not in the registry", 404)

    connection = Scripted(answer)
    with pytest.raises(RegistryError, match="model 'finder' is not in the registry"):
        pushed(connection, tmp_path)
    assert connection.heard == ["POST uploads", "POST uploads/u1/finish"] * 2


def test_an_upload_that_conflicts_with_the_store_is_abandoned(tmp_path: Path) -> None:
    begun: list[Any] = []

    def answer(method: str, path: str, document: Any) -> Any:
        if path == "uploads":
            begun.append(document)
            if len(begun) > 1:
                raise RegistryConflictError("version 1 is taken by another publisher", 409)
            return state_of(document)
        if path.endswith("finish"):
            raise RegistryConflictError("version 1 was published meanwhile", 409)
        if method == "DELETE":
            raise RegistryError("no such upload", 404)
        raise AssertionError(path)

    connection = Scripted(answer)
    with pytest.raises(RegistryConflictError, match="taken by another publisher"):
        pushed(connection, tmp_path)
    assert connection.heard == ["POST uploads", "POST uploads/u1/finish", "POST uploads",
                                "DELETE uploads/u1"]  # fmt: skip


def test_a_number_that_another_publication_probes_at_the_same_time_is_free(tmp_path: Path) -> None:
    """Probes of one caller are the same upload: the second one finds it abandoned."""

    def answer(method: str, path: str, document: Any) -> Any:
        if path == "uploads":
            return state_of(document)
        raise RegistryError(f"none: {method} {path}", 404)

    store = ModelStore(str(tmp_path / "empty"))
    assert prepare(Scripted(answer), store, "digits") == 1


PROXY = RegistryError("the proxy answered with status 504", 504)
AWAY = RegistryAwayError("no answer")


class Losing:
    """Answers a push, and loses the answer to its end.

    Args:
        lost: the error in place of the answer to `finish`.
        after: `is_published` of the upload afterwards, or the error of asking for it.
    """

    def __init__(self, lost: RegistryError, after: bool | RegistryError) -> None:
        self._lost, self._after, self._begun = lost, after, 0

    def __call__(self, _: str, path: str, document: Any) -> Any:
        """Answers a call."""
        if path != "uploads":
            raise self._lost
        self._begun += 1
        if self._begun == 1:
            return state_of(document)
        if isinstance(self._after, RegistryError):
            raise self._after
        return state_of(document, is_published=self._after)


@pytest.mark.parametrize("lost", [PROXY, AWAY])
def test_a_version_whose_last_answer_was_lost_is_found_at_the_registry(
    tmp_path: Path, lost: RegistryError
) -> None:
    connection = Scripted(Losing(lost, after=True))
    assert pushed(connection, tmp_path).version == 1
    assert connection.heard == ["POST uploads", "POST uploads/u1/finish", "POST uploads"]


def test_a_lost_answer_of_an_end_that_did_not_happen_is_the_error(tmp_path: Path) -> None:
    with pytest.raises(RegistryError, match="504") as caught:
        pushed(Scripted(Losing(PROXY, after=False)), tmp_path)
    assert caught.value is PROXY


def test_a_registry_that_stays_away_leaves_it_unknown(tmp_path: Path) -> None:
    with pytest.raises(RegistryUnknownError, match="not known whether digits 1 is published"):
        pushed(Scripted(Losing(PROXY, after=AWAY)), tmp_path)


def published(store: ModelStore, tmp_path: Path) -> int:
    """Publishes the same weights, whose next version is a patch."""
    folder = tmp_path / "draft"
    files = (entry_in(folder, "checkpoint.safetensors", b"weights"),)
    return store.publish(draft_in(folder, files=files), folder).version


def test_a_damaged_newest_version_does_not_prevent_the_next_one(tmp_path: Path) -> None:
    """The number follows the newest version, and its contents the newest readable one."""
    there = ModelStore(str(tmp_path / "there"))
    published(there, tmp_path)
    lines = [{"version": 2, "error": "damaged"}, {"version": 1, "semver": "1.0.0"}]

    def answer(method: str, path: str, document: Any) -> Any:
        if path == "models/digits":
            return {"versions": lines}
        if match := re.fullmatch("models/digits/versions/1/files/(.+)", path):
            return there.storage.get(f"digits/1/{match[1]}", 2**20)
        return state_of(document) if path == "uploads" else None

    store = ModelStore(str(tmp_path / "empty"))
    assert prepare(Scripted(answer), store, "digits") == 3
    assert published(store, tmp_path) == 3
    assert store.manifest("digits", 1).semver == "1.0.0"
    assert store.manifest("digits", 3).semver == "1.0.1"


def test_golden_rows_that_cannot_be_read_count_as_changed(tmp_path: Path) -> None:
    there = ModelStore(str(tmp_path / "there"))
    published(there, tmp_path)

    def answer(method: str, path: str, document: Any) -> Any:
        if path == "models/digits":
            return {"versions": [{"version": 1, "semver": "1.0.0"}]}
        if path.endswith("manifest.json"):
            return there.storage.get("digits/1/manifest.json", 2**20)
        if "/files/" in path:
            raise RegistryError("the store cannot be read", 503)
        return state_of(document) if path == "uploads" else None

    store = ModelStore(str(tmp_path / "empty"))
    prepare(Scripted(answer), store, "digits")
    published(store, tmp_path)
    assert store.manifest("digits", 2).semver == "1.1.0"


def test_semantic_versions_of_deleted_versions_are_not_given_again(tmp_path: Path) -> None:
    there = ModelStore(str(tmp_path / "there"))
    published(there, tmp_path)
    taken = ["1.0.2", "1.0.1", "1.0.0", "../../x"]

    def answer(method: str, path: str, document: Any) -> Any:
        if path == "models/digits":
            return {"versions": [{"version": 1, "semver": "1.0.0"}]}
        if match := re.fullmatch("models/digits/versions/1/files/(.+)", path):
            return there.storage.get(f"digits/1/{match[1]}", 2**20)
        if path == "uploads" and document["version"] < 4:
            raise RegistryConflictError("version 2 of 'digits' was deleted", 409)
        return {**state_of(document), "taken_semvers": taken} if path == "uploads" else None

    store = ModelStore(str(tmp_path / "empty"))
    assert prepare(Scripted(answer), store, "digits") == 4
    assert published(store, tmp_path) == 4
    assert store.manifest("digits", 4).semver == "1.0.3"


def test_a_model_whose_versions_were_all_deleted_goes_on_after_them(tmp_path: Path) -> None:
    def answer(method: str, path: str, document: Any) -> Any:
        if path == "uploads" and document["version"] == 1:
            raise RegistryConflictError("version 1 of 'digits' was deleted", 409)
        if path == "uploads":
            return {**state_of(document), "taken_semvers": ["1.0.0"]}
        raise RegistryError(f"none: {method} {path}", 404)

    store = ModelStore(str(tmp_path / "empty"))
    prepare(Scripted(answer), store, "digits")
    assert published(store, tmp_path) == 2
    assert store.manifest("digits", 2).semver == "2.0.0"
