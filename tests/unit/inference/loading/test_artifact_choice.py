"""The choice of the served artifact: the publisher's first, then the fastest here; fake time."""

import itertools
import json
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest
from pydantic import JsonValue

from model_store.manifest import Artifact, Manifest, PythonStep
from model_store.store import ModelStore
from services.inference.backends import artifact_fit
from services.inference.backends.device import Device
from services.inference.backends.open_backend import open_backend
from services.inference.backends.open_options import OpenOptions
from services.inference.backends.verified_artifact import VerifiedArtifact
from services.inference.isolation.isolated_backend import IsolatedBackend
from services.inference.loading import (
    artifact_choice,
    artifact_files,
    background_choice,
    choice_memory,
    loader,
)
from services.inference.loading.artifact_choice import ChoiceRules, choice_key, choose
from services.inference.loading.background_choice import find_fastest
from services.inference.loading.choice_memory import LIMITS, Choice, ChoiceMemory
from services.inference.loading.loader import LoadError, LoadOptions, load_version
from tests.fixtures.onnx_models import linear, publish

KEY = "0" * 64
CHOICE = Choice(artifact="onnx", row_ms={"onnx": 0.5, "onnx-1": 0.75})


@pytest.fixture
def manifest(tmp_path: Path) -> Manifest:
    """Returns a manifest of three equivalent artifacts, in the publisher's order."""
    return publish(
        str(tmp_path / "store"), "m", linear(2), linear(2, layers=1), linear(2, layers=2)
    )


class Machine:
    """Loads a version on a machine where its artifacts take what a test says."""

    def __init__(self, folder: Path, manifest: Manifest, patch: pytest.MonkeyPatch) -> None:
        self.file = folder / "cache" / "choices.json"
        self.row_ms = {"onnx": 3.0, "onnx-1": 2.0, "onnx-2": 1.0}
        self.measured: list[str] = []
        self.is_chosen = self.remembered = False
        self._store, self._manifest = ModelStore(str(folder / "store")), manifest

        def measure(*most: object) -> float:
            artifact = most[-1]
            assert isinstance(artifact, Artifact)
            self.measured.append(artifact.name)
            if artifact.name not in self.row_ms:
                raise LoadError("out of tolerance here")
            return self.row_ms[artifact.name]

        patch.setattr(background_choice, "measure", measure)

    def served(self, budget_s: float = 9, **options: object) -> str:
        """The name of what is loaded, by what was chosen before."""
        loaded = load_version(self._store, self._manifest, self._options(budget_s, options))
        for backend in loaded.backends:
            backend.close()
        self.is_chosen = loaded.is_chosen
        return loaded.artifact.name

    def chosen(self, **options: object) -> str:
        """The name of what is found to be the fastest while it serves; empty if nothing is."""
        found = find_fastest(
            self._store, self._manifest, self._options(9, options), threading.Event()
        )
        self.remembered = found is not None and found.remembered
        return found.best.name if found else ""

    def _options(self, budget_s: float, options: Mapping[str, object]) -> LoadOptions:
        rules = ChoiceRules(budget_s=budget_s, file=str(self.file))
        return LoadOptions(choice=rules, **options)  # type: ignore[arg-type]


@pytest.fixture
def machine(tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, manifest, monkeypatch)


def ticking(seconds: float) -> Callable[[], float]:
    """Returns a clock that advances by so much at each reading."""
    times: Iterator[float] = itertools.count(0, seconds)
    return lambda: next(times)


def test_the_publishers_fastest_is_served_at_once_and_nothing_is_measured(
    machine: Machine,
) -> None:
    assert machine.served() == "onnx"
    assert machine.measured == []
    assert not machine.is_chosen


def test_what_was_chosen_is_opened_directly_the_next_time(machine: Machine) -> None:
    assert machine.chosen() == "onnx-2"
    assert machine.measured == ["onnx", "onnx-1", "onnx-2"]
    machine.measured.clear()
    assert machine.served() == "onnx-2"
    assert machine.is_chosen
    assert machine.measured == []


def test_a_version_of_the_same_files_is_measured_once(machine: Machine) -> None:
    assert (machine.chosen(), machine.remembered) == ("onnx-2", False)
    machine.measured.clear()
    assert (machine.chosen(), machine.remembered) == ("onnx-2", True)
    assert machine.measured == []


def test_without_a_budget_the_publishers_fastest_is_served(machine: Machine) -> None:
    machine.chosen()
    machine.file.unlink()
    assert machine.served(budget_s=0) == "onnx"
    assert machine.is_chosen
    assert not machine.file.exists()


def test_the_artifact_an_operator_names_is_not_measured(machine: Machine) -> None:
    assert machine.served(artifact="onnx-1") == "onnx-1"
    assert machine.is_chosen


