"""A search: concurrent trials, their outcomes, and the results for people and programs."""

import io
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import Pipe
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import typer
from rich.console import Console
from safetensors.torch import save
from typer.testing import CliRunner, Result

import training.pipeline
from flambeau.commands.sweep import sweep as command
from model_store.semver.semver import Bump
from model_store.store import ModelStore
from tests.fixtures.store_versions import draft_in, entry_in
from tests.unit.training.recipes import recipe
from training.errors import DataError, RecipeError, RunBusyError, SweepError
from training.network.model import build_model
from training.recipe.file import load_recipe
from training.recipe.recipe import Recipe
from training.run_folder import locked_folder
from training.sweep import search as search_module
from training.sweep.page import sweep_page
from training.sweep.parameter import parse_parameters
from training.sweep.records import SweepRecord, TrialRecord, figure_text
from training.sweep.search import SweepPlan, sweep
from training.sweep.table import LiveSweepTable
from training.sweep.trial_process import Epoch, Finished, Pruned, Told, TrialFailed

SVG = "{http://www.w3.org/2000/svg}"
RECIPE = """
name: tiny
model: {target: "training.networks:SmallCnn", args: {width: 4}}
data: {target: "training.datasets:digits", batch_size: 256}
train: {epochs: 1, threads: 1}
stop: {metric: val/accuracy}
track: []
export: [{kind: torchscript}]
publish: {model: tiny}
"""


@dataclass
class Home:
    """A place to search in."""

    path: Path

    def run(self, *more: str) -> Result:
        (self.path / "recipe.yaml").write_text(RECIPE)
        app = typer.Typer()
        app.command()(command)
        store, sweeps = str(self.path / "store"), str(self.path / "sweeps")
        places = ("--store", store, "--sweeps-dir", sweeps)
        return CliRunner().invoke(app, [str(self.path / "recipe.yaml"), *places, *more])

    def folder(self) -> Path:
        (found,) = (self.path / "sweeps").iterdir()
        return found

    def record(self) -> SweepRecord:
        return SweepRecord.model_validate_json((self.folder() / "sweep.json").read_bytes())


def publish_weights(store: ModelStore, folder: Path, bump: Bump | None = None) -> None:
    """The next version of `base`, with weights of the recipe's network."""
    chosen = recipe(model={"target": "training.networks:SmallCnn", "args": {"width": 4}})
    weights = save(build_model(chosen).state_dict())
    files = (entry_in(folder, "checkpoint.safetensors", weights),)
    store.publish(draft_in(folder, "base", files=files), folder, bump=bump)


def checkpoint_of(store: ModelStore, version: int) -> str:
    entry = store.manifest("base", version).file("checkpoint.safetensors")
    assert entry is not None
    return entry.sha256


