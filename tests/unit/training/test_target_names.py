"""Misspelt targets are told without an import, and nothing is refused that an import would find."""

from pathlib import Path

import pytest

from training.errors import TargetError
from training.recipe_file import load_recipe
from training.target_names import check_target_names

DIGITS = "training/recipes/digits_cnn.yaml"


def check(target: str) -> None:
    check_target_names(load_recipe(DIGITS, [f"model.target={target}"]))


def test_a_misspelt_name_is_told_without_running_the_file(tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text("raise SystemExit('it ran')\n\nclass SmallNet:\n    pass\n")
    with pytest.raises(TargetError, match=r"model.target: .*nets.py has no 'SmalNet'.*mean"):
        check(f"{file}:SmalNet")


def test_a_misspelt_name_of_ours_is_told() -> None:
    with pytest.raises(TargetError, match="did you mean 'SmallCnn'"):
        check("training.networks:SmalCnn")


@pytest.mark.parametrize(
    "source",
    [
        "class Net: ...",
        "def Net(): ...",
        "async def Net(): ...",
        "Net = print",
        "Net: object = print",
        "First, Net = 1, 2",
        "from torch.nn import Linear as Net",
        "import torch.nn as Net",
        "from torch.nn import *",
        "if True:\n    class Net: ...",
        "try:\n    from a import Net\nexcept ImportError:\n    Net = None",
        "with open('f') as Net:\n    pass",
        "for Net in range(3):\n    pass",
        "(Net := 3)",
        "globals()['Net'] = 3",
        "def __getattr__(name): return print",
        "exec('class Net: ...')",
        "this is no Python",
    ],
)
def test_what_an_import_may_find_is_left_to_the_import(source: str, tmp_path: Path) -> None:
    file = tmp_path / "nets.py"
    file.write_text(source)
    check(f"{file}:Net")


@pytest.mark.parametrize(
    ("target", "told"),
    [
        ("nets.py:Net", "there is no file"),
        ("no.such:Net", "no module 'no'"),
        ("trainig.networks:SmallCnn", "no module 'trainig' .did you mean 'training'"),
        ("training.netwroks:SmallCnn", "no module 'training.netwroks'"),
    ],
)
def test_files_and_packages_that_are_not_there_are_told(target: str, told: str) -> None:
    with pytest.raises(TargetError, match=rf"model\.target.*{told}"):
        check(target)


@pytest.mark.parametrize("target", ["sklearn.nothing:Net", "torch.nnn:Linear"])
def test_modules_that_cannot_be_read_are_left_to_the_import(target: str) -> None:
    check(target)