def test_one_that_does_not_pass_cannot_win(
    machine: Machine, caplog: pytest.LogCaptureFixture
) -> None:
    del machine.row_ms["onnx-2"]
    with caplog.at_level(logging.WARNING):
        assert machine.chosen() == "onnx-1"
    assert machine.served() == "onnx-1"
    (record,) = [record for record in caplog.records if record.message == "artifact not measured"]
    assert (record.__dict__["artifact"], record.__dict__["reason"]) == (
        "onnx-2",
        "out of tolerance here",
    )


def test_if_none_can_be_measured_nothing_is_chosen(machine: Machine) -> None:
    machine.row_ms.clear()
    assert machine.chosen() == ""
    assert not machine.file.exists()


def test_one_that_is_chosen_and_fails_gives_way_and_is_forgotten(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert machine.chosen() == "onnx-2"

    def open_most(artifact: VerifiedArtifact, options: OpenOptions) -> object:
        if artifact.entry.name == "onnx-2":
            raise LoadError("does not open today")
        return open_backend(artifact, options)

    monkeypatch.setattr(loader, "open_backend", open_most)
    assert machine.served() == "onnx"
    assert not machine.is_chosen
    machine.measured.clear()
    machine.row_ms["onnx"] = 0.1
    assert machine.chosen() == "onnx"
    assert machine.measured == ["onnx", "onnx-1", "onnx-2"]


def test_what_cannot_run_here_is_not_measured_and_not_served(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fits(artifact: Artifact, device: Device) -> None:
        if artifact.name == "onnx-2":
            raise artifact_fit.UnfitArtifactError("pip install 'flambeau[other]'")

    for module in (loader, artifact_files):
        monkeypatch.setattr(module, "check_fit", fits)
    with caplog.at_level(logging.WARNING):
        assert machine.chosen() == "onnx-1"
        assert machine.served() == "onnx-1"
    assert machine.measured == ["onnx", "onnx-1"]
    assert [record.message for record in caplog.records] == ["artifact cannot run here"]
    assert "flambeau[other]" in caplog.records[0].__dict__["reason"]
    with pytest.raises(LoadError, match=r"artifact onnx-2: pip install 'flambeau\[other\]'"):
        machine.served(artifact="onnx-2")


def test_what_there_is_no_room_for_is_not_measured(machine: Machine, manifest: Manifest) -> None:
    room_bytes = manifest.artifacts[1].file.size_bytes
    assert machine.chosen(room_bytes=room_bytes) == "onnx-1"
    assert machine.measured == ["onnx", "onnx-1"]


def test_artifacts_are_measured_one_at_a_time_and_leave_no_process(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With real processes, whose figures are of no account here."""
    now, most = 0, 0
    opens, closes = IsolatedBackend.open, IsolatedBackend.close

    def opened(backend: IsolatedBackend, *content: object) -> None:
        nonlocal now, most
        now += 1
        most = max(most, now)
        opens(backend, *content)  # type: ignore[arg-type]

    def closed(backend: IsolatedBackend) -> None:
        nonlocal now
        now -= 1
        closes(backend)

    monkeypatch.setattr(IsolatedBackend, "open", opened)
    monkeypatch.setattr(IsolatedBackend, "close", closed)
    file = tmp_path / "choices.json"
    options = LoadOptions(choice=ChoiceRules(budget_s=1000, file=str(file)))
    store = ModelStore(str(tmp_path / "store"))
    assert find_fastest(store, manifest, options, threading.Event()) is not None
    assert (now, most) == (0, 1)
    (choice,) = json.loads(file.read_text())["choices"].values()
    assert set(choice["row_ms"]) == {"onnx", "onnx-1", "onnx-2"}
    assert all(ms > 0 for ms in choice["row_ms"].values())


def test_a_clock_that_stands_still_measures_no_artifact(
    tmp_path: Path,
    manifest: Manifest,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(IsolatedBackend, "cpu_seconds", lambda _: 1.0)
    options = LoadOptions(choice=ChoiceRules(budget_s=1000))
    store = ModelStore(str(tmp_path / "store"))
    with caplog.at_level(logging.WARNING):
        assert find_fastest(store, manifest, options, threading.Event()) is None
    assert [record.message for record in caplog.records] == ["artifact not measured"] * 3
    assert "CPU clock" in caplog.records[0].__dict__["reason"]


def test_no_further_one_is_begun_once_the_budget_is_spent(manifest: Manifest) -> None:
    figures = {"onnx-1": 1.0, "onnx-2": 0.1}

    def found(budget_s: float) -> Choice | None:
        # The first does not pass, so that the second is measured however late it is.
        return choose(manifest, manifest.artifacts, lambda a: figures[a.name], budget_s, ticking(2))

    assert found(1) is None  # one alone says nothing, and is not to be remembered
    assert found(3) == Choice(artifact="onnx-2", row_ms=figures)


def test_the_publishers_order_decides_within_the_noise(manifest: Manifest) -> None:
    figures = {"onnx": 1.0, "onnx-1": 0.96, "onnx-2": 0.94}
    found = choose(manifest, manifest.artifacts[:2], lambda a: figures[a.name], 9)
    assert found is not None
    assert found.artifact == "onnx"
    found = choose(manifest, manifest.artifacts, lambda a: figures[a.name], 9)
    assert found is not None
    assert found.artifact == "onnx-2"


def test_a_choice_is_for_these_files_on_this_machine(
    tmp_path: Path, manifest: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    artifacts = manifest.artifacts
    key = choice_key(manifest, artifacts, OpenOptions())
    assert key == choice_key(manifest, artifacts, OpenOptions())
    other = publish(str(tmp_path / "other"), "m", linear(3), linear(2, layers=1))
    different = [
        choice_key(other, other.artifacts, OpenOptions()),
        choice_key(manifest, artifacts[:2], OpenOptions()),
        choice_key(manifest, artifacts, OpenOptions(device=Device("cuda", 0))),
        choice_key(manifest, artifacts, OpenOptions(threads=2)),
    ]
    arguments: list[tuple[str, dict[str, JsonValue]]] = [("a", {}), ("b", {}), ("b", {"size": 8})]
    steps = [
        PythonStep(
            file=manifest.golden.file.model_copy(update={"sha256": digest * 64}),
            name="Step",
            args=args,
            inputs=manifest.signature.inputs,
        )
        for digest, args in arguments
    ]
    different += [
        choice_key(manifest.model_copy(update={"python_step": step}), artifacts, OpenOptions())
        for step in steps
    ]
    monkeypatch.setattr(artifact_choice, "cpu_features", lambda: ("amx_int8",))
    different.append(choice_key(manifest, artifacts, OpenOptions()))
    monkeypatch.undo()
    monkeypatch.setattr("importlib.metadata.version", lambda package: "9.9")
    different.append(choice_key(manifest, artifacts, OpenOptions()))
    assert len({key, *different}) == 1 + len(different)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b'{"schema": 2, "choices": {}}',
        b'{"schema": 1, "choices": {"x": {"artifact": "onnx", "row_ms": {}}}}',
        b'{"schema": 1, "choices": {"%s": {"artifact": "onnx"}}}' % KEY.encode(),
        b'{"schema": 1, "choices": {"%s": {"artifact": 7, "row_ms": {}}}}' % KEY.encode(),
        b" " * (LIMITS.max_bytes + 1),
    ],
    ids=range(9),
)
def test_a_broken_or_foreign_file_counts_as_empty(
    tmp_path: Path, machine: Machine, damage: bytes
) -> None:
    machine.file.parent.mkdir()
    machine.file.write_bytes(damage)
    assert ChoiceMemory(str(machine.file)).recall(KEY) is None
    assert machine.served() == "onnx"
    assert machine.chosen() == "onnx-2"
    assert machine.served() == "onnx-2"


def test_nothing_is_measured_for_a_server_that_stops(machine: Machine, manifest: Manifest) -> None:
    found = choose(manifest, manifest.artifacts, lambda _: 1.0, 9, stopped=lambda: True)
    assert found is None


def test_a_remembered_name_that_is_none_of_the_versions_harms_nothing(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loader, "choice_key", lambda *facts: KEY)
    ChoiceMemory(str(machine.file)).remember(KEY, Choice(artifact="gone", row_ms={}))
    assert machine.served() == "onnx"


def test_choices_are_kept_and_replaced_and_the_oldest_leave(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice_memory, "MAX_CHOICES", 3)
    memory = ChoiceMemory(str(tmp_path / "deep" / "er" / "choices.json"))
    memory.remember(KEY, CHOICE)
    assert memory.recall(KEY) == CHOICE
    memory.remember(KEY, Choice(artifact="onnx-1", row_ms={}))
    assert memory.recall(KEY) == Choice(artifact="onnx-1", row_ms={})
    for number in (2, 3):
        memory.remember(f"{number:064x}", CHOICE)
    assert memory.recall(KEY) is not None
    memory.remember(f"{1:064x}", CHOICE)
    assert memory.recall(KEY) is None
    assert memory.recall(f"{2:064x}") == memory.recall(f"{1:064x}") == CHOICE
    memory.forget(f"{2:064x}")
    assert memory.recall(f"{2:064x}") is None
    assert [path.name for path in (tmp_path / "deep" / "er").iterdir()] == ["choices.json"]


def test_a_folder_that_cannot_be_written_is_said_and_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("not a folder")
    memory = ChoiceMemory(str(tmp_path / "file" / "choices.json"))
    memory.remember(KEY, CHOICE)
    assert memory.recall(KEY) is None
    assert "choice_file" in caplog.records[0].message


def test_no_file_remembers_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    memory = ChoiceMemory("")
    memory.remember(KEY, CHOICE)
    memory.forget(KEY)
    assert memory.recall(KEY) is None
    assert list(tmp_path.iterdir()) == []


def test_a_user_without_a_home_remembers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def homeless(path: Path) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    memory = ChoiceMemory("~/choices.json")
    memory.remember(KEY, CHOICE)
    assert memory.recall(KEY) is None