def test_the_best_of_real_trials_is_published_and_not_trained_again(tmp_path: Path) -> None:
    home, store = Home(tmp_path), ModelStore(str(tmp_path / "store"))
    for bump in (None, "major"):
        publish_weights(store, tmp_path / "draft", bump)
    what = (
        *("--set", "model.from=base@^1"),
        *("--param", "optim.adamw.lr=log(1e-4, 1e-1)"),
        *("--param", "train.precision=choice(fp32, fp16)"),
    )
    first = home.run(*what, "--processes", "2", "--trials", "3", "--no-publish")
    assert first.exit_code == 0, first.output
    assert store.models() == ["base"]
    result = home.run(*what, "--processes", "2", "--trials", "4")
    assert result.exit_code == 0, result.output
    assert "resuming" not in result.stdout, "nothing was interrupted"
    lines = result.stdout.splitlines()
    winner = next(place for place, line in enumerate(lines) if line.startswith("the best is trial"))
    assert re.fullmatch(r"exporting, verifying and publishing trial \d+ as tiny", lines[winner + 1])
    assert "\ntrained already, to the end of epoch 1: its weights are in" in result.stdout
    assert "published tiny 1 (1.0.0) → production" in result.stdout

    record = home.record()
    assert [trial.number for trial in record.trials] == [1, 2, 3, 4]
    failed = [trial for trial in record.trials if trial.state == "failed"]
    assert failed
    assert all("fp16" in str(trial.reason) for trial in failed)
    done = [trial for trial in record.trials if trial.state == "done"]
    best = record.best()
    assert best is not None
    assert best.value == max(trial.value or 0 for trial in done)
    assert record.published is not None
    assert (record.published.trial, record.published.version) == (best.number, 1)

    manifest = store.manifest("tiny", 1)
    assert manifest.lineage.metrics["val/accuracy"] == best.value
    parent, run = manifest.lineage.parent, home.folder() / "runs" / str(best.folder)
    assert parent is not None
    assert (parent.words, parent.checkpoint_sha256) == ("base@1 (1.0.0)", checkpoint_of(store, 1))
    taken = json.loads((run / "transfer.json").read_text())["taken"]
    assert "features.0.weight" in taken, "trials begin with the stored weights"
    written = load_recipe(str(home.folder() / "best.yaml"))
    assert written.model.from_ == "base@1"
    assert written.optim.chosen.lr == best.values["optim.adamw.lr"]
    assert (home.folder() / "trials" / f"{best.number:03d}.log").read_text()

    again = home.run(*what, "--trials", "4")
    assert again.exit_code == 0, again.output
    assert f"the best is trial {best.number} (optim.adamw.lr" in again.stdout
    assert f"trial {best.number} is published already, as tiny 1" in again.stdout
    assert store.versions("tiny") == [1]
    assert home.record() == record


def test_a_bad_parameter_is_one_line_and_nothing_runs(tmp_path: Path) -> None:
    result = Home(tmp_path).run("--param", "optmi.lr=log(1e-4, 1e-1)")
    assert result.exit_code == 2
    assert "unknown key 'optmi' (did you mean 'optim'?)" in result.stderr
    assert result.stderr.count("\n") == 1
    assert not (tmp_path / "sweeps").exists()
    result = Home(tmp_path).run("--param", "train.epochs=int(1, 3)", "--metric", "test/accuracy")
    assert result.exit_code == 2
    assert "trials are compared on validation rows" in result.stderr


def test_a_recipe_without_training_has_nothing_to_search(tmp_path: Path) -> None:
    asked = recipe(weights="net.pt", train="none")
    seeds = parse_parameters(["seed=int(1, 3)"])
    plan = SweepPlan(base=asked, parameters=seeds, metric="val/loss", trials=1)
    with pytest.raises(RecipeError, match="train is none, so a search has no training to vary"):
        plan.check()


Script = Callable[[int, Recipe], list[Told]]
"""Reports of a trial, by its position among the started ones."""


class ScriptedProcess:
    """Stands for a trial's process: tells what the script says, as it is answered."""

    script: Script
    places: Iterator[int]
    ended: list[int]
    limits: list[dict[str, Any]]

    def __init__(self, wanted: Recipe, runs_dir: Path, log: Path, **limits: Any) -> None:
        self.place = next(self.places)
        self.limits.append(limits)
        self._told = type(self).script(self.place, wanted)
        self.connection, self._theirs = Pipe()
        self.took_s = 0.0 if self._told else 60.0
        self.started_at = 0.0
        self.answers: list[bool] = []
        if self._told:
            self._theirs.send(None)

    def hear(self) -> Told:
        self.connection.recv()
        return self._told.pop(0)

    def answer(self, go_on: bool) -> None:
        self.answers.append(go_on)
        if not go_on:
            self._told = [Pruned()]
        self._theirs.send(None)

    def end(self) -> None:
        self.ended.append(self.place)
        self.connection.close()


