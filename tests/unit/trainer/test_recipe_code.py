"""Code named by a recipe: all code that could run is foreign, except for a short list."""

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from services.trainer.recipe_code import SHIPPED_TARGETS, foreign_targets
from tests.fixtures.training_jobs import config
from training.errors import TargetError
from training.networks import SmallCnn
from training.recipe.targets import load_target

ROOT = Path(__file__).parents[3]
NET = "class Net: ...\n"
NAMES = st.one_of(st.sampled_from(["Net", "Nét", "system", "__doc__", ""]), st.text(max_size=6))
FILES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=12)


def test_foreign_code_is_found_wherever_a_recipe_names_it() -> None:
    document = {
        "name": "a:b c",
        "model": {"target": "nets.py:Net", "args": {"inner": [{"target": "os:system"}]}},
        "data": {"target": "training.datasets:digits", "args": {"path": "s3://bucket/x:y/z"}},
        "loss": {"target": "my_company.losses:Focal"},
        "hooks": ["training_evil:x", "training:x"],
    }
    assert foreign_targets(document, ["my_company.losses:Focal"]) == [
        "model.target: nets.py:Net",
        "model.args.inner.0.target: os:system",
        "hooks.0: training_evil:x",
        "hooks.1: training:x",
    ]
    assert "loss.target: my_company.losses:Focal" in foreign_targets(document, [])
    assert "loss.target: my_company.losses:Focal" in foreign_targets(document, ["my_company"])


@pytest.mark.parametrize(
    "target",
    [
        "../../x.py:Y",
        "/tmp/a b.py:Net",
        "/tmp/a:b.py:Net",
        "/tmp/a\nb.py:Net",
        "/tmp/né.py:Nét",
        "mödule:Net",
        "training.distributed.launcher:torchrun",
        "training.distributed.launcher:subprocess",
        "training.process.isolated_run:run_isolated",
        "training.networks:nn",
        "training.networks:_convolution",
        "training.datasets:call_target",
        "training.models.encoder:functional",
        "training.recipe.targets:load_target",
        "training.networks:SmallCnn ",
        " training.networks:SmallCnn",
        "training.networks:SmallCnn.__init__",
        "training..networks:SmallCnn",
        "Training.networks:SmallCnn",
        "\uff54raining.networks:SmallCnn",
    ],
)
@pytest.mark.parametrize("key", ["target", "other"])
def test_what_may_run_code_of_choice_is_foreign(target: str, key: str) -> None:
    loadable = key == "target" or not re.search(r"SmallCnn[. ]|^ |\.\.n", target)
    assert bool(foreign_targets({"model": {key: target}}, [])) == loadable


@settings(max_examples=300)
@example("a b.py", "Net")
@example("a:b.py", "Net")
@example("\n.py", "Net")
@given(file=FILES.map(lambda stem: f"{stem}.py"), name=NAMES)
def test_whatever_can_be_loaded_of_a_file_is_foreign(file: str, name: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, file)
        try:
            path.write_text(f"{NET}Nét = Net\n")
        except OSError:  # no name of a file
            return
        target = f"{path}:{name}"
        with contextlib.suppress(TargetError), _modules_as_before():
            load_target(target, "model.target")
            for document in ({"model": {"target": target}}, {"data": {"args": [target]}}):
                assert foreign_targets(document, []), target


def test_whatever_can_be_loaded_of_our_modules_is_foreign_or_listed() -> None:
    """Every name that a module of ours has, and so what it imports."""
    ours = [m for name, m in sorted(sys.modules.items()) if _is_ours(name)]
    assert len(ours) > 5
    for module in ours:
        for name in dir(module):
            target = f"{module.__name__}:{name}"
            if not foreign_targets({"model": {"target": target}}, []):
                assert target in SHIPPED_TARGETS
                assert load_target(target, "model.target").__module__ == module.__name__


@settings(max_examples=300)
@given(
    place=st.one_of(st.sampled_from(["os", "training.networks", "sys", "."]), st.text(max_size=9)),
    name=NAMES,
)
def test_every_target_that_is_not_listed_is_foreign(place: str, name: str) -> None:
    target = f"{place}:{name}"
    listed = target in SHIPPED_TARGETS
    assert bool(foreign_targets({"model": {"target": target}}, [])) != listed


def test_the_list_holds_what_recipes_that_ship_name() -> None:
    recipes = [*ROOT.glob("training/recipes/*.yaml"), ROOT / "k8s/components/train-job/recipe.yaml"]
    assert len(recipes) > 5
    for recipe in recipes:
        assert foreign_targets(yaml.safe_load(recipe.read_text()), []) == [], recipe


def test_the_list_holds_nothing_but_networks_and_data_of_ours() -> None:
    for target in SHIPPED_TARGETS:
        found = load_target(target, "model.target")
        assert (found.__module__, found.__name__) == tuple(target.split(":"))
    assert load_target("training.networks:SmallCnn", "model.target") is SmallCnn


@pytest.mark.parametrize("target", ["my_company", "nets.py:Net", "a:b:c", "a:"])
def test_an_operator_names_whole_targets(target: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"write package\.module:Name"):
        config(tmp_path, targets=(target,))
    assert config(tmp_path, targets=("my_company.nets:Net",)).targets == ("my_company.nets:Net",)


def _is_ours(name: str) -> bool:
    return name.partition(".")[0] in ("training", "services", "model_store")


@contextlib.contextmanager
def _modules_as_before() -> Iterator[None]:
    """Forgets the modules that loading has left."""
    before: dict[str, ModuleType] = dict(sys.modules)
    try:
        yield
    finally:
        for name in set(sys.modules) - set(before):
            del sys.modules[name]
