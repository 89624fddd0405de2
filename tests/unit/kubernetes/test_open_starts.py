"""Starts of rollouts whose objects change or go before the start is answered or told."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flambeau.registry.errors import RegistryAwayError, RegistryBusyError
from model_store.rollouts import rollout_store
from model_store.store import ModelStore
from services.kubernetes.model_rollout import GROUP_VERSION, PLURAL
from services.kubernetes.object_api import ClusterSettings, KubernetesError, ObjectApi
from services.kubernetes.open_starts import OpenStarts
from services.kubernetes.reconciliation import REFUSED_AGAIN_S, Reconciliation
from services.kubernetes.registry_rollouts import TIMEOUT_S, RegistryRollouts
from tests.fixtures.object_api_server import ObjectApiServer, account_in, object_api_server
from tests.fixtures.store_registry import StoreRegistry, store_registry, token_file_in
from tests.fixtures.store_versions import publish_in

NAME, MODEL = "digits-of-november", "digits"
EVERY_S = 5.0


class Interrupted:
    """The registry; its start is preceded, followed or delayed by what a test does.

    Attributes:
        before: is done before a start.
        is_late: True for a start without an answer, carried out by `land`.
        histories: histories that were read.
    """

    def __init__(self, inner: RegistryRollouts) -> None:
        self._inner = inner
        self.before: Callable[[], object] = lambda: None
        self.is_late = False
        self.histories = 0
        self._waiting: list[tuple[str, Any]] = []

    def start(self, model: str, request: Any) -> str:
        self.before()
        if self.is_late:
            self._waiting.append((model, request))
            raise RegistryAwayError("no answer within 15 s")
        return self._inner.start(model, request)

    def land(self) -> None:
        """Carries out the starts that got no answer."""
        for model, request in self._waiting:
            self._inner.start(model, request)
        self._waiting.clear()

    def started_by(self, model: str, mark: str) -> str:
        self.histories += 1
        return self._inner.started_by(model, mark)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


class World:
    """An API, a registry, and two controllers; the first one's registry is interrupted."""

    def __init__(self, api: ObjectApiServer, served: StoreRegistry, folder: Path) -> None:
        self.api, self.served, self.store = api, served, served.store
        self.now_s = 0.0
        settings = ClusterSettings(
            kubernetes_url=api.url, kubernetes_account=str(account_in(folder / "account"))
        )
        objects = ObjectApi(settings, GROUP_VERSION, PLURAL)
        calls = RegistryRollouts(served.url, str(token_file_in(folder)), "")
        self.registry = Interrupted(calls)
        interrupted: Any = self.registry
        starts = OpenStarts(interrupted, lambda: self.now_s)
        self.old = Reconciliation(objects, interrupted, EVERY_S, starts)
        self.new = Reconciliation(objects, calls, EVERY_S)

    @property
    def runs(self) -> int | None:
        """The version that is being rolled out."""
        pointers = self.store.pointers(MODEL)
        assert pointers is not None
        rollout = pointers.traffic.rollout
        return rollout.candidate if rollout else None

    def settle(self, looks: Reconciliation) -> float | None:
        for _ in range(12):
            if (after_s := looks.look(NAME)) != 0.0:
                return after_s
        raise AssertionError("it does not settle")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    """Returns a world with digits 1 in production, 2 and 3, and an object about to start 2."""
    store = ModelStore(str(tmp_path / "store"))
    for number in range(3):
        publish_in(store, tmp_path / f"files-{number}")
    store.promote(MODEL, 1)
    with object_api_server() as api, store_registry(store) as registry:
        world = World(api, registry, tmp_path)
        api.apply(NAME, model=MODEL, version=2)
        assert world.old.look(NAME) == 0.0
        yield world


def test_a_start_behind_a_deletion_by_another_controller_is_aborted(world: World) -> None:
    def deleted() -> None:
        world.api.delete(NAME)
        world.settle(world.new)
        assert world.api.get(NAME) is None

    world.registry.before = deleted
    with pytest.raises(KubernetesError):
        world.old.look(NAME)
    assert world.runs is None
    assert world.old.look(NAME) is None


