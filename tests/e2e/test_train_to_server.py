"""Recipes with `publish.to`: their versions arrive in the registry of a real server."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner, Result

from flambeau.commands.remote.trained_version import pushed_where_asked
from flambeau.commands.sweep import sweep
from model_store.records.deletion import delete_version
from model_store.store import ModelStore
from services.access.api_keys import ApiKey, add_key, digest_of, new_key
from tests.fixtures.servers import ServerProcess, running_server
from tests.fixtures.store_versions import publish_in
from training.recipe.file import load_recipe

DIGITS = str(Path(__file__).parents[2] / "training/recipes/digits_cnn.yaml")
GRANTS = {"ci": ("read", "push", "promote"), "pusher": ("read", "push"), "reader": ("read",)}

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Returns keys by name, and the path of the server's file as `file`."""
    path = tmp_path_factory.mktemp("keys") / "keys.yaml"
    found = {"file": str(path), "wrong": new_key()}
    for name, grants in GRANTS.items():
        found[name] = new_key()
        document = {"name": name, "sha256": digest_of(found[name]).hex(), "grants": grants}
        add_key(path, ApiKey.model_validate(document))
    return found


@pytest.fixture(scope="module")
def there(keys: dict[str, str]) -> ModelStore:
    """Returns the store of the server."""
    return ModelStore(str(Path(keys["file"]).parent / "store"))


@pytest.fixture(scope="module")
def server(keys: dict[str, str], there: ModelStore) -> Iterator[ServerProcess]:
    """Runs a server that asks for keys, where `guarded` needs two persons."""
    settings: dict[str, object] = {"registry_two_person": ["guarded@production"]}
    with running_server(Path(there.url), api_keys_file=keys["file"], **settings) as server:
        yield server


@pytest.fixture
def run(server: ServerProcess, keys: dict[str, str], tmp_path: Path) -> Run:
    """Returns a function that runs a recipe, whose version another function publishes."""

    def run(key: str, *values: str, before_push: Callable[[], object] = lambda: None) -> Result:
        recipe = load_recipe(DIGITS, [f"publish.to=http://{server.http}", *values])

        def command() -> None:
            with pushed_where_asked(recipe) as into:
                typer.echo("trained")
                publish_in(ModelStore(into), tmp_path / "draft", recipe.publish.model)
                before_push()

        app = typer.Typer()
        app.command()(command)
        return CliRunner().invoke(app, [], env={"FLAMBEAU_KEY": keys.get(key, "")})

    return run


def test_a_recipe_trains_and_its_version_is_pushed(
    server: ServerProcess, keys: dict[str, str], there: ModelStore, tmp_path: Path
) -> None:
    """In a process of its own: what it forks for verification holds its pipes."""
    values = (f"publish.to=http://{server.http}", "publish.model=trained", "train.epochs=1",
              "export=[{kind: onnx}]")  # fmt: skip
    command = [
        sys.executable, "-m", "flambeau", "train", DIGITS, "--store", str(tmp_path / "own"),
        "--runs-dir", str(tmp_path / "runs"),
        *(word for value in values for word in ("--set", value)),
    ]  # fmt: skip
    environment = {**os.environ, "FLAMBEAU_KEY": keys["ci"]}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "verified trained 1 (1.0.0)" in done.stdout
    assert f"pushed trained 1 (1.0.0) to http://{server.http} → production" in done.stdout
    manifest = there.manifest("trained", 1)
    for entry in manifest.files:
        assert keys["ci"].encode() not in there.read_file(manifest, entry)
    assert not (tmp_path / "own/trained").exists(), "the own store gets nothing"


def test_an_alias_moves_as_the_recipe_and_the_key_allow(run: Run, there: ModelStore) -> None:
    assert "pushed digits 1 (1.0.0)" in run("ci").output
    found = run("ci")
    assert "pushed digits 2 (1.1.0)" in found.output
    assert "; production stays where it is" in found.output, "it is the first version alone"
    delete_version(there, "digits", 2, "ops")
    found = run("pusher", "publish.if=test/accuracy >= 99%")
    assert found.exit_code == 0, found.output
    assert "pushed digits 3 (1.2.0)" in found.output
    assert "stays where it is (test/accuracy" in found.output
    found = run("pusher", "publish.if=always")
    assert found.exit_code == 1
    assert "digits 4 (1.3.0) is at" in found.output
    assert "production was not moved to it" in found.output
    pointers = there.pointers("digits")
    assert pointers is not None
    assert pointers.aliases == {"production": 1}
    assert "; no alias moves" in run("pusher", "publish.if=null", "publish.alias=null").output


def test_the_move_of_an_alias_waits_for_the_second_person(run: Run) -> None:
    found = run("ci", "publish.model=guarded")
    assert found.exit_code == 0, found.output
    assert "; production moves once a second person approves request 1" in found.output


@pytest.mark.parametrize(
    ("key", "said"),
    [
        ("reader", "does not have the scope 'push'"),
        ("wrong", "give a key in the environment variable FLAMBEAU_KEY"),
        ("none", "give a key in the environment variable FLAMBEAU_KEY"),
    ],
)
def test_a_caller_who_may_not_push_is_told_before_training(run: Run, key: str, said: str) -> None:
    found = run(key)
    assert found.exit_code == 1
    assert said in found.output
    assert "trained" not in found.output


def test_a_number_that_another_publisher_took_meanwhile_costs_no_training(
    run: Run, there: ModelStore
) -> None:
    def claim() -> None:
        there.claim("mine", 1, "other")

    found = run("ci", "publish.model=mine", before_push=claim)
    assert found.exit_code == 1
    assert "mine 1 (1.0.0) is not at http" in found.output
    assert "is taken by another publisher" in found.output
    assert "run it again with --resume, which trains nothing anew" in found.output
    assert "pushed mine 2 (1.0.0)" in run("ci", "publish.model=mine").output


def test_a_search_publishes_into_its_store_alone(tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(sweep)
    arguments = [DIGITS, "--param", "optim.adamw.lr=log(1e-4, 1e-1)", "--store", str(tmp_path),
                 "--set", "publish.to=https://models.example"]  # fmt: skip
    found = CliRunner().invoke(app, arguments)
    assert found.exit_code == 2
    assert "publish.to is https://models.example, and here a version is published" in found.output
