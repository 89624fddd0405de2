"""`training.job`: its reports on a run, and its exit codes."""

import json
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import training.pipeline
from model_store.errors import StoreError
from tests.fixtures.training_jobs import RECIPE
from training import job
from training.distributed import ranks
from training.errors import DataError, RunBusyError, StoppedError


class Runs:
    """Runs `main` with a fake pipeline."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._folder, self._monkeypatch = folder, monkeypatch
        self.codes: list[int] = []
        self.folders: tuple[Path, ...] | None = None

    def __call__(
        self,
        *outcomes: Exception | None,
        recipe: str = RECIPE,
        options: Sequence[str] = (),
        before: Callable[[], None] = lambda: None,
        store: str = "s3://b/store",
    ) -> list[dict[str, Any]]:
        following = iter(outcomes)

        def run(
            recipe: Any,
            url: str,
            folder: Path,
            *,
            resume: bool,
            watcher: Any,
            reach: Any,
            **_: Any,
        ) -> Any:
            assert (url, resume) == (store, True)
            self.folders = reach.folders
            watcher.begin(folder / recipe.name)
            watcher.end_epoch(1, {"val/loss": 0.5, "train/loss": float("nan")})
            before()
            outcome = next(following)
            if outcome is not None:
                raise outcome
            watcher.promoted("; production stays where it is")
            return SimpleNamespace(model="tiny", version=4)

        self._monkeypatch.setattr(training.pipeline, "run", run)
        (self._folder / "recipe.yaml").write_text(recipe)
        events = self._folder / "events"
        self.codes.append(
            job.main([
                "--recipe", str(self._folder / "recipe.yaml"), "--store", store,
                "--runs-dir", "/runs", "--events", str(events), "--memory-limit-gib", "512",
                "--data-folder", "/lent", *options,
            ])
        )  # fmt: skip
        return [json.loads(line) for line in events.read_text().splitlines()]


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Runs:
    monkeypatch.setattr(job, "set_limits", lambda **_: None)  # they would be this process's
    monkeypatch.setattr("training.job.signal.signal", lambda *_: None)
    monkeypatch.setattr(job, "BUSY_S", 0.0)
    return Runs(tmp_path, monkeypatch)


def test_a_run_tells_where_it_works_how_it_goes_and_what_it_published(runs: Runs) -> None:
    assert runs(None) == [
        {"kind": "begun", "folder": "/runs/tiny"},
        {"kind": "metric", "epoch": 1, "metrics": {"val/loss": 0.5}},
        {
            "kind": "published",
            "model": "tiny",
            "version": 4,
            "alias": "; production stays where it is",
        },
    ]
    assert runs.codes == [0]


def test_data_lies_in_the_working_directory_or_where_the_operator_lends_it(runs: Runs) -> None:
    runs(None)
    assert runs.folders == (Path.cwd(), Path("/lent"))


@pytest.mark.parametrize(
    ("error", "kind", "text", "code"),
    [
        (StoppedError("after 3"), "stopped", "after 3", 75),
        (DataError("no rows"), "failed", "no rows", 1),
        (StoreError("gone"), "failed", "gone", 1),
        (OSError(28, "No space left"), "failed", "[Errno 28] No space left", 1),
        (RunBusyError("another"), "failed", "another", 1),
        (MemoryError(), "failed", "it needed more than 512 GiB of memory", 1),
    ],
)
def test_how_a_run_ends_is_told(
    runs: Runs, error: Exception, kind: str, text: str, code: int
) -> None:
    last = runs(error)[-1]
    assert last["kind"] == kind
    assert last["text"].startswith(text)
    assert runs.codes == [code]


def test_a_bug_is_told_and_shown(runs: Runs, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        runs(RuntimeError("DefaultCPUAllocator: can't allocate memory"))
    last = json.loads((tmp_path / "events").read_text().splitlines()[-1])
    assert "lower data.batch_size" in last["text"]


@pytest.mark.parametrize(("is_terminated", "kind"), [(True, "crashed"), (False, "failed")])
def test_errors_of_a_rank_that_torchrun_restarts_do_not_end_the_run(
    runs: Runs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_terminated: bool, kind: str
) -> None:
    handlers: list[Any] = []
    monkeypatch.setattr("training.job.signal.signal", lambda _, handler: handlers.append(handler))

    def lose_child() -> None:
        if is_terminated:
            (stop,) = handlers
            stop(signal.SIGTERM, None)

    error = EOFError("unexpected EOF")
    last = runs(error, options=["--together", str(tmp_path)], before=lose_child)[-1]
    assert (last["kind"], "unexpected EOF" in last["text"]) == (kind, True)


def test_a_rank_exits_without_finalization(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(ranks, "started_by_torchrun", lambda: True)
    monkeypatch.setattr(ranks, "join_ranks", lambda: ranks.Ranks(1, 2))
    monkeypatch.setattr(ranks, "exit_rank", codes.append)
    monkeypatch.setattr(training.pipeline, "assist", lambda *_: None)
    assert runs(None) == []
    assert codes == [0]


def test_a_bad_recipe_is_told(runs: Runs) -> None:
    (told,) = runs(None, recipe=RECIPE + "optmi: 1\n")
    assert told["text"] == "recipe.yaml: unknown key 'optmi' (did you mean 'optim'?)"
    assert runs.codes == [1]


def test_a_job_of_a_server_creates_no_folder_for_its_store(runs: Runs, tmp_path: Path) -> None:
    """An unmounted volume would become a store with the version of the job alone."""
    place = tmp_path / "store"
    (told,) = runs(None, options=["--existing-store"], store=str(place))
    assert (told["kind"], told["error"]) == ("failed", "StoreNotFoundError")
    assert not place.exists()
    place.mkdir()
    assert runs(None, options=["--existing-store"], store=str(place))[-1]["kind"] == "published"


def test_a_run_waits_for_the_one_before_it(runs: Runs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "BUSY_S", 60.0)
    monkeypatch.setattr(job, "BUSY_LOOK_S", 0.001)
    told = runs(RunBusyError("busy"), RunBusyError("busy"), None)
    assert [event["kind"] for event in told] == ["begun", "metric"] * 3 + ["published"]
    assert runs.codes == [0]
