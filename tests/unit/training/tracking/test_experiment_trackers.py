"""MLflow and W&B: what they are told, once, by calls that stand-ins take and, where the libraries
are installed, by their own."""

import json
import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.training.recipes import DATA, recipe
from training.recipe.recipe import Recipe
from training.run_folder import RunFolder
from training.tracking.trackers import open_trackers

Calls = list[tuple[Any, ...]]


def run_folder(tmp_path: Path, chosen: Recipe) -> RunFolder:
    folder = RunFolder(tmp_path, chosen, DATA)
    folder.path.mkdir(exist_ok=True)
    return folder


def log_epochs(chosen: Recipe, folder: RunFolder, epochs: range) -> None:
    with open_trackers(chosen, folder, epochs.start - 1) as trackers:
        for epoch in epochs:
            for tracker in trackers:
                tracker.log(epoch, {"val/loss": epoch / 8})


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The calls that MLflow's client got."""
    calls: Calls = []

    class Client:
        def __init__(self, tracking_uri: str) -> None:
            calls.append(("open", tracking_uri))

        def get_experiment_by_name(self, name: str) -> None:
            assert name == "small"

        def create_experiment(self, name: str) -> str:
            return "7"

        def create_run(self, experiment: str, run_name: str, tags: Any) -> Any:
            calls.append(("run", experiment, run_name))
            return SimpleNamespace(info=SimpleNamespace(run_id=f"run-{len(calls)}"))

        def log_batch(self, run_id: str, metrics: Any = (), params: Any = ()) -> None:
            assert len(params) <= 100
            calls.extend(("metric", run_id, m.key, m.value, m.step) for m in metrics)
            calls.extend(("param", p.key, p.value) for p in params)

        def set_terminated(self, run_id: str) -> None:
            calls.append(("end", run_id))

    module, entities = ModuleType("mlflow"), ModuleType("mlflow.entities")
    module.MlflowClient = Client  # type: ignore[attr-defined]
    entities.Metric = lambda key, value, timestamp, step: SimpleNamespace(  # type: ignore[attr-defined]
        key=key, value=value, step=step
    )
    entities.Param = lambda key, value: SimpleNamespace(key=key, value=value)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "mlflow", module)
    monkeypatch.setitem(sys.modules, "mlflow.entities", entities)
    return calls


def test_mlflow_is_told_every_epoch_once_and_a_resumed_run_is_the_same(
    tmp_path: Path, mlflow: Calls
) -> None:
    chosen = recipe(track=["mlflow"])
    folder = run_folder(tmp_path, chosen)
    log_epochs(chosen, folder, range(1, 4))
    log_epochs(chosen, folder, range(3, 5))  # epoch 3 was told, and its checkpoint not written
    (name,) = {call[1] for call in mlflow if call[0] == "metric"}
    assert [call[2:] for call in mlflow if call[0] == "metric"] == [
        ("val/loss", epoch / 8, epoch) for epoch in (1, 2, 3, 4)
    ]
    assert [call for call in mlflow if call[0] == "end"] == [("end", name)] * 2
    uris = {call[1] for call in mlflow if call[0] == "open"}
    assert uris == {f"sqlite:///{folder.path / 'mlflow.db'}"}
    params = {call[1]: call[2] for call in mlflow if call[0] == "param"}
    assert params["optim.adamw.lr"] == "0.001"
    assert params["track"] == '["mlflow"]'
    log_epochs(chosen, folder, range(1, 2))  # anew
    assert len([call for call in mlflow if call[0] == "run"]) == 2


def test_mlflow_of_the_recipe_is_told(tmp_path: Path, mlflow: Calls) -> None:
    chosen = recipe(track=["mlflow"], tracking={"mlflow_uri": "http://tracks:5000"})
    log_epochs(chosen, run_folder(tmp_path, chosen), range(1, 2))
    assert mlflow[0] == ("open", "http://tracks:5000")


@pytest.mark.parametrize(("given", "expected"), [(None, "true"), ("false", "false")])
def test_mlflow_reports_nothing_to_its_makers_unless_the_user_wants_it(
    given: str | None,
    expected: str,
    tmp_path: Path,
    mlflow: Calls,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    name = "MLFLOW_DISABLE_TELEMETRY"
    monkeypatch.setenv(name, str(given))
    if given is None:
        monkeypatch.delenv(name)
    chosen = recipe(track=["mlflow"])
    log_epochs(chosen, run_folder(tmp_path, chosen), range(1, 2))
    assert os.environ[name] == expected


@pytest.mark.parametrize("mode", ["offline", "online"])
def test_wandb_is_told_every_epoch_once(
    mode: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: Calls = []
    runs: list[dict[str, Any]] = []

    def init(**asked: Any) -> Any:
        runs.append(asked)
        return SimpleNamespace(
            log=lambda values, step: told.append((step, values)), finish=lambda: told.append(())
        )

    module = ModuleType("wandb")
    module.init, module.Settings = init, dict  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "wandb", module)
    chosen = recipe(track=["wandb"], tracking={"experiment": "digits", "wandb_mode": mode})
    folder = run_folder(tmp_path, chosen)
    log_epochs(chosen, folder, range(1, 3))
    log_epochs(chosen, folder, range(2, 4))
    assert told == [
        (1, {"epoch": 1, "val/loss": 1 / 8}),
        (2, {"epoch": 2, "val/loss": 2 / 8}),
        (),
        (3, {"epoch": 3, "val/loss": 3 / 8}),
        (),
    ]
    assert runs[0]["id"] == runs[1]["id"]
    assert (runs[0]["project"], runs[0]["mode"]) == ("digits", mode)
    assert runs[0]["dir"] == str(folder.path)


@pytest.mark.filterwarnings("default")  # the libraries' own
def test_mlflow_itself_has_every_epoch_once(tmp_path: Path) -> None:
    client = pytest.importorskip("mlflow", reason="the extra mlflow is not installed").MlflowClient
    chosen = recipe(track=["mlflow"])
    folder = run_folder(tmp_path, chosen)
    log_epochs(chosen, folder, range(1, 4))
    log_epochs(chosen, folder, range(3, 5))
    found = client(tracking_uri=f"sqlite:///{folder.path / 'mlflow.db'}")
    (run,) = found.search_runs([found.get_experiment_by_name("small").experiment_id])
    history = found.get_metric_history(run.info.run_id, "val/loss")
    assert [(m.step, m.value) for m in history] == [(e, e / 8) for e in (1, 2, 3, 4)]
    assert run.info.status == "FINISHED"


@pytest.mark.filterwarnings("default")  # the libraries' own
def test_wandb_itself_writes_offline_into_the_folder(tmp_path: Path) -> None:
    pytest.importorskip("wandb", reason="the extra wandb is not installed")
    chosen = recipe(track=["wandb"])
    folder = run_folder(tmp_path, chosen)
    log_epochs(chosen, folder, range(1, 3))
    told = json.loads((folder.path / "wandb.json").read_text())
    assert told["epoch"] == 2
    (file,) = folder.path.glob("wandb/offline-run-*/*.wandb")
    assert told["id"] in file.name
    assert file.stat().st_size > 0