@dataclass
class Scripted:
    """Searches whose trials are scripted."""

    folder: Path
    monkeypatch: pytest.MonkeyPatch
    output: io.StringIO = field(default_factory=io.StringIO)
    ended: list[int] = field(default_factory=list)
    limits: list[dict[str, Any]] = field(default_factory=list)

    def run(self, script: Script, **changes: Any) -> SweepRecord:
        scripted = type(
            "One",
            (ScriptedProcess,),
            {
                "places": count(1),
                "ended": self.ended,
                "limits": self.limits,
                "script": staticmethod(script),
            },
        )
        self.monkeypatch.setattr(search_module, "TrialProcess", scripted)
        return sweep(self.plan(**changes), self.folder, None, Console(file=self.output))

    def plan(self, **changes: Any) -> SweepPlan:
        usual: dict[str, Any] = {
            "base": recipe(train={"epochs": 3}, stop={"metric": "val/accuracy"}),
            "parameters": parse_parameters(["optim.adamw.lr=log(1e-4, 1e-1)"]),
            "metric": "val/accuracy",
            "trials": 6,
        }
        return SweepPlan(**(usual | changes))

    def record(self) -> SweepRecord:
        (found,) = self.folder.glob("*/sweep.json")
        return SweepRecord.model_validate_json(found.read_bytes())


@pytest.fixture
def scripted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    return Scripted(tmp_path, monkeypatch)


def finished(accuracy: float, epochs: int = 3) -> list[Told]:
    metrics = {"val/accuracy": accuracy}
    told: list[Told] = [Epoch(epoch, metrics) for epoch in range(1, epochs + 1)]
    return [*told, Finished(metrics, epochs, "run")]


def test_hopeless_trials_end_early_but_never_after_their_last_epoch(scripted: Scripted) -> None:
    late: list[Told] = [
        *(Epoch(e, {"val/accuracy": 0.9}) for e in (1, 2)),
        Epoch(3, {"val/accuracy": 0.1}),
        Finished({"val/accuracy": 0.1}, 3, "r"),
    ]
    record = scripted.run(
        lambda place, _: finished(0.9) if place <= 4 else late if place == 5 else finished(0.1)
    )
    assert [trial.state for trial in record.trials] == ["done"] * 5 + ["pruned"]
    assert (record.trials[5].epochs, record.trials[5].value) == (2, 0.1)
    best = record.best()
    assert best is not None
    assert (best.number, best.value) == (1, 0.9)
    lines = scripted.output.getvalue().splitlines()
    assert re.fullmatch(r"trial 1  lr \S+  epochs 3  val/accuracy 0\.9000  done", lines[0]), (
        "a line for each trial, where there is no terminal"
    )
    assert lines[5].endswith("val/accuracy 0.1000  pruned: worse than the median of the others")
    (folder,) = scripted.folder.iterdir()
    values = f"optim.adamw.lr {best.values['optim.adamw.lr']:.4g}"
    assert lines[-1] == (
        f"the best is trial 1 ({values}): val/accuracy 0.9000 after 3 epochs; its recipe is "
        f"{folder / 'best.yaml'}"
    )


def test_small_figures_keep_their_digits() -> None:
    found = [figure_text(value) for value in (0.0, 0.97501, 53.27, -0.5, 5.2464e-7)]
    assert found == ["0.0000", "0.9750", "53.2700", "-0.5000", "5.246e-07"]


def test_a_failed_trial_does_not_end_the_search(scripted: Scripted) -> None:
    record = scripted.run(
        lambda place, _: [TrialFailed("the loss is nan")] if place % 2 else finished(place / 10),
        trials=4,
    )
    assert [(t.state, t.reason) for t in record.trials] == [
        ("failed", "the loss is nan"), ("done", None),
        ("failed", "the loss is nan"), ("done", None),
    ]  # fmt: skip


def test_a_bad_combination_fails_with_the_recipes_reason(scripted: Scripted) -> None:
    texts = ["optim=choice({adamw: {}}, {lbfgs: {}})", "train.precision=choice(bf16, fp32)"]
    record = scripted.run(
        lambda *_: finished(0.5), parameters=parse_parameters(texts), trials=12, prune=False
    )
    bad = {"optim": {"lbfgs": {}}, "train.precision": "bf16"}
    reasons = [trial.reason for trial in record.trials if trial.values == bad]
    assert "optim.lbfgs compares losses that train.precision bf16 is too" in str(reasons[0])


