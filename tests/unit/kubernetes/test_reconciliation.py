"""Looks at ModelRollouts, on an API and a registry that answer as the real ones and may fail."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flambeau.registry.errors import RegistryError
from model_store.records.moves import moves_page
from model_store.rollouts import rollout_store
from model_store.rollouts.repeated_move import move_repeatedly
from model_store.rollouts.requests import RolloutRequest
from model_store.rollouts.transitions import advanced, ended
from model_store.store import ModelStore
from services.kubernetes.model_rollout import FINALIZER, GROUP_VERSION, PLURAL
from services.kubernetes.object_api import ClusterSettings, KubernetesError, ObjectApi
from services.kubernetes.reconciliation import REFUSED_AGAIN_S, Reconciliation
from services.kubernetes.registry_rollouts import RegistryRollouts
from tests.fixtures.http_listener import QuietHandler, http_listener
from tests.fixtures.object_api_server import ObjectApiServer, account_in, object_api_server
from tests.fixtures.store_registry import StoreRegistry, store_registry, token_file_in
from tests.fixtures.store_versions import publish_in

NAME, MODEL = "digits-of-november", "digits"
EVERY_S = 5.0
MOST_LOOKS = 12


@pytest.fixture(scope="module")
def versions(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Makes a store with three versions, the first in production."""
    store = made_store(tmp_path_factory.mktemp("versions"))
    store.promote(MODEL, 1)
    return Path(store.url)


def made_store(folder: Path) -> ModelStore:
    store = ModelStore(str(folder / "store"))
    for number in range(3):
        publish_in(store, folder / f"files-{number}")
    return store


@pytest.fixture
def store(versions: Path, tmp_path: Path) -> ModelStore:
    shutil.copytree(versions, tmp_path / "store")
    return ModelStore(str(tmp_path / "store"))


@pytest.fixture
def api() -> Iterator[ObjectApiServer]:
    with object_api_server() as api:
        yield api


@pytest.fixture
def registry(store: ModelStore) -> Iterator[StoreRegistry]:
    with store_registry(store) as registry:
        yield registry


@pytest.fixture
def looks(api: ObjectApiServer, registry: StoreRegistry, tmp_path: Path) -> Reconciliation:
    return made_looks(api.url, registry.url, tmp_path)


def made_looks(api_url: str, registry_url: str, folder: Path) -> Reconciliation:
    settings = ClusterSettings(
        kubernetes_url=api_url, kubernetes_account=str(account_in(folder / "account"))
    )
    objects = ObjectApi(settings, GROUP_VERSION, PLURAL)
    calls = RegistryRollouts(registry_url, str(token_file_in(folder)), "")
    return Reconciliation(objects, calls, EVERY_S)


def look_beside_others(looks: Reconciliation) -> float | None:
    """Looks once; another writer of the object may be faster."""
    try:
        return looks.look(NAME)
    except KubernetesError as error:
        if error.status != 409:
            raise
        return 0.0


def settle(looks: Reconciliation) -> float | None:
    """Looks until nothing is to be done at once; returns the seconds until the next look."""
    for _ in range(MOST_LOOKS):
        after_s = look_beside_others(looks)
        if after_s != 0.0:
            return after_s
    raise AssertionError("it does not settle")


def status(api: ObjectApiServer) -> dict[str, Any]:
    found = api.get(NAME)
    assert found is not None
    return dict(found["status"])


def conditions(api: ObjectApiServer) -> dict[str, str]:
    return {one["type"]: one["status"] for one in status(api)["conditions"]}


def acts(store: ModelStore) -> list[str]:
    """Returns what happened to the rollouts of the model, the oldest first."""
    moves = moves_page(store, MODEL, 100).moves[::-1]
    return [one.act for move in moves for one in move.traffic_changes if one.kind == "rollout"]


def running(store: ModelStore) -> Any:
    pointers = store.pointers(MODEL)
    assert pointers is not None
    return pointers.traffic.rollout


def move(store: ModelStore, how: Any) -> None:
    """Moves the pointers, as a controller of the servers does."""
    move_repeatedly(store, MODEL, how)


