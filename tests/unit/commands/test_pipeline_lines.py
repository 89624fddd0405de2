"""`flambeau models` shows a pipeline with its steps; `push` copies it with its models."""

from pathlib import Path

from typer.testing import CliRunner

from flambeau.cli import app
from flambeau.commands.models import models_app
from model_store.store import ModelStore
from tests.fixtures.pipelines import publish_graph, publish_parts


def lines(store: str, *arguments: str) -> list[str]:
    result = CliRunner().invoke(models_app, [*arguments, "--store", store])
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def test_a_pipeline_is_listed_and_shown_with_its_steps(tmp_path: Path) -> None:
    publish_parts(str(tmp_path))
    publish_graph(str(tmp_path))
    listed = [line.split() for line in lines(str(tmp_path), "list")]
    assert ["reader", "-", "1", "version", "1.0.0", "-", "-"] in listed
    shown = lines(str(tmp_path), "show", "reader")
    steps = [line.split() for line in shown[shown.index("steps") + 1 :][:3]]
    assert steps[1:] == [
        ["find", "finder@^1", "1.0.0", "-", "-"],
        ["score", "scorer@^1", "1.0.0", "find.crops", "find.found"],
    ]


def test_a_pipeline_is_pushed_with_the_models_that_are_missing(tmp_path: Path) -> None:
    source, target = str(tmp_path / "source"), str(tmp_path / "target")
    publish_parts(source)
    publish_graph(source)
    for parts in (" and its models (finder/1, scorer/1) are", " is"):
        arguments = ["push", "reader/1", "--to", target, "--store", source]
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == 0, result.output
        assert result.stdout.startswith(f"reader 1{parts} in {target}: ")
    assert set(ModelStore(target).models()) == {"finder", "scorer", "reader"}