def test_a_start_behind_a_change_of_version_is_aborted(world: World) -> None:
    def changed() -> None:
        world.api.apply(NAME, version=3)
        assert world.new.look(NAME) == 0.0, "it has begun the other run"

    world.registry.before = changed
    with pytest.raises(KubernetesError):
        world.old.look(NAME)
    assert world.runs is None
    assert world.settle(world.new) == EVERY_S
    assert world.runs == 3


def test_a_start_behind_another_change_goes_on(world: World) -> None:
    world.registry.before = lambda: world.api.apply(NAME, why="better")
    with pytest.raises(KubernetesError):
        world.old.look(NAME)
    assert world.settle(world.old) == EVERY_S
    assert world.runs == 2


def test_an_api_that_is_away_after_a_start_is_asked_again(world: World) -> None:
    def deleted() -> None:
        world.api.delete(NAME)
        world.settle(world.new)
        world.api.refusals = [503, 503]

    world.registry.before = deleted
    with pytest.raises(KubernetesError):
        world.old.look(NAME)
    assert world.runs == 2
    assert world.old.look(NAME) is None
    assert world.runs is None


@pytest.mark.parametrize("changes", [None, {"version": 3}])
def test_a_start_without_an_answer_is_awaited(world: World, changes: Any) -> None:
    world.registry.is_late = True
    with pytest.raises(RegistryAwayError):
        world.old.look(NAME)
    world.registry.is_late = False
    if changes is None:
        world.api.delete(NAME)
    else:
        world.api.apply(NAME, **changes)
    assert world.old.look(NAME) == TIMEOUT_S
    world.now_s = TIMEOUT_S - 1
    assert world.old.look(NAME) == 1.0
    world.registry.land()
    assert world.runs == 2
    world.now_s = TIMEOUT_S
    world.settle(world.old)
    assert world.runs == (changes or {}).get("version")
    assert (world.api.get(NAME) is None) == (changes is None)


def test_a_start_without_an_answer_whose_object_is_gone_is_awaited(world: World) -> None:
    world.registry.is_late = True
    with pytest.raises(RegistryAwayError):
        world.old.look(NAME)
    world.api.delete(NAME)
    world.settle(world.new)
    assert world.old.look(NAME) == TIMEOUT_S
    world.registry.land()
    world.now_s = TIMEOUT_S
    assert world.old.look(NAME) is None
    assert world.runs is None


def test_a_start_that_never_arrived_lets_the_object_go(world: World) -> None:
    world.registry.is_late = True
    with pytest.raises(RegistryAwayError):
        world.old.look(NAME)
    world.api.delete(NAME)
    assert world.old.look(NAME) == TIMEOUT_S
    world.now_s = TIMEOUT_S
    assert world.settle(world.old) is None
    assert (world.api.get(NAME), world.runs) == (None, None)


def test_a_start_that_was_refused_is_not_awaited(world: World) -> None:
    def busy() -> None:
        raise RegistryBusyError("draining", 503)

    world.registry.before = busy
    with pytest.raises(RegistryBusyError):
        world.old.look(NAME)
    world.api.delete(NAME)
    assert world.settle(world.old) is None
    assert world.api.get(NAME) is None


def test_the_history_is_read_once_beside_a_rollout_of_others(world: World) -> None:
    started = world.registry.start(MODEL, {"version": 3, "why": "by ann"})
    for _ in range(5):
        assert world.settle(world.old) == EVERY_S
    assert world.registry.histories == 1
    rollout_store.abort_rollout(world.store, MODEL, "not today", "ann", started)
    assert world.settle(world.old) == EVERY_S
    assert (world.registry.histories, world.runs) == (2, 2)


def test_a_start_that_waits_for_a_second_person_names_the_request(world: World) -> None:
    world.served.asks_second_person = True
    assert world.settle(world.old) == REFUSED_AGAIN_S
    status = (world.api.get(NAME) or {})["status"]
    assert status["phase"] == "Pending"
    assert "flambeau models approve digits 7" in status["reason"]
    world.served.asks_second_person = False
    assert world.settle(world.old) == EVERY_S
    assert world.runs == 2
