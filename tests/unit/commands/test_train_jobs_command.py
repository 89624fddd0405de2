"""`flambeau train`: a recipe here, or a verb of the training service."""

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import pytest
from typer.testing import CliRunner, Result

import flambeau.training_jobs
from flambeau.channel import Tls
from flambeau.cli import app
from flambeau.errors import InvalidRequestError, ServerError
from flambeau.training_jobs import TrainingEvent, TrainingJob

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def job(**fields: Any) -> TrainingJob:
    return TrainingJob(**{
        "id": "0123456789abcdef", "name": "tiny", "model": "digits", "state": "queued",
        "created_at": NOW, "started_at": None, "finished_at": None, "submitter": "", "attempts": 0,
        "epoch": 0, "worker": "", "run_folder": "", "version": None, "error": "",
        "recipe": "name: tiny", **fields,
    })  # fmt: skip


class Service:
    """Answers in place of a service, and records requests."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.state = "succeeded"
        self.cancelling = "running"

    def __call__(self, target: str, *, token: str = "", tls: Tls | None = None) -> Self:
        self.asked.append((target, token))
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None: ...

    def submit(self, recipe: str, **wanted: Any) -> TrainingJob:
        self.asked.append((recipe, wanted))
        if "optmi" in recipe:
            raise InvalidRequestError("r.yaml: unknown key 'optmi' (did you mean 'optim'?)")
        if "file.py" in recipe:
            raise ServerError("nobody may bring code", "PERMISSION_DENIED")
        return job()

    def watch(self, job_id: str, *, after: int = 0, follow: bool = False) -> Iterator[Any]:
        self.asked.append(("watch", job_id, after, follow))
        event: dict[str, Any] = {
            "time": NOW,
            "attempt": 1,
            "text": "",
            "state": "",
            "epoch": 0,
            "metrics": {},
        }
        yield TrainingEvent(**{**event, "seq": 8, "kind": "log", "text": "a line"})
        yield TrainingEvent(**{**event, "seq": 9, "kind": "metric", "epoch": 1})
        yield TrainingEvent(
            **{**event, "seq": 10, "kind": "state", "text": "published", "state": self.state}
        )

    def get(self, _: str) -> TrainingJob:
        return job(state=self.state, error="no data", started_at=NOW, finished_at=NOW, version=3)

    def list(self, state: str, limit: int) -> "list[TrainingJob]":
        self.asked.append(("list", state, limit))
        return [job(state="succeeded", version=3, epoch=20), job()]

    def cancel(self, _: str) -> TrainingJob:
        return job(state=self.cancelling)

    def resume(self, _: str) -> TrainingJob:
        return job()


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Service:
    found = Service()
    monkeypatch.setattr(flambeau.training_jobs, "TrainingClient", found)
    return found


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["train", *arguments])


@pytest.mark.parametrize("arguments", [("missing.yaml",), ("--resume", "missing.yaml"),
                                       ("run", "missing.yaml")])  # fmt: skip
def test_what_is_no_verb_is_a_recipe_to_train_here(arguments: Sequence[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("error: there is no recipe missing.yaml")


@pytest.mark.parametrize(("word", "verb"), [("sumbit", "submit"), ("resme", "resume")])
def test_a_misspelt_verb_gets_the_nearest(word: str, verb: str) -> None:
    result = run(word, "recipe.yaml")
    assert result.exit_code == 2
    assert f"No such command '{word}'. Did you mean '{verb}'?" in result.stderr


def test_a_misspelt_folder_of_recipes_gets_the_nearest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipes").mkdir()
    monkeypatch.chdir(tmp_path)
    hint = f"no such folder (did you mean '{tmp_path / 'recipes'}'?); paths start at the working"
    assert hint in run("recipse/digits.yaml").stderr
    assert "no such folder; paths start" in run("nowhere/digits.yaml").stderr


def test_a_recipe_goes_to_the_service_as_it_is(service: Service, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("name: tiny  # with its comments")
    (tmp_path / "token").write_text("secret\n")
    recipe, token = str(tmp_path / "r.yaml"), str(tmp_path / "token")
    result = run("submit", recipe, "--set", "a.b=1", "--key", "k", "--token-file", token)
    assert (result.exit_code, result.stdout) == (0, "0123456789abcdef\n")
    assert service.asked == [
        ("127.0.0.1:8004", "secret"),
        ("name: tiny  # with its comments",
         {"name": recipe, "overrides": ["a.b=1"], "bundle": b"", "idempotency_key": "k"}),
    ]  # fmt: skip


@pytest.mark.parametrize(("state", "code"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)])
def test_following_ends_as_the_job_does(
    service: Service, tmp_path: Path, state: str, code: int
) -> None:
    (tmp_path / "r.yaml").write_text("name: tiny")
    service.state = state
    result = run("submit", str(tmp_path / "r.yaml"), "--follow")
    assert result.exit_code == code
    lines = result.stdout.splitlines()
    assert lines[:2] == ["0123456789abcdef", "a line"]
    assert lines[2].endswith(f"  {state}: published")


def test_what_came_of_an_act_is_json_in_a_line(service: Service, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("name: tiny")
    job, *events = map(
        json.loads,
        run("submit", str(tmp_path / "r.yaml"), "--follow", "--json").stdout.splitlines(),
    )
    assert (job["id"], "recipe" in job) == ("0123456789abcdef", False)
    assert [event["kind"] for event in events] == ["log", "metric", "state"]
    assert datetime.fromisoformat(job["created_at"])
    assert json.loads(run("cancel", "x", "--json").stdout)["state"] == "running"
    assert json.loads(run("resume", "x", "--json").stdout)["state"] == "queued"


def test_what_is_refused_is_one_line_and_exit_code_2(service: Service, tmp_path: Path) -> None:
    (tmp_path / "r.yaml").write_text("optmi: 1")
    result = run("submit", str(tmp_path / "r.yaml"))
    assert result.exit_code == 2
    assert result.stderr == "error: r.yaml: unknown key 'optmi' (did you mean 'optim'?)\n"
    result = run("submit", str(tmp_path / "r.yaml"), "--bundle", str(tmp_path / "missing"))
    assert (result.exit_code, "there is no folder" in result.stderr) == (2, True)
    missing = str(tmp_path / "missing.yaml")
    there, here = run("submit", missing), run(missing)
    assert (there.exit_code, there.stderr) == (here.exit_code, here.stderr) == (2, there.stderr)
    assert there.stderr.startswith(f"error: there is no recipe {missing}; that folder holds: ")
    (tmp_path / "r.yaml").write_text("file.py:Name")
    result = run("submit", str(tmp_path / "r.yaml"))
    assert (result.exit_code, result.stderr) == (2, "error: nobody may bring code\n")


def test_jobs_are_listed_shown_ended_and_resumed(service: Service) -> None:
    first, second = run("list", "--state", "queued", "--limit", "7").stdout.splitlines()[1:]
    assert first.split()[:4] == ["0123456789abcdef", "tiny", "succeeded", "20"]
    assert first.endswith("digits 3")
    assert second.endswith("-")
    assert ("list", "queued", 7) in service.asked
    shown = run("get", "x").stdout
    assert "published digits 3" in shown
    assert "error     no data" in shown
    assert run("get", "x", "--recipe").stdout == "name: tiny\n"
    for state, told in (("running", "being cancelled"), ("queued", "being cancelled"),
                        ("cancelled", "cancelled"), ("failed", "failed")):  # fmt: skip
        service.cancelling = state
        assert run("cancel", "x").stdout == f"x is {told}\n"
    assert run("resume", "x").stdout == "x is queued\n"
    assert run("logs", "x", "--after", "5").stdout.startswith("a line\n")
    assert ("watch", "x", 5, False) in service.asked
    run("resume", "x", "-f")
    assert service.asked[-1] == ("watch", "x", 10, True), "only what comes from now on"