def test_a_rollout_from_apply_to_promotion(
    api: ObjectApiServer, store: ModelStore, looks: Reconciliation
) -> None:
    api.apply(NAME, model=MODEL, version=2, steps=["10%", "50%", "100%"], every="1h", why="better",
              sticky="header:x-user", guards={"errors": {"ratio": 2}},
              disabledGuards=["latency"])  # fmt: skip
    assert settle(looks) == EVERY_S
    rollout = running(store)
    assert (rollout.candidate, rollout.steps, rollout.every_s) == (2, (0.1, 0.5, 1), 3600)
    assert (rollout.sticky, rollout.guards.errors.ratio) == ("header:x-user", 2)
    assert rollout.guards.latency is None
    shown = status(api)
    assert (shown["phase"], shown["share"], shown["production"]) == ("Running", "10%", 1)
    assert shown["rolloutId"] == rollout.id
    assert conditions(api) == {"Ready": "False", "Reconciling": "True", "Stalled": "False"}
    pointers = store.pointers(MODEL)
    assert pointers is not None
    assert pointers.why == f"better [ModelRollout models/{NAME} uid-of-{NAME}/1]"
    move(store, lambda now: advanced(now, rollout.id, "rollout controller", "time"))
    assert settle(looks) == EVERY_S
    assert status(api)["share"] == "50%"
    move(store, lambda now: advanced(now, rollout.id, "rollout controller", "every guard is kept"))
    assert settle(looks) is None
    shown = status(api)
    assert (shown["phase"], shown["reason"]) == ("Promoted", "every guard is kept")
    assert (shown["production"], shown["share"]) == (2, "")
    assert conditions(api) == {"Ready": "True", "Reconciling": "False", "Stalled": "False"}
    assert shown["conditions"][0]["observedGeneration"] == shown["observedGeneration"] == 1


def test_a_rollout_that_is_rolled_back_says_why_and_is_not_repeated(
    api: ObjectApiServer, store: ModelStore, looks: Reconciliation
) -> None:
    api.apply(NAME, model=MODEL, version=2)
    settle(looks)
    rollout = running(store)
    move(store, lambda now: ended(now, rollout.id, "rollout controller", "errors: 12 of 40", {}))
    assert settle(looks) is None
    assert settle(looks) is None
    assert (status(api)["phase"], status(api)["reason"]) == ("RolledBack", "errors: 12 of 40")
    assert conditions(api)["Stalled"] == "True"
    assert acts(store) == ["started", "rolled back"]
    api.apply(NAME, attempt=2)
    assert settle(looks) == EVERY_S
    assert acts(store) == ["started", "rolled back", "started"]


def test_state_pauses_resumes_and_aborts(
    api: ObjectApiServer, store: ModelStore, looks: Reconciliation
) -> None:
    api.apply(NAME, model=MODEL, version=2)
    settle(looks)
    for state, phase in (("Paused", "Paused"), ("Running", "Running"), ("Aborted", "Aborted")):
        api.apply(NAME, state=state)
        settle(looks)
        assert status(api)["phase"] == phase
        assert "[" not in status(api)["reason"], "the mark is for the history"
    assert acts(store) == ["started", "paused", "resumed", "aborted"]
    assert running(store) is None
    api.apply(NAME, state="Running")
    assert settle(looks) is None, "over is over"
    assert status(api)["observedGeneration"] == 5


def test_an_aborted_one_never_starts(
    api: ObjectApiServer, store: ModelStore, looks: Reconciliation
) -> None:
    api.apply(NAME, model=MODEL, version=2, state="Aborted")
    assert settle(looks) is None
    assert (status(api)["phase"], acts(store)) == ("Aborted", [])


def test_a_pause_by_a_person_stays(
    api: ObjectApiServer, store: ModelStore, looks: Reconciliation
) -> None:
    api.apply(NAME, model=MODEL, version=2)
    settle(looks)
    rollout_store.pause_rollout(store, MODEL, "lunch", "ann")
    assert settle(looks) == EVERY_S
    assert (status(api)["phase"], status(api)["reason"]) == ("Paused", "lunch")


def test_another_version_aborts_the_one_that_runs(
    api: ObjectApiServer, store: ModelStore, looks: Reconciliation
) -> None:
    api.apply(NAME, model=MODEL, version=2)
    settle(looks)
    api.apply(NAME, version=3)
    assert settle(looks) == EVERY_S
    assert running(store).candidate == 3
    assert acts(store) == ["started", "aborted", "started"]
    assert status(api)["runGeneration"] == 2


def test_back_to_an_earlier_version_is_a_run_of_its_own(
    api: ObjectApiServer, store: ModelStore, looks: Reconciliation
) -> None:
    api.apply(NAME, model=MODEL, version=2)
    settle(looks)
    rollout_store.promote_rollout(store, MODEL, "good", "ann")
    settle(looks)
    store.promote(MODEL, 1)
    assert settle(looks) is None, "what others move later is not moved back"
    api.apply(NAME, version=1)
    settle(looks)
    assert (status(api)["phase"], acts(store)) == ("Promoted", ["started", "promoted"])
    api.apply(NAME, version=2)
    assert settle(looks) == EVERY_S
    assert running(store).candidate == 2


