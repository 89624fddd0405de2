"""The push of a trained version to a registry whose answers are lost."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import ClassVar

import pytest
import typer
from typer.testing import CliRunner

from flambeau.commands.remote.trained_version import pushed_where_asked
from model_store.store import ModelStore
from tests.fixtures.http_listener import QuietHandler, http_listener
from tests.fixtures.store_versions import publish_in
from training.recipe.file import load_recipe

DIGITS = str(Path(__file__).parents[3] / "training/recipes/digits_cnn.yaml")
Train = Callable[..., str]


class Registry(QuietHandler):
    """A registry without models, which is behind a proxy."""

    loses = "finish"
    """What answers of calls are lost: those of a path with it, and all after them."""
    has_lost = False
    conflicts: ClassVar[list[tuple[str, str]]] = []
    """Aliases that other writers have moved at each promotion, and the refusal of it."""
    named: str | None = None
    """The alias that was moved last; None before the first conflict."""

    def do_GET(self) -> None:
        """Finds no model, or one with an alias and no version."""
        if self.conflicts or self.named:
            aliases = {self.named: 1} if self.named else {}
            self._answer(200, {"versions": [], "aliases": aliases})
        else:
            self._answer(404, {"error": "there is no model"})

    def do_DELETE(self) -> None:
        """Abandons an upload."""
        self._answer(200, None)

    def do_POST(self) -> None:
        """Begins an upload that has all bytes, ends it, or moves an alias."""
        document = json.loads(self.rfile.read(int(self.headers["content-length"])))
        kind = type(self)
        kind.has_lost = kind.has_lost or kind.loses in self.path
        if kind.has_lost:
            self._answer(504, None)
            return
        if "/aliases/" in self.path and kind.conflicts:
            assert document["first"] is True
            kind.named, message = kind.conflicts.pop(0)
            self._answer(409, {"error": message})
            return
        files = [{**one, "received": one["size_bytes"]} for one in document.get("files", ())]
        self._answer(200, {"id": "u1", "is_published": False, "files": files})

    def _answer(self, status: int, document: object) -> None:
        data = b"" if document is None else json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


@pytest.fixture
def train(tmp_path: Path) -> Train:
    """Returns a function that publishes at a registry which loses answers, and gives the output."""

    def train(
        loses: str, *values: str, conflicts: Sequence[tuple[str, str]] = (), exit_code: int = 1
    ) -> str:
        fields = {"loses": loses, "conflicts": [*conflicts]}
        handler = type("Handler", (Registry,), fields)
        with http_listener(handler) as url:
            recipe = load_recipe(DIGITS, [f"publish.to={url}", *values])

            def command() -> None:
                with pushed_where_asked(recipe) as into:
                    publish_in(ModelStore(into), tmp_path / "draft")

            app = typer.Typer()
            app.command()(command)
            done = CliRunner().invoke(app, [])
        assert done.exit_code == exit_code, done.output
        return done.output

    return train


def test_a_lost_answer_to_the_push_leaves_it_unknown(train: Train) -> None:
    said = train("finish")
    assert "error: it is not known whether digits 1 (1.0.0) is at http" in said
    assert "look there (flambeau models show digits 1 --server http" in said
    assert "is not at" not in said


def test_a_lost_answer_to_the_move_leaves_it_unknown(train: Train) -> None:
    said = train("aliases", "publish.if=always")
    assert "and it is not known whether production moved to it" in said
    assert "flambeau models history digits --server http" in said


def test_a_recipe_that_trains_nothing_is_not_resumed(train: Train, tmp_path: Path) -> None:
    (tmp_path / "net.pt").write_bytes(b"weights")
    weights = (f"weights={tmp_path / 'net.pt'}", "train=none", "optim={}", "stop={}", "schedule={}")
    said = train("finish", *weights)
    assert "if not, run it again\n" in said
    assert "if not, run it again with --resume\n" in train("finish")


def test_an_alias_that_another_recipe_moves_at_this_moment_stays(train: Train) -> None:
    conflicts = [("production", "alias 'production' of 'digits' names version 1 already")]
    said = train("nothing", conflicts=conflicts, exit_code=0)
    assert "; production stays where it is" in said


def test_a_first_move_is_repeated_after_moves_of_other_aliases(train: Train) -> None:
    conflicts = [("canary", "another process moved a pointer")] * 3
    assert "→ production" in train("nothing", conflicts=conflicts, exit_code=0)
    said = train("nothing", conflicts=conflicts * 10)
    assert "and production was not moved to it: another process moved a pointer" in said