def test_without_any_trial_that_is_done_the_reasons_are_told(scripted: Scripted) -> None:
    with pytest.raises(SweepError, match="no trial is done: 2 of 2 failed, as by: the loss is nan"):
        scripted.run(lambda *_: [TrialFailed("the loss is nan")], trials=2)
    with pytest.raises(SweepError, match="it has no metric val/exact_match; it has: val/accuracy"):
        scripted.run(lambda *_: finished(0.5), trials=1, metric="val/exact_match")


def test_all_trials_begin_with_one_version_of_the_store(scripted: Scripted, tmp_path: Path) -> None:
    store = ModelStore(str(tmp_path / "store"))
    publish_weights(store, tmp_path / "draft")
    store.promote("base", 1)
    model = {"target": "training.networks:SmallCnn", "from": "base@production"}
    plan = {"base": recipe(model=model), "weights_store": store.url, "trials": 3}

    def moving(_: int, wanted: Recipe) -> list[Told]:
        assert wanted.model.from_ == "base@1"
        publish_weights(store, tmp_path / "draft")
        store.promote("base", store.versions("base")[-1])
        return finished(0.5)

    scripted.run(moving, **plan)
    (folder,) = scripted.folder.glob("small-*")
    later = scripted.plan(**plan).settled()
    assert later.base.model.from_ == "base@4"
    assert later.folder(scripted.folder) != folder, "another version is another search"
    with pytest.raises(RecipeError, match=r"no version of 'base' fits \^9"):
        scripted.run(moving, **{**plan, "base": recipe(model={**model, "from": "base@^9"})})
    with pytest.raises(RecipeError, match="no store is given"):
        scripted.run(moving, **{**plan, "weights_store": None})


def test_an_interrupted_search_goes_on_with_what_it_was_at(scripted: Scripted) -> None:
    seen: list[float] = []

    def interrupted(place: int, wanted: Recipe) -> list[Told]:
        seen.append(wanted.optim.chosen.lr)
        if place == 3:
            raise KeyboardInterrupt
        return finished(0.5)

    with pytest.raises(KeyboardInterrupt):
        scripted.run(interrupted, processes=2)
    assert [t.number for t in scripted.record().trials if t.state == "running"]
    ended = set(scripted.ended)
    assert ended == {1, 2}, "what ran was ended"

    def going_on(_: int, wanted: Recipe) -> list[Told]:
        seen.append(wanted.optim.chosen.lr)
        return finished(0.5)

    record = scripted.run(going_on, processes=2)
    assert [trial.number for trial in record.trials] == [1, 2, 3, 4, 5, 6]
    assert {trial.state for trial in record.trials} == {"done"}
    assert seen[2] in seen[3:], "the trial that was interrupted has the same values again"


@pytest.mark.parametrize(("processes", "threads"), [(1, 6), (2, 3), (4, 1), (8, 1)])
def test_trials_that_run_together_share_the_cores(
    processes: int, threads: int, scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(6)))
    scripted.run(lambda *_: finished(0.5), processes=processes, trials=1)
    (limits,) = scripted.limits
    assert limits["threads"] == threads


def test_limits_end_a_trial_and_the_call(scripted: Scripted) -> None:
    record = scripted.run(
        lambda place, _: [] if place == 1 else finished(0.5), trial_timeout_s=30.0, trials=2
    )
    assert (record.trials[0].state, record.trials[0].reason) == (
        "failed",
        "it took longer than 30 s",
    )
    with pytest.raises(SweepError, match="run the same command again"):
        scripted.run(lambda *_: finished(0.5), timeout_s=0.0, metric="val/loss")