def test_a_deleted_one_aborts_its_rollout_first(
    api: ObjectApiServer, store: ModelStore, looks: Reconciliation
) -> None:
    api.apply(NAME, model=MODEL, version=2)
    settle(looks)
    api.delete(NAME)
    found = api.get(NAME)
    assert found is not None
    assert found["metadata"]["finalizers"] == [FINALIZER]
    assert settle(looks) is None
    assert (api.get(NAME), running(store)) == (None, None)
    assert looks.look(NAME) is None, "it is gone"


def test_a_deleted_one_leaves_the_rollout_of_others(
    api: ObjectApiServer, store: ModelStore, looks: Reconciliation
) -> None:
    rollout_store.start_rollout(store, MODEL, RolloutRequest(version=3), "ann")
    api.apply(NAME, model=MODEL, version=2)
    assert settle(looks) == EVERY_S
    assert status(api)["phase"] == "Pending"
    assert "version 3 is being rolled out by others" in status(api)["reason"]
    api.delete(NAME)
    settle(looks)
    assert api.get(NAME) is None
    assert running(store).candidate == 3


def test_it_stays_while_its_rollout_cannot_be_aborted(
    api: ObjectApiServer, registry: StoreRegistry, store: ModelStore, looks: Reconciliation
) -> None:
    api.apply(NAME, model=MODEL, version=2)
    settle(looks)
    api.delete(NAME)
    for refusal in (0, 503, 403):
        registry.refusals = [refusal]
        with pytest.raises(RegistryError):
            looks.look(NAME)
    assert running(store) is not None
    settle(looks)
    assert (api.get(NAME), running(store)) == (None, None)


def test_an_end_that_another_rollout_hides_is_in_the_history(
    api: ObjectApiServer, store: ModelStore, looks: Reconciliation
) -> None:
    api.apply(NAME, model=MODEL, version=2)
    settle(looks)
    rollout_store.abort_rollout(store, MODEL, "not today", "ann")
    rollout_store.start_rollout(store, MODEL, RolloutRequest(version=3), "ann")
    assert settle(looks) is None
    assert (status(api)["phase"], status(api)["reason"]) == ("Aborted", "not today")


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"version": 9}, "9"),
        ({"version": 2, "steps": ["50%", "10%"]}, "ascending"),
        ({"version": 2, "mirror": "0%", "guards": {"disagreement": {"limit": 0.1}}}, "mirrored"),
    ],
)
def test_what_the_registry_refuses_is_told_and_asked_again(
    api: ObjectApiServer, looks: Reconciliation, spec: dict[str, Any], words: str
) -> None:
    api.apply(NAME, model=MODEL, **spec)
    assert settle(looks) == REFUSED_AGAIN_S
    assert status(api)["phase"] == "Refused"
    assert words in status(api)["reason"]
    assert conditions(api) == {"Ready": "False", "Reconciling": "False", "Stalled": "True"}


def test_without_a_version_in_production_it_waits_for_one(
    api: ObjectApiServer, tmp_path: Path
) -> None:
    bare = made_store(tmp_path / "bare")
    with store_registry(bare) as other:
        looks = made_looks(api.url, other.url, tmp_path)
        api.apply(NAME, model=MODEL, version=2)
        assert settle(looks) == REFUSED_AGAIN_S
        assert "promote a version first" in status(api)["reason"]
        bare.promote(MODEL, 1)
        assert settle(looks) == EVERY_S


def test_a_spec_that_no_schema_refuses_is_refused_in_words(looks: Reconciliation) -> None:
    class Objects:
        def __init__(self) -> None:
            self.status: dict[str, Any] = {}

        def read(self, name: str) -> dict[str, Any]:
            return {"metadata": {"name": name, "namespace": "m", "uid": "u", "generation": 1},
                    "spec": {"model": MODEL, "version": 2, "evry": "5m"}}  # fmt: skip

        def set_status(self, found: dict[str, Any], status: dict[str, Any]) -> None:
            self.status = status

    objects: Any = Objects()
    registry: Any = None
    assert Reconciliation(objects, registry, EVERY_S).look(NAME) is None
    assert objects.status["phase"] == "Refused"
    assert "unknown key 'evry' (did you mean 'every'?)" in objects.status["reason"]


@pytest.mark.parametrize(
    "answer", [b"[]", b"{}x", b"{}", b'{"rollout": 1}', b'{"rollout": {"id": 2}}']
)
def test_an_answer_that_is_no_registry_s_is_an_error_in_words(
    api: ObjectApiServer, tmp_path: Path, answer: bytes
) -> None:
    class Handler(QuietHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer)

    api.apply(NAME, model=MODEL, version=2)
    with http_listener(Handler) as url:
        looks = made_looks(api.url, url, tmp_path)
        looks.look(NAME)
        with pytest.raises(RegistryError, match="registry"):
            settle(looks)
    assert status(api)["phase"] == "Pending"


@pytest.mark.parametrize("phase", ["Promoted", "Aborted"])
def test_a_run_that_is_over_stays_so_while_its_spec_is_wrong(
    api: ObjectApiServer, store: ModelStore, looks: Reconciliation, phase: str
) -> None:
    if phase == "Promoted":
        store.promote(MODEL, 2)
    state = "Aborted" if phase == "Aborted" else "Running"
    api.apply(NAME, model=MODEL, version=2, state=state)
    settle(looks)
    reason = status(api)["reason"]
    store.promote(MODEL, 1)
    with api.without_schema():
        api.apply(NAME, evry="5m")
        assert settle(looks) is None
    assert (status(api)["phase"], status(api)["reason"]) == (phase, reason)
    api.apply(NAME, state="Running")
    assert settle(looks) is None, "over is over"
    assert acts(store) == []


class KilledError(Exception):
    """The controller ends here."""


class Killing:
    """Passes calls on, and ends the controller at one of them, before or after its effect.

    Args:
        inner: what is called.
        count: calls so far, shared by both of them.
        at: number of the call that is the last one.
        is_late: True for an end after its effect.
    """

    def __init__(self, inner: object, count: list[int], at: int, is_late: bool) -> None:
        self._inner, self._count, self._at, self._is_late = inner, count, at, is_late

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._inner, name)

        def called(*arguments: Any) -> Any:
            self._count[0] += 1
            if self._count[0] == self._at and not self._is_late:
                raise KilledError
            found = method(*arguments)
            if self._count[0] == self._at:
                raise KilledError
            return found

        return called


@pytest.mark.parametrize("is_late", [False, True])
def test_it_may_be_killed_at_any_call(
    api: ObjectApiServer, registry: StoreRegistry, store: ModelStore, tmp_path: Path, is_late: bool
) -> None:
    """Each change of the object is carried out by controllers of which each dies one call later."""
    settings = ClusterSettings(
        kubernetes_url=api.url, kubernetes_account=str(account_in(tmp_path / "account"))
    )
    token = str(token_file_in(tmp_path))

    def carry_out() -> int:
        """Returns the number of controllers that were killed."""
        for at in range(1, 100):
            count = [0]
            objects: Any = ObjectApi(settings, GROUP_VERSION, PLURAL)
            calls: Any = RegistryRollouts(registry.url, token, "")
            dying = Reconciliation(
                Killing(objects, count, at, is_late),  # type: ignore[arg-type]
                Killing(calls, count, at, is_late),  # type: ignore[arg-type]
                EVERY_S,
            )
            try:
                settle(dying)
            except KilledError:
                continue
            return at - 1
        raise AssertionError("it never gets to the end")

    api.apply(NAME, model=MODEL, version=2)
    assert carry_out() > 4
    for state in ("Paused", "Running"):
        api.apply(NAME, state=state)
        assert carry_out() > 2
    api.apply(NAME, version=3)
    assert carry_out() > 4
    api.delete(NAME)
    assert carry_out() > 2
    assert acts(store) == ["started", "paused", "resumed", "aborted", "started", "aborted"]
    assert api.get(NAME) is None


def test_two_at_once_start_one_rollout(
    api: ObjectApiServer, registry: StoreRegistry, store: ModelStore, tmp_path: Path
) -> None:
    api.apply(NAME, model=MODEL, version=2)
    together = threading.Barrier(2)
    faults: list[Exception] = []

    def look_on() -> None:
        looks = made_looks(api.url, registry.url, tmp_path)
        try:
            for _ in range(MOST_LOOKS):
                together.wait(30)
                look_beside_others(looks)
        except Exception as error:
            faults.append(error)
            together.abort()

    threads = [threading.Thread(target=look_on) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert faults == []
    assert acts(store) == ["started"]
    assert status(api)["phase"] == "Running"
    assert status(api)["rolloutId"] == running(store).id


def test_the_status_is_written_only_when_it_changes(
    api: ObjectApiServer, looks: Reconciliation
) -> None:
    api.apply(NAME, model=MODEL, version=2)
    settle(looks)
    before = api.get(NAME)
    api.calls.clear()
    assert looks.look(NAME) == EVERY_S
    assert {method for method, _ in api.calls} == {"GET"}
    assert json.dumps(api.get(NAME)) == json.dumps(before)