def test_a_search_has_a_folder_of_its_own(scripted: Scripted) -> None:
    plan = scripted.plan()
    other_lr = parse_parameters(["optim.adamw.lr=log(1e-4, 1)"])
    folders = {
        one.folder(scripted.folder)
        for one in (
            plan,
            scripted.plan(metric="val/loss"),
            scripted.plan(parameters=other_lr),
            scripted.plan(base=recipe(train={"epochs": 4})),
        )
    }
    assert len(folders) == 4
    assert scripted.plan(trials=99).folder(scripted.folder) == plan.folder(scripted.folder)
    with (
        locked_folder(plan.folder(scripted.folder)),
        pytest.raises(RunBusyError, match="--sweeps-dir"),
    ):
        scripted.run(lambda *_: finished(0.5))


def test_only_what_was_trained_is_published(
    scripted: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def other_data(*_: Any, watcher: Any, resume: bool, **__: Any) -> None:
        assert resume
        watcher.begin(Path("runs/run"))
        watcher.begin(Path("runs/other"))

    monkeypatch.setattr(training.pipeline, "run", other_data)
    scripted.run(lambda *_: finished(0.5), trials=1)
    with pytest.raises(DataError, match="has changed since the best trial"):
        sweep(scripted.plan(trials=1), scripted.folder, "store", Console(file=io.StringIO()))


RECORD = SweepRecord(
    name="<tiny>",
    metric="val/loss",
    parameters=("optim.adamw.lr=log(0.0001, 0.1)", 'schedule=choice({"a": 1}, null)'),
    trials=(
        TrialRecord(number=1, state="done", values={"optim.adamw.lr": 1e-3, "schedule": {"a": 1}},
                    epochs=3, value=0.5, took_s=1.25),
        TrialRecord(number=2, state="pruned", values={"optim.adamw.lr": 1e-2, "schedule": None},
                    epochs=1, value=0.9, reason="worse"),
        TrialRecord(number=3, state="failed", values={"optim.adamw.lr": 1e-1, "schedule": None},
                    reason="<b>nan"),
        TrialRecord(number=4, state="done", values={"optim.adamw.lr": 2e-3, "schedule": None},
                    epochs=3, value=0.25, took_s=1.0),
    ),
    importances={"optim.adamw.lr": 0.75, "schedule": 0.25},
)  # fmt: skip


def test_the_page_has_every_trial_and_a_plot_for_each_parameter() -> None:
    page = sweep_page(RECORD)
    assert "2 done, 1 pruned, 1 failed. The best is trial 4, with val/loss 0.2500." in page
    assert "<tiny>" not in page
    assert "<b>nan" not in page
    assert "75 %" in page
    plots = [ElementTree.fromstring(svg) for svg in re.findall(r"<svg.*?</svg>", page)]
    assert len(plots) == 3
    for plot in plots:
        kinds = [circle.attrib["class"] for circle in plot.iter(f"{SVG}circle")]
        assert kinds == ["dot", "dot", "dot hollow"], "two that are done, and one that was pruned"
    (front,) = (g for g in plots[0].iter(f"{SVG}g") if g.get("class") == "front" and len(g))
    assert len(re.findall(r"[\d.]+ [\d.]+", front[0].attrib["d"])) == 2
    assert '<tr class="best"><td>4</td>' in page
    assert json.loads(RECORD.to_json())["trials"][2]["reason"] == "<b>nan"


def test_a_terminal_shows_a_table() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=140, color_system=None)
    parameters = parse_parameters(list(RECORD.parameters))
    with LiveSweepTable(console, RECORD.metric, parameters) as table:
        table.show(RECORD.trials)
    text = output.getvalue()
    for word in ("trial", "lr", "val/loss", "0.2500", "pruned", "<b>nan", "1.2 s"):
        assert word in text


def test_a_long_reason_keeps_to_one_line_and_narrows_no_other_column() -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=80, color_system=None)
    trial = RECORD.trials[2].model_copy(update={"reason": "it diverged [loss nan], " * 20})
    with LiveSweepTable(console, RECORD.metric, parse_parameters(list(RECORD.parameters))) as table:
        table.show([trial])
    last = output.getvalue().rsplit("trial", 1)[1]
    assert last.count("it diverged [loss") == 1
    assert "…" in last
    for word in ("schedule", "val/loss", "failed", "0.1"):
        assert word in last
